"""What is wrong with a strategy, as text: where and what, a line each."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from piper.frontend.attributes import find_line, find_name
from piper.mlir import ir

__all__ = ["CompileError", "diagnostics", "place"]


class CompileError(ValueError):
    """A strategy that does not fit the model; the message gives the source line of each culprit."""


def diagnostics(error: Any) -> Iterator[str]:
    """Yield a line per diagnostic and note of an ``ir.MLIRError``."""
    for diagnostic in error.error_diagnostics:
        yield f"{place(diagnostic.location)}: {diagnostic.message}"
        for note in diagnostic.notes:
            if not note.message.startswith("see current operation"):
                yield f"{place(note.location)}: note: {note.message}"


def place(location: ir.Location) -> str:
    """Return ``model.py:12 (layers.0)``, or as much of it as is known."""
    line = find_line(location)
    name = find_name(location)
    if line is None:
        return name or "the compiler"
    return f"{line[0]}:{line[1]}" + (f" ({name})" if name else "")
