"""Where each stage runs: a rank, which may differ by microbatch."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, get_args

__all__ = ["Homes", "Placement"]

Placement = Literal["each", "loop", "v", "bidirectional"]
"""The placements with a name; see the constructors of `Homes`."""


@dataclass(frozen=True)
class Homes:
    """The rank of each stage: `rows[0][stage]` if there is one row, else `rows[microbatch][stage]`.

    Equal rows for all microbatches are one row, so that equal homes compare as equal.

    Raises:
        ValueError: no row, no stage, rows of different length, or a rank below the highest that no
            stage is on.
    """

    rows: tuple[tuple[int, ...], ...]

    def __post_init__(self) -> None:
        """Check that the rows fit together."""
        if not self.rows or not all(self.rows):
            raise ValueError(f"homes must have at least one stage, got {self.rows!r}")
        for microbatch, row in enumerate(self.rows):
            if len(row) != self.stages:
                raise ValueError(
                    f"homes must have one rank for each of {self.stages} stages, got {row} for "
                    f"microbatch {microbatch}"
                )
        taken = {rank for row in self.rows for rank in row}
        if any(type(rank) is not int or rank < 0 for rank in taken):
            raise ValueError(f"homes must be ints of at least 0, got {self.rows!r}")
        for rank in range(max(taken)):
            if rank not in taken:
                raise ValueError(f"homes must put a stage on every rank, got {self} without {rank}")
        if len(set(self.rows)) == 1:
            object.__setattr__(self, "rows", self.rows[:1])

    @classmethod
    def each(cls, ranks: int) -> Homes:
        """One stage per rank, in order: 0 1 2 3."""
        return cls((tuple(range(ranks)),))

    @classmethod
    def loop(cls, ranks: int, stages: int) -> Homes:
        """Around and around: 0 1 0 1.

        Raises:
            ValueError: stages is not a multiple of ranks.
        """
        _check_multiple("a loop", ranks, stages)
        return cls((tuple(stage % ranks for stage in range(stages)),))

    @classmethod
    def v(cls, ranks: int, stages: int) -> Homes:
        """There and back, so that the turning ranks hold neighbours: 0 1 1 0, then 0 1 again.

        Raises:
            ValueError: stages is not a multiple of ranks.
        """
        _check_multiple("a v", ranks, stages)
        there = list(range(ranks))
        return cls((tuple([*there, *reversed(there)][i % (2 * ranks)] for i in range(stages)),))

    @classmethod
    def bidirectional(cls, ranks: int, microbatches: int) -> Homes:
        """As many stages as ranks, each at two places (DualPipe, arXiv:2412.19437).

        Stage s is on rank s for the first half of the microbatches and on rank ranks - 1 - s for
        the second.

        Raises:
            ValueError: an odd number of ranks or of microbatches.
        """
        for what, count in (("ranks", ranks), ("microbatches", microbatches)):
            if count < 2 or count % 2 != 0:
                raise ValueError(
                    f"bidirectional needs an even number of {what}, at least 2, got {count}"
                )
        there = tuple(range(ranks))
        return cls((there,) * (microbatches // 2) + (there[::-1],) * (microbatches // 2))

    @classmethod
    def listed(cls, coordinates: Iterable[int]) -> Homes:
        """The rank of each stage, for all microbatches."""
        return cls((tuple(coordinates),))

    @classmethod
    def named(cls, placement: Placement, *, ranks: int, stages: int, microbatches: int) -> Homes:
        """The placement of a name.

        Raises:
            ValueError: a number of stages, ranks or microbatches that it does not fit.
        """
        match placement:
            case "loop":
                return cls.loop(ranks, stages)
            case "v":
                return cls.v(ranks, stages)
            case "each" | "bidirectional":
                if stages != ranks:
                    raise ValueError(f"{placement} needs stages == ranks = {ranks}, got {stages}")
        return cls.each(ranks) if placement == "each" else cls.bidirectional(ranks, microbatches)

    @property
    def stages(self) -> int:
        """How many stages there are."""
        return len(self.rows[0])

    @property
    def ranks(self) -> int:
        """How many ranks there are."""
        return 1 + max(max(row) for row in self.rows)

    @property
    def microbatches(self) -> int | None:
        """How many microbatches it is for, or None for any number."""
        return None if len(self.rows) == 1 else len(self.rows)

    @property
    def chunks(self) -> int:
        """The most stages that one rank holds."""
        held: dict[int, set[int]] = {}
        for row in set(self.rows):
            for stage, rank in enumerate(row):
                held.setdefault(rank, set()).add(stage)
        return max(map(len, held.values()))

    def of(self, stage: int, microbatch: int) -> int:
        """The rank on which a stage runs a microbatch."""
        return self.rows[microbatch if len(self.rows) > 1 else 0][stage]

    def renaming(self, other: Homes) -> tuple[int, ...] | None:
        """The rank in `other` of each rank here, if the two differ only in the names of ranks."""
        if len(self.rows) != len(other.rows) or self.stages != other.stages:
            return None
        pairs = {
            pair
            for rows in set(zip(self.rows, other.rows, strict=True))
            for pair in zip(*rows, strict=True)
        }
        names = dict(sorted(pairs))
        one_to_one = len(pairs) == len(names) == len(set(names.values()))
        return tuple(names.values()) if one_to_one else None

    def __str__(self) -> str:
        """The name of the placement if it has one, else the list of ranks, or one per microbatch."""
        for placement in get_args(Placement):
            if self._is(placement):
                return str(placement)
        rows = [list(row) for row in self.rows]
        return str(rows[0] if len(rows) == 1 else rows)

    def _is(self, placement: Placement) -> bool:
        try:
            named = Homes.named(
                placement,
                ranks=self.ranks,
                stages=self.stages,
                microbatches=len(self.rows),
            )
        except ValueError:
            return False
        return named == self


def _check_multiple(what: str, ranks: int, stages: int) -> None:
    if stages < 1 or stages % ranks != 0:
        raise ValueError(f"{what} needs stages to be a multiple of ranks = {ranks}, got {stages}")
