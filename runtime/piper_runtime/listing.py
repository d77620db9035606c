"""The lines of rank programs, and what their comments say: cell, source line, module, directive.

layer_1_F0_m0 = r.run(layer_1_F, ..., mb=0)  # 1F0 model.py:37 (layers.1.fc), order
experts_F0_m0 = r.run(experts_F, ..., mb=0)  # 2F0 model.py:52 (experts), order [host_sync]
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from piper_runtime.program import Program

__all__ = ["FLAGS", "Line", "Listing"]

FLAGS = ("host_sync", "dynamic_shape")
"""What a line may say of its instruction: the host waits for the device there, or the size of a
result depends on data."""
_FLAGS = re.compile(rf"\s*\[((?:(?:{'|'.join(FLAGS)})(?:, )?)+)\]$")
_CELL = re.compile(r"(\d+[A-Z]\d+)(?:\s+|$)")
_PLACE = re.compile(r"(?:(?P<source>\S.*?:\d+)(?=[\s,]|$)\s*)?(?:\((?P<module>[^)]*)\))?(?:,\s*)?")
_CHUNK = re.compile(r"^def (\w+)\(.*:\s*# (?:chunk )?(\S+?),", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Line:
    """What a line of a program says of its instruction; what it does not say is empty."""

    place: str
    cell: str = ""
    source: str = ""
    module: str = ""
    directive: str = ""
    flags: tuple[str, ...] = ()


class Listing:
    """The programs of all coordinates, to look lines up in."""

    def __init__(self, program: Program) -> None:
        """Split the texts into lines."""
        self._files = program.manifest.programs
        self._texts = [program.texts[file].splitlines() for file in self._files]
        self._chunks: list[dict[str, str]] = [
            dict(_CHUNK.findall(program.texts[file])) for file in self._files
        ]
        self._known: dict[tuple[int, int], Line] = {}

    def line(self, coordinate: int, number: int) -> Line:
        """Return line ``number``, counted from 1, of the program of a coordinate."""
        key = (coordinate, number)
        known = self._known.get(key)
        if known is None:
            place = f"{self._files[coordinate]}:{number}"
            known = self._known[key] = _parse(place, self._texts[coordinate][number - 1])
        return known

    def chunk(self, coordinate: int, function: str) -> str:
        """Return the chunk that a function of a program is, such as ``layer.1$F``."""
        return self._chunks[coordinate].get(function, function)

    def entry_lines(self, coordinate: int, entry: str) -> range:
        """Return the numbers of the lines of an entry point, one per instruction."""
        lines = self._texts[coordinate]
        start = lines.index(f"def {entry}(r):") + 1
        ends = (n for n in range(start, len(lines)) if not lines[n].startswith(" "))
        return range(start + 1, next(ends, len(lines)) + 1)


def _parse(place: str, text: str) -> Line:
    _, _, comment = text.partition("  # ")
    comment = comment.strip()
    flags = _FLAGS.search(comment)
    if flags is not None:
        comment = comment[: flags.start()]
    cell = _CELL.match(comment)
    if cell is not None:
        comment = comment[cell.end() :]
    where = _PLACE.match(comment)
    assert where is not None  # every part of it may be absent
    return Line(
        place=place,
        cell=cell[1] if cell else "",
        source=where["source"] or "",
        module=where["module"] or "",
        directive=comment[where.end() :].strip(),
        flags=tuple(flags[1].split(", ")) if flags else (),
    )
