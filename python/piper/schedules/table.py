"""A schedule as data: which action each row of a pipeline issues, in order."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast

Pass = Literal["F", "B", "I", "W"]
"""Forward, whole backward, or its two halves: input gradient and weight gradient."""

_ACTION = re.compile(r"(\d+)([FBIW])(\d+)")
_IDLE = "."


@dataclass(frozen=True, slots=True)
class Action:
    """One pass of one stage on one microbatch; its text is torch's notation, `2F0`."""

    stage: int
    pass_: Pass
    microbatch: int

    def __str__(self) -> str:
        """Torch's notation."""
        return f"{self.stage}{self.pass_}{self.microbatch}"


Cell = Action | None
"""An action, or None for a step in which the row is idle."""


@dataclass(frozen=True)
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
    def parse(cls, text: str | Iterable[str]) -> Table:
        """Read rows of cells separated by blanks, one row a line, `.` for idle; see `lines`.

        Raises:
            ValueError: a cell that is not wholly an action; the message marks it in the table.
        """
        lines = text.strip().splitlines() if isinstance(text, str) else text
        return cls(_parse([line.split() for line in lines]))

    @classmethod
    def read_csv(cls, path: str | Path) -> Table:
        """Read torch's compute-only CSV: a row per rank, a cell per step, empty for idle.

        Raises:
            ValueError: a cell that is not wholly an action; the message marks it in the table.
        """
        with Path(path).open(newline="") as file:
            return cls(_parse([[cell.strip() for cell in row] for row in csv.reader(file)]))

    def write_csv(self, path: str | Path) -> None:
        """Write what `read_csv` reads."""
        with Path(path).open("w", newline="") as file:
            csv.writer(file).writerows(
                [("" if cell is None else str(cell)) for cell in row] for row in self.rows
            )

    def lines(self) -> tuple[str, ...]:
        """One text per row, cells separated by one blank; `parse` reads it back."""
        return tuple(" ".join(row) for row in self._texts())

    def actions(self) -> Iterator[tuple[int, int, Action]]:
        """Every action with its row and step, row by row."""
        for row, cells in enumerate(self.rows):
            for step, cell in enumerate(cells):
                if cell is not None:
                    yield row, step, cell

    def format(self, *, axis: str = "rank", mark: tuple[int, int] | None = None) -> str:
        """The table as aligned text, with `>` `<` around the cell at `mark` (row, step).

        ```
          step   0    1    2    3
        rank 0  0F0  0F1  0B0  0B1
        rank 1  1F0 >1B0< 1F1  1B1
        ```
        """
        return _draw(self._texts(), axis=axis, mark=mark)

    def without_idle(self) -> Table:
        """The same order with the idle cells left out."""
        return Table([cell for cell in row if cell is not None] for row in self.rows)

    def error(self, reason: str, row: int, step: int) -> ValueError:
        """An error about one cell, which its message names and marks in the table."""
        return _error(reason, self._texts(), row, step)

    def _texts(self) -> list[list[str]]:
        return [[_IDLE if cell is None else str(cell) for cell in row] for row in self.rows]

    def __str__(self) -> str:
        """See `format`."""
        return self.format()


def _parse(grid: list[list[str]]) -> Iterator[list[Cell]]:
    for row, texts in enumerate(grid):
        cells: list[Cell] = []
        for step, text in enumerate(texts):
            match = _ACTION.fullmatch(text)
            if match is None and text not in ("", _IDLE):
                reason = f"expected a stage, a pass F, B, I or W, and a microbatch, got {text!r}"
                raise _error(reason, grid, row, step)
            cells.append(match and Action(int(match[1]), cast(Pass, match[2]), int(match[3])))
        yield cells


def _error(reason: str, grid: Sequence[Sequence[str]], row: int, step: int) -> ValueError:
    drawn = _draw(grid, axis="rank", mark=(row, step))
    return ValueError(f"schedule table: rank {row}, step {step}: {reason}\n{drawn}")


def _draw(grid: Sequence[Sequence[str]], *, axis: str, mark: tuple[int, int] | None) -> str:
    steps = [str(step) for step in range(max(map(len, grid)))]
    width = max(len(text) for row in (steps, *grid) for text in row)
    labels = ["step", *(f"{axis} {row}" for row in range(len(grid)))]
    margin = max(map(len, labels))
    lines = []
    for row, texts in enumerate((steps, *grid), start=-1):
        cells = (
            (f">{text}<" if (row, step) == mark else text or _IDLE).center(width + 2)
            for step, text in enumerate(texts)
        )
        lines.append((f"{labels[row + 1]:>{margin}} " + "".join(cells)).rstrip())
    return "\n".join(lines)
