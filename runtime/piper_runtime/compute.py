"""What the runtime's own compute instructions do when they are executed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from piper_runtime.instruction import Handle
from piper_runtime.states.optimizer import clip_factor
from piper_runtime.states.state import Bucket

__all__ = [
    "Update", "convert", "free", "nonfinite", "nothing", "part", "sizes", "sumsq", "tangent", "total",
]  # fmt: skip

# Instructions whose results own their storage: others may return a bucket's or the batch's.
OWNING_KINDS = frozenset(
    [
        "run", "recv", "sum", "sumsq", "all_gather", "reduce_scatter", "all_to_all", "broadcast",
        "slice", "convert", "nonfinite",
    ]
)  # fmt: skip


def nothing() -> None:
    """Do nothing: a record only marks a point of its stream."""


def sizes(*counts: Tensor) -> Any:
    """Return, for each tensor of integers, the list of its sums over all dims but the first.

    Of one tensor that is the list itself.
    """
    found = tuple(count.reshape(len(count), -1).sum(1).tolist() for count in counts)
    return found[0] if len(found) == 1 else found


def tangent(
    coeff: float, dtype: torch.dtype, device: torch.device, count: Tensor | None = None
) -> Tensor:
    """Return the scalar ``coeff / max(1, count)`` in ``dtype``, divided in double precision."""
    if count is None:
        return torch.full((), coeff, dtype=dtype, device=device)  # no copy to wait for
    return (coeff / count.clamp(min=1).to(torch.float64)).to(dtype)


def total(first: Tensor, *others: Tensor) -> Tensor:
    """Return the sum from left to right, as a new tensor; 16 bits are added in 32, or many small
    terms would be lost.
    """
    narrow = first.dtype in (torch.bfloat16, torch.float16)
    result = first.to(torch.float32 if narrow else first.dtype, copy=True)
    for other in others:
        result += other
    return result.to(first.dtype)


def sumsq(dtype: torch.dtype | None, device: torch.device, *tensors: Tensor) -> Tensor:
    """Add the squares in ``dtype`` or else the accumulation dtype, tensor by tensor."""
    if dtype is None:
        wide = any(tensor.dtype == torch.float64 for tensor in tensors)
        dtype = torch.float64 if wide else torch.float32
    norms = [torch.linalg.vector_norm(tensor, dtype=dtype) for tensor in tensors]
    if not norms:
        return torch.zeros((), dtype=dtype, device=device)
    return torch.stack(norms).square().sum()


def nonfinite(value: Tensor) -> Tensor:
    """Return whether a scalar is infinite or not a number, as a scalar."""
    return ~value.isfinite()


def part(dim: int, index: int, count: int, value: Tensor) -> Tensor:
    """Return part ``index`` of ``count`` equal parts along ``dim``, as a new tensor."""
    size = value.shape[dim]
    if size % count:
        raise ValueError(f"slice expected dim {dim} divisible by {count}, got {size}")
    return value.narrow(dim, index * (size // count), size // count).clone(
        memory_format=torch.contiguous_format
    )


def convert(dtype: torch.dtype, value: Tensor) -> Tensor:
    """Return the values in ``dtype``, as a new tensor."""
    return value.to(dtype, copy=True)


@dataclass(frozen=True, slots=True)
class Update:
    """Steps the optimizer of ``bucket``, unless ``may_skip`` and the last operand is not zero.

    Operands are the gradient, with ``clip`` the sum of squares, and what may skip the step. Both
    are those of the loss times ``scale``.
    """

    bucket: Bucket
    clip: float | None
    may_skip: bool = False
    scale: float | None = None

    def __call__(self, gradient: Tensor, *scalars: Tensor) -> Tensor:
        """Return the flat value, new or as it was."""
        if self.skips(*scalars):
            return self.bucket.keep(gradient)
        return self.bucket.update(gradient, self._factor(*scalars))

    def _factor(self, *scalars: Tensor) -> Tensor | None:
        """Return what the gradient is multiplied by.

        To undo a scale it has a dim, which makes the product as wide as the value: in a narrow
        dtype it would round to the zero that the scale avoids.
        """
        if self.scale is None:
            return None if self.clip is None else clip_factor(scalars[0], self.clip)
        value = self.bucket.value
        wide = torch.promote_types(value.dtype, torch.float32)
        factor = torch.full((1,), 1 / self.scale, dtype=wide, device=value.device)
        if self.clip is None:
            return factor
        return factor * clip_factor(scalars[0], self.clip, scale=self.scale)

    def skips(self, *scalars: Tensor) -> bool:
        """Return whether the state stays; NaN is not zero."""
        return self.may_skip and bool(scalars[-1] != 0)


def free(handles: Sequence[Handle], poison: bool) -> None:
    """Drop the values; with ``poison``, overwrite them first."""
    for handle in handles:
        handle.get()
        if poison:
            _fill(handle)
        handle.free()


def _fill(handle: Handle) -> None:
    """Overwrite a freed value that nobody else owns, so that a hidden alias of it shows."""
    if handle.producer.kind not in OWNING_KINDS:
        return
    values = handle.value if isinstance(handle.value, tuple) else (handle.value,)
    for value in values:
        if isinstance(value, Tensor) and value.is_floating_point():
            value.fill_(float("nan"))
