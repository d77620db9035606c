"""Data movement with torch's own ops."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from piper_runtime.movement.interface import (
    accumulation_dtype,
    check_parts,
    check_rows,
    places_of_slots,
)
from piper_runtime.movement.packing import Packing

__all__ = ["TorchMovement"]


class TorchMovement:
    """See ``Movement``."""

    def pack(self, parts: Sequence[Tensor], into: Packing, *, add: bool = False) -> None:
        """Write or add parts into a flat tensor."""
        check_parts(into, parts)
        if parts and add:
            torch._foreach_add_(into.parts, tuple(parts))
        elif parts:
            torch._foreach_copy_(into.parts, tuple(parts))

    def permute_rows(
        self, tokens: Tensor, *, order: Tensor, choices: int, weights: Tensor | None = None
    ) -> Tensor:
        """Give each slot its token, by weight."""
        check_rows(order, choices, tokens=tokens, weights=weights)
        rows = tokens.index_select(0, order // choices)
        if weights is None:
            return rows
        wide = accumulation_dtype(tokens.dtype, weights.dtype)
        scale = weights.reshape(-1).index_select(0, order).to(wide)
        return (rows.to(wide) * scale.unsqueeze(1)).to(tokens.dtype)

    def unpermute_rows(
        self, rows: Tensor, *, order: Tensor, choices: int, weights: Tensor | None = None
    ) -> Tensor:
        """Sum each token's rows by weight."""
        check_rows(order, choices, rows=rows, weights=weights)
        shape = order.shape[0] // choices, choices, rows.shape[1]
        slots = rows.index_select(0, places_of_slots(order)).view(shape)
        if weights is None:
            return slots.sum(1)  # which adds 16 bits in fp32
        wide = accumulation_dtype(rows.dtype, weights.dtype)
        return (slots.to(wide) * weights.to(wide).unsqueeze(2)).sum(1).to(rows.dtype)

    def dot_rows(
        self, tokens: Tensor, rows: Tensor, *, order: Tensor, choices: int, dtype: torch.dtype
    ) -> Tensor:
        """Multiply each token with each of its rows."""
        check_rows(order, choices, tokens=tokens, rows=rows)
        wide = accumulation_dtype(tokens.dtype, rows.dtype, dtype)
        repeated = tokens.index_select(0, order // choices)
        products = (repeated.to(wide) * rows.to(wide)).sum(1)
        return products.index_select(0, places_of_slots(order)).view(-1, choices).to(dtype)
