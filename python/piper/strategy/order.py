"""order: what each pipeline coordinate runs when."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from piper.schedules import Table, generate, schedule_name, validate
from piper.strategy.directive import Directive


@dataclass(frozen=True, repr=False)
class Order(Directive):
    """Issue passes in the order of a schedule, given by name or as a table.

    Raises:
        ValueError: unknown name; the message suggests the nearest.
        TypeError: neither a name nor a table.
    """

    schedule: str | Table

    def __post_init__(self) -> None:
        """Check the fields."""
        if isinstance(self.schedule, str):
            object.__setattr__(self, "schedule", schedule_name(self.schedule))
        elif not isinstance(self.schedule, Table):
            raise TypeError(f"order schedule must be a name or a Table, got {self.schedule!r}")

    def op(self) -> str:
        """See `Directive`; the table itself is the ``piper.schedule`` of that name."""
        return "piper.do.order @order"

    def facts(self) -> Mapping[str, object]:
        """See `Directive`."""
        return {"schedule": self.schedule}

    def table(self, homes: Sequence[int], microbatches: int) -> Table:
        """The table whose row c is what coordinate c runs; `homes` is the coordinate of each stage.

        Raises:
            ValueError: a table given by the user that does not fit; the message marks the cell.
        """
        if isinstance(self.schedule, str):
            rows = generate(self.schedule, len(homes), microbatches).rows
            return Table(rows[homes.index(coordinate)] for coordinate in range(len(homes)))
        try:
            validate(self.schedule, len(homes), microbatches, coordinates=homes)
        except ValueError as fault:
            raise self.error(str(fault)) from None
        return self.schedule.without_idle()


def order(schedule: str | Table) -> Order:
    """Issue passes in the order of a named schedule or of a table; see `Order`."""
    return Order(schedule)
