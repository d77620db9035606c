"""What every implementation of data movement does, and the checks that they share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from piper_runtime.movement.packing import Packing

__all__ = ["Movement", "PartError", "accumulation_dtype", "check_parts", "check_rows"]


class PartError(ValueError):
    """A part that does not fit its place: the part ``index``, and the ``expectation`` in words."""

    def __init__(self, index: int, expectation: str) -> None:
        """Say which part and what was expected."""
        super().__init__(f"part {index} {expectation}")
        self.index, self.expectation = index, expectation


class Movement(Protocol):
    """Copies between parts and flat tensors, and of rows. Nothing here waits for the device."""

    def pack(self, parts: Sequence[Tensor], into: Packing, *, add: bool = False) -> None:
        """Write ``parts`` to their places in a flat tensor, cast to its dtype.

        With ``add``, add them to what is there, in the wider dtype of both. Parts have the shapes
        of ``into`` and one dtype.
        """

    def unpack(self, source: Packing, parts: Sequence[Tensor]) -> None:
        """Copy the places of a flat tensor to contiguous ``parts``, cast to their dtype."""

    def permute_rows(self, x: Tensor, rows: Tensor, weights: Tensor | None = None) -> Tensor:
        """Return ``y`` of shape (m, d) with ``y[i] = weights[i] * x[rows[i]]``.

        ``x`` is (n, d), ``rows`` (m,) of integers below n, ``weights`` (m,). A negative row gives
        zeros: padding.
        """

    def unpermute_rows(self, y: Tensor, slots: Tensor, weights: Tensor | None = None) -> Tensor:
        """Return ``out`` of shape (n, d), the sum over k of ``weights[i, k] * y[slots[i, k]]``.

        ``y`` is (m, d), ``slots`` (n, k) of integers below m, ``weights`` (n, k). A negative slot
        adds nothing. Terms are added from left to right, 16 bits in 32.
        """


def accumulation_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype in which values of ``dtype`` are weighted and added."""
    return torch.float32 if dtype in (torch.bfloat16, torch.float16) else dtype


def check_parts(packing: Packing, parts: Sequence[Tensor]) -> None:
    """Raise PartError unless ``parts`` have the shapes of ``packing`` and one dtype."""
    if len(parts) != len(packing.parts):
        raise ValueError(f"parts expected to be {len(packing.parts)}, got {len(parts)}")
    shapes, dtypes = [part.shape for part in parts], [part.dtype for part in parts]
    if shapes == packing.shapes and len(set(dtypes)) <= 1:
        return
    for index, (want, got) in enumerate(zip(packing.shapes, shapes, strict=True)):
        if want != got:
            raise PartError(index, f"expected shape {tuple(want)}, got {tuple(got)}")
        if dtypes[index] != dtypes[0]:
            raise PartError(index, f"expected dtype {dtypes[0]}, got {dtypes[index]}")


def check_rows(x: Tensor, index: Tensor, weights: Tensor | None, *, dims: int) -> None:
    """Raise ValueError for operands of a permutation that do not fit together."""
    if x.dim() != 2 or not x.is_floating_point():
        raise ValueError(f"rows expected a floating (n, d), got {x.dtype} {tuple(x.shape)}")
    if index.dim() != dims or index.dtype not in (torch.int32, torch.int64):
        got = f"{index.dtype} {tuple(index.shape)}"
        raise ValueError(f"indices expected int32 or int64 of {dims} dims, got {got}")
    if weights is not None and weights.shape != index.shape:
        want, got = tuple(index.shape), str(tuple(weights.shape))
        raise ValueError(f"weights expected the shape of the indices, {want}, got {got}")
