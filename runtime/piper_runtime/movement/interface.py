"""What every implementation of data movement does, and the checks that they share.

Rows are in two orders. In order of *slots*, choice j of token t is slot t * k + j. ``order`` lists
the slots as rows lie: row i belongs to slot ``order[i]``, and so to token ``order[i] // k``.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from piper_runtime.movement.packing import Packing

__all__ = [
    "Movement",
    "PartError",
    "accumulation_dtype",
    "check_parts",
    "check_rows",
    "places_of_slots",
]


class PartError(ValueError):
    """A part that does not fit its place: the part ``index``, and the ``expectation`` in words."""

    def __init__(self, index: int, expectation: str) -> None:
        """Say which part and what was expected."""
        super().__init__(f"part {index} {expectation}")
        self.index, self.expectation = index, expectation


class Movement(Protocol):
    """Copies of parts into flat tensors, and of rows. Nothing here waits for the device.

    T tokens have k = ``choices`` choices each, n = T * k in all; ``order`` is a permutation of
    n slots, int64. Products and sums are computed in the widest dtype of what goes into them, 16
    bits in fp32, and rounded once. Results are new and contiguous.
    """

    def pack(self, parts: Sequence[Tensor], into: Packing, *, add: bool = False) -> None:
        """Write ``parts`` to their places in a flat tensor, cast to its dtype.

        With ``add``, add them to what is there, in the wider dtype of both. Parts have the shapes
        of ``into`` and one dtype.
        """

    def permute_rows(
        self, tokens: Tensor, *, order: Tensor, choices: int, weights: Tensor | None = None
    ) -> Tensor:
        """Give each slot its token, by weight: ``tokens[T, D]``, ``weights[T, k]`` -> ``[n, D]``.

        Row i is ``tokens[t]``, times ``weights[t, j]`` if there are weights, where choice j of
        token t is slot ``order[i]``.
        """

    def unpermute_rows(
        self, rows: Tensor, *, order: Tensor, choices: int, weights: Tensor | None = None
    ) -> Tensor:
        """Sum each token's rows by weight: ``rows[n, D]``, ``weights[T, k]`` -> ``[T, D]``."""

    def dot_rows(
        self, tokens: Tensor, rows: Tensor, *, order: Tensor, choices: int, dtype: torch.dtype
    ) -> Tensor:
        """Multiply each token with each of its rows: ``tokens[T, D]``, ``rows[n, D]`` -> ``[T, k]``.

        The result has ``dtype``, which counts for the dtype of products and sums, too.
        """


def accumulation_dtype(*dtypes: torch.dtype) -> torch.dtype:
    """Return the dtype in which values of ``dtypes`` are multiplied and added."""
    return functools.reduce(torch.promote_types, dtypes, torch.float32)


def places_of_slots(order: Tensor) -> Tensor:
    """Return where each slot's row lies: ``places[order[i]] = i``."""
    places = torch.arange(order.shape[0], device=order.device)
    return torch.empty_like(order).scatter_(0, order, places)


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


def check_rows(
    order: Tensor,
    choices: int,
    *,
    tokens: Tensor | None = None,
    rows: Tensor | None = None,
    weights: Tensor | None = None,
) -> None:
    """Raise ValueError for operands that do not fit the order, of which kernels see no size."""
    if order.dim() != 1 or order.dtype != torch.int64:
        raise ValueError(f"order expected int64 of 1 dim, got {_describe(order)}")
    num_slots = order.shape[0]
    if choices < 1 or num_slots % choices:
        raise ValueError(
            f"choices expected to divide the number of slots {num_slots}, got {choices}"
        )
    num_tokens = num_slots // choices
    for name, value, count in (("tokens", tokens, num_tokens), ("rows", rows, num_slots)):
        if value is None:
            continue
        if value.dim() != 2 or value.shape[0] != count or not value.is_floating_point():
            raise ValueError(f"{name} expected floating ({count}, D), got {_describe(value)}")
    if tokens is not None and rows is not None and tokens.shape[1] != rows.shape[1]:
        raise ValueError(
            f"rows expected the width of tokens {tokens.shape[1]}, got {rows.shape[1]}"
        )
    if weights is not None and weights.shape != (num_tokens, choices):
        raise ValueError(f"weights expected ({num_tokens}, {choices}), got {_describe(weights)}")


def _describe(value: Tensor) -> str:
    return f"{value.dtype} {tuple(value.shape)}"
