"""order: what each pipeline coordinate runs when."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final

from piper.schedules import (
    SCHEDULES,
    Homes,
    Row,
    Schedule,
    Table,
    check_progress,
    generate,
    schedule_name,
    validate,
)
from piper.search import Memory, auto_order
from piper.simulate import Costs
from piper.strategy.directive import Directive

Generator = Callable[[int, int, int], Table | Iterable[Row]]
"""A user's schedule: ranks, microbatches, chunks (the most stages of a rank) -> table, or rows."""

_AUTO: Final = "auto"
_WORDS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "each": "one on each rank",
        "loop": "as a loop",
        "v": "as a v",
        "bidirectional": "in both directions",
    }
)


@dataclass(frozen=True)
class Auto:
    """An order that is searched for; the fields are what `piper.search.auto_order` takes."""

    costs: Costs | None = None
    latency: float = 0.0
    memory: float | Sequence[float] | Memory | None = None
    effort: float = 1.0

    def table(self, homes: Homes, microbatches: int) -> Table:
        """The table found, the same in every process.

        Raises:
            ValueError: see `piper.search.auto_order`.
        """
        found = auto_order(
            homes,
            microbatches=microbatches,
            costs=self.costs,
            latency=self.latency,
            memory=self.memory,
            effort=self.effort,
        )
        return found.table


@dataclass(frozen=True, repr=False)
class Order(Directive):
    """Issue passes in the order of a schedule, which is one of

    - a name, in any case: GPipe, 1F1B, Interleaved1F1B, LoopedBFS, ZBH1, ZBH2,
      InterleavedZeroBubble, ZBVZeroBubble, DualPipe or DualPipeV
    - a `Table`
    - a function `(ranks, microbatches, chunks)` that returns a table or, as a generator, yields
      rows; `chunks` is the most stages that a coordinate holds
    - the path of a CSV file in torch's notation: a `Path`, or a str that ends in .csv; one of rows
      of different length, as torch itself writes, is read by `Table.read_csv(path, ragged=True)`
    - "auto": the order of least makespan that a search finds for the `costs` of stages (by default
      F, I and W of every stage take 1, whatever the model), `latency` of messages and `memory` of
      ranks given; see `piper.search.auto_order`, which also says how far from a bound it is

    A named schedule also says where stages run, unless `place` does, which then must agree up to
    the names of the coordinates. Any other must run every stage where `place` puts it, and is
    checked when the strategy is made: each microbatch once, in order, without a deadlock.

    Raises:
        ValueError: unknown name, which the message answers with the nearest; or a file that
            `Table.read_csv` refuses.
        OSError: a file that cannot be read.
        TypeError: none of these, or a function that takes other arguments.
    """

    schedule: str | Path | Table | Generator | Auto

    def __post_init__(self) -> None:
        """Check the fields; a file is read now."""
        given = self.schedule
        if isinstance(given, Path) or (isinstance(given, str) and given.lower().endswith(".csv")):
            object.__setattr__(self, "schedule", Table.read_csv(given))
        elif isinstance(given, str):
            name = schedule_name(given, others=[_AUTO])
            object.__setattr__(self, "schedule", Auto() if name == _AUTO else name)
        elif not isinstance(given, Table | Auto) and not callable(given):
            raise TypeError(
                "order schedule must be a name, 'auto', a Table, a function or a .csv path, "
                f"got {given!r}"
            )
        elif not isinstance(given, Table | Auto):
            self._check_arguments(given)

    def _check_arguments(self, function: Generator) -> None:
        try:
            signature = inspect.signature(function)
        except ValueError:
            return  # of a callable that is not Python's, which only a call can tell
        try:
            signature.bind(1, 1, 1)
        except TypeError as fault:
            name = getattr(function, "__name__", type(function).__name__)
            raise TypeError(
                f"{self.source}: order schedule must be callable as "
                f"{name}(ranks, microbatches, chunks), got {name}{signature}: {fault}"
            ) from None

    def op(self) -> str:
        """See `Directive`; the table itself is the ``piper.schedule`` of that name."""
        return "piper.do.order @order"

    def facts(self) -> Mapping[str, object]:
        """See `Directive`."""
        return {"schedule": self.schedule}

    @property
    def named(self) -> Schedule | None:
        """The schedule, where it is given by name."""
        return SCHEDULES[self.schedule] if isinstance(self.schedule, str) else None

    def homes(self, size: int, stages: int, microbatches: int) -> Homes:
        """Where a named schedule runs each stage.

        Args:
            size: that of the axis.
            stages: how many there are.
            microbatches: how many there are.

        Raises:
            ValueError: numbers that the schedule is not defined for.
        """
        assert self.named is not None
        try:
            chunks = self.named.chunks_of(size, stages)
            return self.named.homes(size, microbatches, chunks)
        except ValueError as fault:
            raise self.error(str(fault)) from None

    def table(self, homes: Homes, microbatches: int) -> Table:
        """The table whose row c is what coordinate c runs, without idle cells.

        Args:
            homes: where each stage runs.
            microbatches: how many there are.

        Raises:
            ValueError: a schedule that does not fit these; for one of the user's own the message
                marks the cell.
            TypeError: a function that returns neither a table nor rows.
        """
        try:
            if self.named is not None:
                return _renamed(self.named, homes, microbatches)
            table = self._own(homes, microbatches)
            validate(table, homes, microbatches)
            check_progress(table)
        except ValueError as fault:
            raise self.error(str(fault)) from None
        return table.without_idle()

    def _own(self, homes: Homes, microbatches: int) -> Table:
        """The table of the user's own schedule."""
        if isinstance(self.schedule, Table):
            return self.schedule
        if isinstance(self.schedule, Auto):
            return self.schedule.table(homes, microbatches)
        assert callable(self.schedule)
        made = self.schedule(homes.ranks, microbatches, homes.chunks)
        if isinstance(made, str) or not isinstance(made, Table | Iterable):
            told = ", which Table.parse reads" if isinstance(made, str) else ""
            raise TypeError(
                f"{self.source}: order schedule must return a Table or rows, got {made!r}{told}"
            )
        return made if isinstance(made, Table) else Table.of(made)


