"""The mesh: ranks, their coordinates, and who belongs to which communicator."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import prod

from piper_runtime.errors import ProgramError

__all__ = ["Axis", "Comm", "CommSpec", "Mesh"]

ROLES = ("unrolled", "manual", "auto")


@dataclass(frozen=True, slots=True)
class Axis:
    """One mesh axis: an unrolled one has a program per index, the others share one text."""

    name: str
    size: int
    role: str

    def __post_init__(self) -> None:
        """Check the role and the size."""
        if self.role not in ROLES:
            raise ProgramError(f"axis {self.name!r} expected a role in {ROLES}, got {self.role!r}")
        if self.size < 1:
            raise ProgramError(f"axis {self.name!r} expected a positive size, got {self.size}")


@dataclass(frozen=True, slots=True)
class CommSpec:
    """A communicator of the manifest: one group per combination of the axes it does not span.

    ``priority`` (higher goes first) and ``sms`` (streaming multiprocessors that one of its
    operations may hold) are what the user asked of its stream; None where nothing was asked.
    """

    name: str
    axes: tuple[str, ...]
    coordinates: tuple[int, ...]
    priority: int | None = None
    sms: int | None = None


@dataclass(frozen=True, slots=True)
class Comm:
    """The communicator as one rank sees it: ``members`` are world ranks in ascending order.

    ``parts`` is the index of each member along the axes of the communicator: which part of a
    scattered tensor it gets. Members at several coordinates share parts. By default all differ.
    """

    name: str
    members: tuple[int, ...]
    parts: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        """Number the parts if that was not done."""
        object.__setattr__(self, "parts", self.parts or tuple(range(len(self.members))))

    @property
    def num_parts(self) -> int:
        """Into how many parts a tensor is scattered."""
        return 1 + max(self.parts)


@dataclass(frozen=True, slots=True)
class Mesh:
    """Axes, outermost first. A world rank is the row-major index of its coordinates."""

    axes: tuple[Axis, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the axes, outermost first."""
        return tuple(axis.name for axis in self.axes)

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return prod(axis.size for axis in self.axes)

    @property
    def num_coordinates(self) -> int:
        """Number of distinct programs: the product of the unrolled axes."""
        return prod(axis.size for axis in self.axes if axis.role == "unrolled")

    def size(self, names: Iterable[str]) -> int:
        """Return the product of the sizes of the named axes."""
        wanted = set(names)
        return prod(axis.size for axis in self.axes if axis.name in wanted)

    def positions(self, rank: int) -> dict[str, int]:
        """Return the index of ``rank`` along each axis, outermost first."""
        if not 0 <= rank < self.world_size:
            raise ValueError(f"rank expected below {self.world_size} of mesh {self}, got {rank}")
        index: dict[str, int] = {}
        for axis in reversed(self.axes):
            rank, index[axis.name] = divmod(rank, axis.size)
        return {name: index[name] for name in self.names}

    def index(self, rank: int, names: Iterable[str]) -> int:
        """Return the row-major index of ``rank`` along the named axes alone."""
        wanted, positions, result = set(names), self.positions(rank), 0
        for axis in self.axes:
            if axis.name in wanted:
                result = result * axis.size + positions[axis.name]
        return result

    def coordinate(self, rank: int) -> int:
        """Return the index of ``rank`` along the unrolled axes: which program it runs."""
        return self.index(rank, [axis.name for axis in self.axes if axis.role == "unrolled"])

    def first_rank(self, coordinate: int) -> int:
        """Return the lowest rank at ``coordinate``."""
        ranks = range(self.world_size)
        return next(rank for rank in ranks if self.coordinate(rank) == coordinate)

    def owner(self, coordinate: int, *places: tuple[Iterable[str], int]) -> int:
        """Return the lowest rank at ``coordinate`` that has, along named axes, the index given.

        ``places`` are pairs of axes and index, which is row-major along these.
        """
        wanted = [(tuple(names), index) for names, index in places]
        return next(
            rank
            for rank in range(self.world_size)
            if self.coordinate(rank) == coordinate
            and all(self.index(rank, names) == index for names, index in wanted)
        )

    def peers(self, rank: int) -> tuple[int, ...]:
        """Return, by coordinate, the ranks that agree with ``rank`` on all manual axes."""
        key = self._key(rank, ())
        return tuple(other for other in range(self.world_size) if self._key(other, ()) == key)

    def members(self, spec: CommSpec, rank: int) -> tuple[int, ...]:
        """Return the members of the group of ``spec`` that ``rank`` sees, in rank order."""
        key = self._key(rank, spec.axes)
        return tuple(
            other
            for other in range(self.world_size)
            if self.coordinate(other) in spec.coordinates and self._key(other, spec.axes) == key
        )

    def groups(self, spec: CommSpec) -> list[tuple[int, ...]]:
        """Return every distinct group of ``spec``, in the order of their first members."""
        return list(dict.fromkeys(self.members(spec, rank) for rank in range(self.world_size)))

    def describe(self, rank: int) -> str:
        """Return ``rank 3 (pp 1, dp 1)``."""
        where = ", ".join(f"{name} {index}" for name, index in self.positions(rank).items())
        return f"rank {rank} ({where})" if where else f"rank {rank}"

    def __str__(self) -> str:
        """Return ``pp=2 x dp=2``."""
        return " x ".join(f"{axis.name}={axis.size}" for axis in self.axes) or "of one rank"

    def check_world(self, world_size: int) -> None:
        """Raise ValueError unless the processes are as many as the ranks of the mesh."""
        if world_size != self.world_size:
            raise ValueError(
                f"world size expected {self.world_size}, the ranks of mesh {self}, got {world_size}"
            )

    def _key(self, rank: int, free: Iterable[str]) -> tuple[int, ...]:
        """Return the position of ``rank`` on the axes that are neither unrolled nor in ``free``."""
        skip, positions = set(free), self.positions(rank)
        kept = [axis for axis in self.axes if axis.role != "unrolled" and axis.name not in skip]
        return tuple(positions[axis.name] for axis in kept)
