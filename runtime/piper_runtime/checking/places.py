"""Places: what tells apart the ranks that run one program.

A place is the row-major index of a rank along the axes that are not unrolled. Ranks at one place of
several coordinates are the stages of one pipeline.

    mesh pp=2 x dp=2 x tp=2     rank 5 (pp 1, dp 0, tp 1) is at place 1, that of dp 0 and tp 1,
                                which has data-parallel shard 0
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache

from piper_runtime.mesh import CommSpec, Mesh

__all__ = ["Places"]


class Places:
    """The places of a mesh. They are the ranks of ``mesh``, that of the axes not unrolled."""

    def __init__(self, mesh: Mesh, data_axes: Sequence[str]) -> None:
        """Take the data-parallel axes, along which ranks have batches, or parts of sequences."""
        self.mesh = Mesh(tuple(axis for axis in mesh.axes if axis.role != "unrolled"))
        self._whole, self._data_axes = mesh, tuple(data_axes)
        self._group = cache(self._find_group)

    def __len__(self) -> int:
        """Return the number of places."""
        return self.mesh.world_size

    def of(self, rank: int) -> int:
        """Return the place of a rank of the whole mesh."""
        return self._whole.index(rank, self.mesh.names)

    def shard(self, place: int) -> int:
        """Return the data-parallel shard that a place has."""
        return self.mesh.index(place, self._data_axes)

    def group(self, place: int, axes: Iterable[str]) -> tuple[int, ...]:
        """Return the places that differ from one along ``axes`` at most, in order."""
        return self._group(place, frozenset(axes))

    def firsts(self) -> list[int]:
        """Return the first place of each data-parallel shard."""
        first: dict[int, int] = {}
        for place in range(len(self)):
            first.setdefault(self.shard(place), place)
        return list(first.values())

    def _find_group(self, place: int, axes: frozenset[str]) -> tuple[int, ...]:
        return self.mesh.members(CommSpec("", tuple(axes), (0,)), place)
