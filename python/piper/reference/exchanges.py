"""What ranks give each other in a step, for a single process that computes for all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from piper_runtime import compute
from torch import Tensor

from piper.mlir import ir
from piper.mlir.dialects import piper

__all__ = ["Exchange", "exchange", "read_exchange"]

_KINDS = {
    piper.AllReduceOp: "all_reduce",
    piper.ReduceScatterOp: "reduce_scatter",
    piper.AllGatherOp: "all_gather",
    piper.AllToAllOp: "all_to_all",
}


@dataclass(frozen=True)
class Exchange:
    """An exchange of activations, by values of the IR: ``kind`` is that of its instruction.

    ``axes`` are those of the mesh whose ranks take part, ``dim`` that of the tensor which is cut or
    joined, and ``sizes`` how many rows of it go to each of them; None for equal parts.
    """

    kind: str
    input: Any
    output: Any
    axes: tuple[str, ...]
    dim: int
    sizes: Any | None


def read_exchange(op: Any) -> Exchange | None:
    """Return the exchange that an op of a step is, None for another op.

    Exchanges have a label, which gathers and reductions of buckets have not.
    """
    kind = _KINDS.get(type(op))
    if kind is None or op.label is None:
        return None
    axes = tuple(ir.StringAttr(axis).value for axis in op.over)
    dim = 0 if kind == "all_reduce" else ir.IntegerAttr(op.dim).value
    sizes = op.send_sizes if kind == "all_to_all" else None
    return Exchange(kind, op.inputs[0], op.operation.results[0], axes, dim, sizes)


def exchange(
    op: Exchange, given: Sequence[Tensor], sizes: Sequence[Sequence[int]] | None
) -> list[Tensor]:
    """Return what each of the ranks that take part gets, in rank order, of what each gives.

    ``sizes`` are, for each rank, how many rows it sends to each.
    """
    count = len(given)
    if op.kind == "all_gather":
        return [torch.cat(list(given), op.dim)] * count
    if op.kind == "all_to_all":
        cut = [_cut(value, op.dim, sizes[i] if sizes else count) for i, value in enumerate(given)]
        return [torch.cat([pieces[i] for pieces in cut], op.dim) for i in range(count)]
    total = compute.total(*given)
    if op.kind == "all_reduce":
        return [total] * count
    return [compute.part(op.dim, index, count, total) for index in range(count)]


def _cut(value: Tensor, dim: int, sizes: Sequence[int] | int) -> Sequence[Tensor]:
    if isinstance(sizes, int):
        return value.chunk(sizes, dim)
    return value.split_with_sizes(list(sizes), dim)
