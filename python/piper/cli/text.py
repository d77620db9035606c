"""Numbers and tables as people read them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

__all__ = ["count", "plural", "table"]


def count(number: int) -> str:
    """Return ``96``, ``201.4k``, ``1.3G``: at most one decimal, in powers of 1000."""
    size, unit = float(number), ""
    for unit in ("", "k", "M", "G", "T", "P"):
        if size < 1000 or unit == "P":
            break
        size /= 1000
    return f"{number}" if not unit else f"{size:.1f}{unit}"


def plural(number: int, what: str, several: str = "") -> str:
    """Return ``1 rank`` or ``2 ranks``."""
    return f"{number} {what if number == 1 else several or f'{what}s'}"


def table(rows: Sequence[Sequence[str]], *, numbers: int = 0) -> Iterator[str]:
    """Yield the rows as indented lines of aligned columns; the last ``numbers`` are to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [
            text.rjust(width) if place >= len(row) - numbers else text.ljust(width)
            for place, (text, width) in enumerate(zip(row, widths, strict=True))
        ]
        yield f"  {'  '.join(cells)}".rstrip()
