"""``Packing``: a flat tensor and the places of its parts."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor

__all__ = ["Packing"]


class Packing:
    """A flat tensor and, one behind the other, views of it in the shapes of its parts."""

    __slots__ = ("_blocks", "flat", "parts", "shapes", "starts")

    def __init__(self, flat: Tensor, shapes: Sequence[Sequence[int]]) -> None:
        """Make the views; raises ValueError if they do not fill the flat tensor exactly."""
        sizes = [prod(shape) for shape in shapes]
        if flat.dim() != 1 or flat.numel() != sum(sizes):
            want, got = f"({sum(sizes)},)", tuple(flat.shape)
            raise ValueError(f"flat tensor expected shape {want}, the sum of its parts, got {got}")
        pieces = flat.split_with_sizes(sizes) if sizes else ()
        self.flat = flat
        self.parts = tuple(
            piece.view(tuple(shape)) for piece, shape in zip(pieces, shapes, strict=True)
        )
        self.shapes = [part.shape for part in self.parts]
        self.starts = tuple(piece.storage_offset() - flat.storage_offset() for piece in pieces)
        self._blocks: tuple[int, Tensor] | None = None

    def blocks(self, size: int) -> Tensor:
        """Return where blocks of at most ``size`` elements lie, none across two parts.

        An int64 tensor of (number of blocks, 4) on the device, made once: the part, the start in
        it and in the flat tensor, the length.
        """
        if self._blocks is None or self._blocks[0] != size:
            rows = [
                (index, start, place + start, min(size, part.numel() - start))
                for index, (part, place) in enumerate(zip(self.parts, self.starts, strict=True))
                for start in range(0, part.numel(), size)
            ]
            table = torch.tensor(rows, dtype=torch.int64).view(-1, 4)
            self._blocks = (size, table.to(self.flat.device))
        return self._blocks[1]
