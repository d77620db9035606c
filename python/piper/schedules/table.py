"""A schedule as data: which cell each row of a pipeline issues, in order."""

from __future__ import annotations

import csv
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from piper.schedules.cell import Action, Cell, Communication, draw_cell, members, parse_cell
from piper.schedules.draw import draw

__all__ = ["Row", "Table"]

Row = str | Iterable[Cell | str]
"""A row in any form that `Table.of` takes: text, or cells, or texts of cells."""


@dataclass(frozen=True, repr=False)
class Table:
    """Rows, one per coordinate of the pipeline's axis, each a list of cells in issue order.

    Only the order within a row has meaning; idle cells are there to be looked at (`with_idle`).

    Raises:
        ValueError: no row, or no action in any row.
    """

    rows: tuple[tuple[Cell, ...], ...]

    def __init__(self, rows: Iterable[Iterable[Cell]]) -> None:
        """Keep the rows as tuples."""
        object.__setattr__(self, "rows", tuple(tuple(row) for row in rows))
        if not any(True for _ in self.actions()):
            raise ValueError("a schedule table must have at least one action, got none")

    @classmethod
    def of(cls, rows: Iterable[Row]) -> Table:
        """Make a table from rows of cells, each a cell or its text; a row may be one text.

        Raises:
            ValueError: a text that is not wholly a cell; the message marks it in the table.
            TypeError: something that is neither a cell nor text.
        """
        grid = [row.split() if isinstance(row, str) else list(_row(row)) for row in rows]
        texts = [[cell if isinstance(cell, str) else _text(cell) for cell in row] for row in grid]
        return cls(_parse(texts))

    @classmethod
    def parse(cls, text: str | Iterable[str]) -> Table:
        """Read rows of cells separated by blanks, one row a line, `.` for idle; see `lines`.

        Raises:
            ValueError: a cell that is not wholly one; the message marks it in the table.
        """
        return cls.of(text.strip().splitlines() if isinstance(text, str) else text)

    @classmethod
    def read_csv(cls, path: str | Path, *, ragged: bool = False) -> Table:
        """Read torch's CSV: a row per rank, a cell per step, empty for idle.

        Rows of different length are refused, since a cell may have been lost, unless `ragged`,
        which takes the shorter ones as idle at their end; torch itself writes such files.

        Raises:
            ValueError: a cell that is not wholly one, or a row of another length than the first;
                the message marks it in the table.
        """
        with Path(path).open(newline="") as file:
            grid = [[cell.strip() for cell in row] for row in csv.reader(file)]
        for row, cells in enumerate(grid):
            if not ragged and len(cells) != len(grid[0]):
                raise _error(
                    f"row {row} expected {len(grid[0])} cells, as row 0 has, got {len(cells)}; "
                    "Table.read_csv(path, ragged=True), or --ragged of piper simulate, takes what "
                    "is missing at the end of a row as idle",
                    grid,
                    row,
                    min(len(cells), len(grid[0])),
                )
        return cls(_parse(grid))

    def write_csv(self, path: str | Path) -> None:
        """Write what `read_csv` reads, shorter rows filled with idle cells."""
        length = max(map(len, self.rows))
        with Path(path).open("w", newline="") as file:
            csv.writer(file).writerows(
                ["" if cell is None else str(cell) for cell in row] + [""] * (length - len(row))
                for row in self.rows
            )

    def lines(self) -> tuple[str, ...]:
        """One text per row, cells separated by one blank; `parse` reads it back."""
        return tuple(" ".join(map(_text, row)) for row in self.rows)

    def actions(self) -> Iterator[tuple[int, int, Action]]:
        """Every action with its row and step, row by row; those of a pair have the same step."""
        for row, cells in enumerate(self.rows):
            for step, cell in enumerate(cells):
                for action in members(cell):
                    yield row, step, action

    def format(
        self,
        *,
        axis: str = "rank",
        marks: Collection[tuple[int, int]] = (),
        width: int | None = None,
    ) -> str:
        """The table as aligned text, with `>` `<` around the cells at `marks` (row, step).

        ```
          step   0    1    2    3
        rank 0  0F0  0F1  0B0  0B1
        rank 1  1F0 >1B0< 1F1  1B1
        ```

        A pair is shown as `0F1&3B0`. `width` is the most characters of a line: what does not fit
        goes below. Of a table longer than 40 steps, only those around the marks are shown, if there
        are any.
        """
        return draw(self._drawn(), axis=axis, marks=marks, width=width)

    def without_idle(self) -> Table:
        """The same order with the idle cells left out."""
        return Table([cell for cell in row if cell is not None] for row in self.rows)

    def compute_only(self) -> Table:
        """The same order with communication left out."""
        return Table(
            [cell for cell in row if not isinstance(cell, Communication)] for row in self.rows
        )

    def check_compute_only(self) -> None:
        """Refuse communication, which Piper derives from the order of actions.

        Raises:
            ValueError: marks the first such cell.
        """
        for row, cells in enumerate(self.rows):
            for step, cell in enumerate(cells):
                if isinstance(cell, Communication):
                    raise self.error(
                        f"{cell} is communication, which Piper derives: use the table's "
                        ".compute_only()",
                        row,
                        step,
                    )

    def error(
        self, reason: str, row: int, step: int, *, also: Collection[tuple[int, int]] = ()
    ) -> ValueError:
        """An error about one cell, which its message names and marks in the table.

        Args:
            reason: what is wrong.
            row: the cell's row; it may lie past the end of the row, where something is missing.
            step: the cell's step.
            also: further cells (row, step) to mark.
        """
        return _error(reason, self._drawn(), row, step, also=also)

    def _drawn(self) -> list[list[str]]:
        return [[draw_cell(cell) for cell in row] for row in self.rows]

    def __str__(self) -> str:
        """See `format`."""
        return self.format()

    def __repr__(self) -> str:
        """The call that makes it."""
        return f"Table.parse({list(self.lines())!r})"


def _row(row: Iterable[Cell | str]) -> Iterator[Cell | str]:
    """The cells of a row of unknown origin."""
    if not isinstance(row, Iterable):
        raise TypeError(f"a row of a table must be text or cells, got {row!r}")
    for cell in row:
        if not isinstance(cell, Cell | str):
            raise TypeError(f"a cell of a table must be text, a cell or None, got {cell!r}")
        yield cell


def _text(cell: Cell) -> str:
    return draw_cell(None) if cell is None else str(cell)


def _parse(grid: Sequence[Sequence[str]]) -> Iterator[list[Cell]]:
    for row, texts in enumerate(grid):
        cells: list[Cell] = []
        for step, text in enumerate(texts):
            try:
                cells.append(parse_cell(text))
            except ValueError as fault:
                raise _error(str(fault), grid, row, step) from None
        yield cells


def _error(
    reason: str,
    texts: Sequence[Sequence[str]],
    row: int,
    step: int,
    *,
    also: Collection[tuple[int, int]] = (),
) -> ValueError:
    drawn = draw(texts, marks=[(row, step), *also])
    return ValueError(f"schedule table: rank {row}, step {step}: {reason}\n{drawn}")
