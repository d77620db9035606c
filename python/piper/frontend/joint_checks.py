"""What a joint graph must not hold: parameters that the forward changes, and sparse tensors."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
import torch._functorch._aot_autograd.descriptors as aot
from torch import Tensor, fx

from piper.frontend.data import CaptureError
from piper.frontend.sites import node_site

__all__ = ["refuse_changed_parameters", "refuse_sparse"]


def refuse_changed_parameters(results: Sequence[tuple[fx.Node, object]]) -> None:
    """Refuse what the forward writes to a parameter, which is for the optimizer to change."""
    for node, desc in results:
        if not isinstance(desc, aot.InputMutationAOTOutput):
            continue
        source = desc.mutated_input
        if isinstance(source, aot.ParamAOTInput):
            raise CaptureError(
                f"{node_site(node)}: forward changes parameter "
                f"{source.target.removeprefix('model.')!r} in place, which is not supported: only "
                "the optimizer may; expected an embedding to have no max_norm, and other modules "
                "to scale a copy"
            )


def refuse_sparse(nodes: Iterable[fx.Node]) -> None:
    """Refuse sparse tensors: values of a program are dense, and sums over ranks add them so."""
    for node in nodes:
        value = node.meta.get("val")
        if isinstance(value, Tensor) and value.layout is not torch.strided:
            raise CaptureError(
                f"{node_site(node)}: op {node.target} makes a tensor of layout {value.layout}, "
                "which a program cannot hold, expected dense ones: of an embedding, sparse=False"
            )
