"""Programs as rows, read from the one dump that C++ writes, which has columns."""

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
    the size of a result depends on data; and then, of a tensor, its ``bound`` in rows and, where
    that is known, how many to ``expect``.
    """
    text = _piper.dump_programs(module)
    # Reading makes millions of objects and no garbage: collecting meanwhile costs 7 times the work.
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        return [_with_rows(program) for program in json.loads(text)]
    finally:
        if was_enabled:
            gc.enable()


def _with_rows(program: Mapping[str, Any]) -> dict[str, Any]:
    """A program with a row per instruction in place of its columns."""
    ops, locs = program["ops"], program["locs"]
    columns = (program[name] for name in ("op", "in", "after", "out", "loc"))
    rows: list[dict[str, Any]] = [
        {"op": ops[op], "in": values, "after": events, "out": results, "loc": locs[loc]}
        for op, values, events, results, loc in zip(*columns, strict=True)
    ]
    for name, column in program["attributes"].items():
        for row, value in zip(column["rows"], column["values"], strict=True):
            rows[row][name] = value
    return {"name": program["name"], "entry": program["entry"], "at": program["at"], "rows": rows}


def row_flags(row: Mapping[str, Any]) -> list[str]:
    """Return the flags of a row, in the order of ``FLAGS``."""
    return [flag for flag in FLAGS if row.get(flag)]
