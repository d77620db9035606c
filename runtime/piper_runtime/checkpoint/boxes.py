"""Consecutive elements of a tensor as boxes: what the format of torch's checkpoints can say.

    elements 5 to 18 of a 5 x 4 tensor    . . . . |
                                          . a a a |  1 x 3 at (1, 1)
                                          b b b b |  2 x 4 at (2, 0)
                                          b b b b |
                                          c c . . |  1 x 2 at (4, 0)

A tensor of n dims needs at most 2 n - 1 boxes. Boxes of a part of a tensor, cut along any dim, are
boxes of the tensor at other offsets, though their elements are no longer consecutive there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

__all__ = ["Box", "boxes"]


@dataclass(frozen=True, slots=True)
class Box:
    """Elements of a tensor from ``offsets`` on, ``sizes`` along its dims."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]

    @property
    def numel(self) -> int:
        """Number of elements."""
        return prod(self.sizes)

    def moved(self, by: tuple[int, ...]) -> Box:
        """Return the box in a tensor in which its own tensor starts at ``by``."""
        offsets = (one + more for one, more in zip(self.offsets, by, strict=True))
        return Box(tuple(offsets), self.sizes)

    def clipped(self, shape: tuple[int, ...]) -> Box:
        """Return what of the box is in a tensor of this shape; perhaps nothing."""
        ends = zip(self.offsets, self.sizes, shape, strict=True)
        sizes = (max(0, min(size, end - offset)) for offset, size, end in ends)
        return Box(self.offsets, tuple(sizes))


def boxes(shape: tuple[int, ...], start: int, stop: int) -> Iterator[Box]:
    """Yield the boxes of elements ``start`` to ``stop``, in row-major order and one behind another.

    There are none if there are no elements.
    """
    if start >= stop:
        return
    if not shape:
        yield Box((), ())
        return
    rest = shape[1:]
    row = prod(rest)
    first, last = -(-start // row), stop // row  # the rows that are whole
    if first > last:
        yield from _in_row(rest, last, start - last * row, stop - last * row)
        return
    yield from _in_row(rest, first - 1, start - (first - 1) * row, row)
    if first < last:
        yield Box((first, *(0 for _ in rest)), (last - first, *rest))
    yield from _in_row(rest, last, 0, stop - last * row)


def _in_row(rest: tuple[int, ...], index: int, start: int, stop: int) -> Iterator[Box]:
    for box in boxes(rest, start, stop):
        yield Box((index, *box.offsets), (1, *box.sizes))
