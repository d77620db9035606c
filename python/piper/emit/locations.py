"""Locations for people: source line, module path, directive."""

from __future__ import annotations

import re

from piper.mlir import ir

__all__ = ["describe", "format_location"]

_FILE = re.compile(r'"((?:[^"\\]|\\.)*)":(\d+)(?::\d+)?')
_NAME = re.compile(r'loc\(\s*(?:fused\[)?"((?:[^"\\]|\\.)*)"\(')


def describe(location: ir.Location) -> str:
    """Return ``model.py:12 (layers.0.fc)`` of an op outside programs."""
    text = str(location)
    file = _FILE.search(text)
    name = _NAME.search(text)
    if file is None:
        return "unknown"
    return format_location(file[1], int(file[2]), name[1] if name else "", "")


def format_location(file: str, line: int, module: str, directive: str) -> str:
    """Return ``model.py:12 (layers.0.fc), order``, without the parts that are empty."""
    if not file:
        return directive
    parts = [f"{file}:{line}" + (f" ({module})" if module else "")]
    return ", ".join([*parts, directive] if directive else parts)
