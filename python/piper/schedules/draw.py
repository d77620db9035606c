"""A table as aligned text, for people."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence

__all__ = ["draw"]

_ALONE = re.compile(r"\d+[FBIW]\d+")
_GAP = "..."
_WHOLE = 40  # steps that an error shows in full
_AROUND = 6  # steps to each side of a marked one in a longer table


def draw(
    texts: Sequence[Sequence[str]],
    *,
    axis: str = "rank",
    marks: Collection[tuple[int, int]] = (),
    width: int | None = None,
) -> str:
    """Rows of cells, a column per step, with `>` `<` around the cells at `marks` (row, step).

    Columns are as wide as the widest single action; those with anything longer are wider. With
    `width`, lines have at most so many characters where a column does, and further steps go below.
    With marks, a long table shows only the steps around them.
    """
    length = max([*map(len, texts), *(step + 1 for _, step in marks)])
    labels = ["step", *(f"{axis} {row}" for row in range(len(texts)))]
    margin = max(map(len, labels))
    columns = _columns(texts, marks, _shown(length, marks))
    blocks = []
    for block in _blocks(columns, None if width is None else width - margin - 1):
        lines = zip(labels, *block, strict=True)
        blocks.append("\n".join(_line(label, cells, margin) for label, *cells in lines))
    return "\n\n".join(blocks)


def _line(label: str, cells: Sequence[str], margin: int) -> str:
    return f"{label:>{margin}} {''.join(cells)}".rstrip()


def _shown(length: int, marks: Collection[tuple[int, int]]) -> list[int | None]:
    """The steps to show, None for a gap."""
    if length <= _WHOLE or not marks:
        return list(range(length))
    near = {
        step
        for _, mark in marks
        for step in range(max(mark - _AROUND, 0), min(mark + _AROUND + 1, length))
    }
    shown: list[int | None] = []
    for step in sorted(near):
        if step - 1 not in near and step > 0:
            shown.append(None)
        shown.append(step)
    return shown if length - 1 in near else [*shown, None]


def _columns(
    texts: Sequence[Sequence[str]],
    marks: Collection[tuple[int, int]],
    steps: Sequence[int | None],
) -> Iterator[list[str]]:
    """The padded cells of each shown step, its number first."""
    marked = set(marks)
    single = max((len(text) for row in texts for text in row if _ALONE.fullmatch(text)), default=1)
    narrow = max(single, *(len(str(step)) for step in steps if step is not None))
    for step in steps:
        if step is None:
            yield [_GAP.center(len(_GAP) + 2)] * (len(texts) + 1)
            continue
        cells = [row[step] if step < len(row) else "" for row in texts]
        wide = max(narrow, *map(len, cells)) + 2
        yield [
            str(step).center(wide),
            *(
                (f">{text or '.'}<" if (row, step) in marked else text).center(wide)
                for row, text in enumerate(cells)
            ),
        ]


def _blocks(columns: Iterator[list[str]], width: int | None) -> Iterator[list[list[str]]]:
    """Runs of columns that fit into a width."""
    block: list[list[str]] = []
    used = 0
    for column in columns:
        if width is not None and block and used + len(column[0]) > width:
            yield block
            block, used = [], 0
        block.append(column)
        used += len(column[0])
    yield block
