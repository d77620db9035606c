"""What the model itself asks to compute again in the backward pass: ``torch.utils.checkpoint``."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator

from torch import fx
from torch._ops import OpOverload
from torch.utils.checkpoint import CheckpointPolicy

from piper.frontend.data import CaptureError
from piper.frontend.loss import is_backward
from piper.frontend.op_facts import effects
from piper.frontend.sites import node_site

__all__ = ["find_recomputed"]

_AGAIN = (CheckpointPolicy.MUST_RECOMPUTE, CheckpointPolicy.PREFER_RECOMPUTE)
_OFFLOADED = (CheckpointPolicy.MUST_CPU_OFFLOAD, CheckpointPolicy.PREFER_CPU_OFFLOAD)


def find_recomputed(nodes: Iterable[fx.Node]) -> set[fx.Node]:
    """Return the forward ops, without views, whose results checkpointed regions do not keep.

    A result that leaves its region, into another one or into none, is not among them: eager keeps
    it for whoever reads it, and a region is computed again from what it is given. Ops that a
    selective policy saves are not among them either. ``use_reentrant`` makes no difference. Raises
    CaptureError for a policy that offloads.
    """
    forward = [node for node in nodes if node.op == "call_function" and not is_backward(node)]
    regions = {node: node.meta["ac_graph_id"] for node in forward if "recompute" in node.meta}
    _refuse_offloading(regions)
    leaving = {
        maker
        for node in forward
        if not _is_view(node)
        for maker in _makers(node)
        if regions.get(maker) != regions.get(node)
    }
    return {
        node
        for node in regions
        if node.meta["recompute"] in _AGAIN and node not in leaving and not _is_view(node)
    }


def _refuse_offloading(nodes: Iterable[fx.Node]) -> None:
    for node in nodes:
        if node.meta["recompute"] in _OFFLOADED:
            raise CaptureError(
                f"{node_site(node)}: op {node.target} expected a checkpoint policy that saves or "
                f"recomputes, got {node.meta['recompute'].name}, which is not supported"
            )


def _makers(node: fx.Node) -> Iterator[fx.Node]:
    """Yield what made each operand of a node, or what its views look at."""
    for maker in node.all_input_nodes:
        while _is_view(maker):
            maker = maker.all_input_nodes[0]
        yield maker


def _is_view(node: fx.Node) -> bool:
    op = node.target
    if node.op != "call_function" or not node.all_input_nodes:
        return False
    return op is operator.getitem or (isinstance(op, OpOverload) and effects(op) == "view")