def _renamed(schedule: Schedule, homes: Homes, microbatches: int) -> Table:
    """The rows of a named schedule, each on the coordinate where its stages are."""
    chunks = schedule.chunks_of(homes.ranks, homes.stages)
    wanted = schedule.homes(homes.ranks, microbatches, chunks)
    names = wanted.renaming(homes)
    if names is None:
        raise ValueError(f"{schedule.name} places stages {_WORDS[schedule.placement]}, got {homes}")
    rows = generate(schedule.name, ranks=homes.ranks, microbatches=microbatches, chunks=chunks).rows
    return Table(rows[names.index(coordinate)] for coordinate in range(homes.ranks))


def order(
    schedule: str | Path | Table | Generator,
    *,
    costs: Costs | str | Path | None = None,
    latency: float | None = None,
    memory: float | Sequence[float] | Memory | None = None,
    effort: float | None = None,
) -> Order:
    """Issue passes in the order of a schedule; see `Order`.

    `costs` may be a file that `Costs.write` or `piper simulate --write-costs` wrote.

    Raises:
        TypeError: options of a search beside a schedule that is not "auto".
        ValueError: a file that holds no costs.
        OSError: a file that cannot be read.
    """
    given = {"costs": costs, "latency": latency, "memory": memory, "effort": effort}
    options = {name: value for name, value in given.items() if value is not None}
    if options and isinstance(schedule, str) and schedule.lower() == _AUTO:
        if isinstance(costs, str | Path):
            options["costs"] = Costs.read(costs)
        return Order(Auto(**options))  # type: ignore[arg-type]  # of the types above
    if options:
        raise TypeError(
            f"order options {', '.join(options)} are for a search, order('auto'), got {schedule!r}"
        )
    return Order(schedule)
