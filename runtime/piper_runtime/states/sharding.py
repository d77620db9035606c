"""Which part of a bucket a rank holds: consecutive equal parts of its padded flat tensor.

    members     | w: 9 elements        | b: 3      |              12 elements on 5 shards:
    flat tensor | 0 1 2 | 3 4 5 | 6 7 8 | 9 10 11 | . . . |       parts of 3, padded to 15
    ranks         0       1       2       3         4             rank 4 holds padding only

The padding is at the end and zero. A member may lie on several ranks, and a rank may hold pieces of
several members.

Before that, a state may be shared out along an axis by itself, such as experts: each rank along the
axis has an equal part of one of its dims. The members of such a bucket are these local parts, and
ranks along the axis hold different flat tensors:

    w: 4 x 2        ep 0: | 0 1 | 2 3 |    ep 1: | 4 5 | 6 7 |    a row per expert
    flat tensors    on each of them | w local: 4 elements | ... | padding |, cut as above

Along an auto axis the ranks need not divide the dim: the last parts then have zeros behind it.

    w: 3 x 2        tp 0: | 0 1 | 2 3 |    tp 1: | 4 5 | . . |    a row per word
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

__all__ = ["Local", "Piece", "Shard", "pad"]


@dataclass(frozen=True, slots=True)
class Piece:
    """Elements of one member that a rank holds: ``length`` from ``start`` on, of member ``index``.

    ``shape`` has as many dims as the member, and is the member's own if the piece is all of it.
    """

    index: int
    start: int
    length: int
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Local:
    """Local part ``index`` of ``count``, along ``dim``; states that are not shared out have one."""

    index: int = 0
    count: int = 1
    dim: int = 0

    def shape(self, whole: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of the part of a tensor, with its padding."""
        if self.count == 1:
            return whole
        return (*whole[: self.dim], self._size(whole), *whole[self.dim + 1 :])

    def offsets(self, whole: tuple[int, ...]) -> tuple[int, ...]:
        """Return where the part starts in the whole tensor, along each dim."""
        first = [0] * len(whole)
        if self.count > 1:
            first[self.dim] = self.index * self._size(whole)
        return tuple(first)

    def of(self, whole: Tensor) -> Tensor:
        """Return the part of a whole tensor; a view, if it has no padding."""
        if self.count == 1:
            return whole
        own = self._own(whole)
        missing = self._size(whole.shape) - own.shape[self.dim]
        if not missing:
            return own
        shape = (*own.shape[: self.dim], missing, *own.shape[self.dim + 1 :])
        return torch.cat([own, own.new_zeros(shape)], self.dim)

    def put(self, part: Tensor, whole: Tensor) -> None:
        """Copy the part, but its padding, to where it belongs in a whole tensor."""
        if self.count == 1:
            whole.copy_(part)
            return
        own = self._own(whole)
        own.copy_(part.narrow(self.dim, 0, own.shape[self.dim]))

    def _size(self, whole: Sequence[int]) -> int:
        return -(-whole[self.dim] // self.count)

    def _own(self, whole: Tensor) -> Tensor:
        """Return the elements of a whole tensor that are in the part, a view."""
        total, size = whole.shape[self.dim], self._size(whole.shape)
        first, last = (min(total, index * size) for index in (self.index, self.index + 1))
        return whole.narrow(self.dim, first, last - first)


@dataclass(frozen=True, slots=True)
class Shard:
    """Part ``index`` of ``count`` equal parts of a flat tensor of ``numel`` elements."""

    numel: int
    index: int = 0
    count: int = 1

    @property
    def part(self) -> int:
        """Elements of a part."""
        return -(-self.numel // self.count)

    @property
    def padded(self) -> int:
        """Elements of all parts together."""
        return self.part * self.count

    @property
    def start(self) -> int:
        """Where the part starts in the padded flat tensor."""
        return self.index * self.part

    @property
    def filled(self) -> int:
        """Elements of the part before its padding."""
        return min(self.part, max(0, self.numel - self.start))

    def of(self, whole: Tensor) -> Tensor:
        """Return the part of a padded flat tensor, a view; the tensor itself if it is all of it."""
        return whole if self.count == 1 else whole.narrow(0, self.start, self.part)

    def pieces(self, shapes: Sequence[Sequence[int]]) -> Iterator[Piece]:
        """Yield what the part holds of members of these shapes, one behind the other.

        Members without elements are left out.
        """
        stop, first = self.start + self.part, 0
        for index, shape in enumerate(shapes):
            size = prod(shape)
            begin, end = max(first, self.start), min(first + size, stop)
            if begin < end:
                length = end - begin
                one = (*(1 for _ in shape[1:]), length) if shape else ()
                yield Piece(index, begin - first, length, tuple(shape) if length == size else one)
            first += size


def pad(flat: Tensor, numel: int) -> Tensor:
    """Return a 1-D tensor with zeros behind it up to ``numel`` elements; itself if it has these."""
    missing = numel - flat.numel()
    return flat if not missing else torch.cat([flat, flat.new_zeros(missing)])
