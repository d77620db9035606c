"""Programs as rows, read from the one dump that C++ writes."""

from __future__ import annotations

import gc
import json
from collections.abc import Mapping
from typing import Any

from piper_runtime.listing import FLAGS

from piper.mlir import ir
from piper.mlir._mlir_libs import _piper

__all__ = ["read_programs", "row_flags"]


def read_programs(module: ir.Module) -> list[dict[str, Any]]:
    """Return every ``piper.program`` of a module: name, entry, at, and rows.

    A row has the op, its operands ``in`` and ``after`` and results ``out`` as numbers that are
    unique in the program, its attributes and optional operands by name, and ``loc``: file, line,
    module, directive. It has each of ``FLAGS`` that holds: the host waits for the device there, or
    the size of a result depends on data.
    """
    text = _piper.dump_programs(module)
    # Reading makes millions of objects and no garbage: collecting meanwhile costs 7 times the work.
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        programs: list[dict[str, Any]] = json.loads(text)
    finally:
        if was_enabled:
            gc.enable()
    return programs


def row_flags(row: Mapping[str, Any]) -> list[str]:
    """Return the flags of a row, in the order of ``FLAGS``."""
    return [flag for flag in FLAGS if row.get(flag)]
