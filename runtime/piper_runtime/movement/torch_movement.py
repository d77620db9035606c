"""Data movement with torch's own ops."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from piper_runtime.movement.interface import accumulation_dtype, check_parts, check_rows
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

    def unpack(self, source: Packing, parts: Sequence[Tensor]) -> None:
        """Copy a flat tensor into parts."""
        check_parts(source, parts)
        if parts:
            torch._foreach_copy_(tuple(parts), source.parts)

    def permute_rows(self, x: Tensor, rows: Tensor, weights: Tensor | None = None) -> Tensor:
        """Gather rows."""
        check_rows(x, rows, weights, dims=1)
        return _gather(x, rows[:, None], None if weights is None else weights[:, None])

    def unpermute_rows(self, y: Tensor, slots: Tensor, weights: Tensor | None = None) -> Tensor:
        """Gather rows and add up what belongs together."""
        check_rows(y, slots, weights, dims=2)
        return _gather(y, slots, weights)


def _gather(x: Tensor, index: Tensor, weights: Tensor | None) -> Tensor:
    """Return the sum over k of ``weights[i, k] * x[index[i, k]]``, one k after the other."""
    wide = accumulation_dtype(x.dtype)
    total = torch.zeros(index.shape[0], x.shape[1], dtype=wide, device=x.device)
    for k in range(index.shape[1] if x.numel() else 0):
        rows = index[:, k]
        term = x[rows.clamp(min=0)].to(wide)
        if weights is not None:
            term *= weights[:, k, None].to(wide)
        total += term.masked_fill_((rows < 0)[:, None], 0)
    return total.to(x.dtype)
