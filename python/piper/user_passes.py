"""Pipelines with users' own passes, which run in Python where the sequence comes to their point.

    builtin.module(piper-record)  =  piper-user-passes{at=chunks}, piper-annotate, piper-split, ...
                                     ^ the directives of this point are called, and marked done

What C++ does at that place is to refuse directives that are not done: docs/user-passes.md.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterator
from typing import Any

from piper.diagnostics import CompileError, diagnostics, place
from piper.mlir import ir
from piper.mlir.dialects import piper
from piper.mlir.passmanager import PassManager
from piper.strategy.user_pass import POINTS, UserFunction, check_options, load_function

__all__ = ["read_options", "run_passes"]

_POINT = re.compile(r"piper-user-passes\{at=(\w+)\}")
_PIPELINE = re.compile(r"builtin\.module\((.*)\)", re.DOTALL)
_BRACKETS = {"(": 1, "{": 1, ")": -1, "}": -1}


def run_passes(module: ir.Module, pipeline: str) -> None:
    """Run a pipeline such as ``builtin.module(piper-record)``, with users' own passes.

    Raises:
        CompileError: a user's pass that cannot be called, raises, returns False, or leaves what is
            not valid; with its name and line.
        ir.MLIRError: another pass that fails.
        ValueError: a pipeline that is not one.
    """
    passes = PassManager.parse(pipeline)
    found = _PIPELINE.fullmatch(str(passes))
    if found is None or not _directives(module):
        passes.run(module.operation)
        return
    for part in _split(found[1]):
        point = _POINT.match(part)
        if point:
            _run_point(module, point[1])
        PassManager.parse(f"builtin.module({part})").run(module.operation)


def read_options(directive: piper.DoUserPassOp) -> dict[str, str | int | float | bool]:
    """Return the options of a directive as Python values."""
    given = directive.operation.attributes
    if "options" not in given:
        return {}
    entries: Any = ir.DictAttr(given["options"])
    named = (entries[index] for index in range(len(entries)))
    return {entry.name: entry.attr.value for entry in named}


def _split(passes: str) -> Iterator[str]:
    """Yield the passes of a list in parts that each begin with a point, if one is there."""
    part: list[str] = []
    for name in _elements(passes):
        if part and _POINT.fullmatch(name):
            yield ",".join(part)
            part = []
        part.append(name)
    if part:
        yield ",".join(part)


def _elements(passes: str) -> Iterator[str]:
    """Yield what commas separate outside of brackets."""
    depth = start = 0
    for index, letter in enumerate(passes):
        depth += _BRACKETS.get(letter, 0)
        if letter == "," and depth == 0:
            yield passes[start:index]
            start = index + 1
    if start < len(passes):
        yield passes[start:]


def _directives(module: ir.Module) -> list[piper.DoUserPassOp]:
    """Return the directives of the module's strategy that are not done, in the order written."""
    strategies = (op for op in module.body.operations if isinstance(op, piper.StrategyOp))
    strategy = next(strategies, None)
    if strategy is None:
        return []
    directives = strategy.body.blocks[0].operations
    return [op for op in directives if isinstance(op, piper.DoUserPassOp) and not op.done]


def _run_point(module: ir.Module, point: str) -> None:
    """Call the passes of a point, unless one of an earlier point was left out.

    They are looked for anew each time, since a pass may change the strategy, too.
    """
    while found := _directives(module):
        directive = min(found, key=lambda op: POINTS.index(op.at.value))
        if directive.at.value != point:
            return
        directive.operation.attributes["done"] = ir.UnitAttr.get()
        _run(module, directive)


def _run(module: ir.Module, directive: piper.DoUserPassOp) -> None:
    name, location = directive.function.value, directive.location
    what = f"{place(location)}: user_pass {name!r} at {directive.at.value!r}"
    options = read_options(directive)
    try:
        function = load_function(name)
        check_options(name, function, options)
    except ValueError as error:
        raise CompileError(f"{place(location)}: {error}") from error.__cause__
    try:
        with ir.Location.fused([location, ir.Location.name("user_pass", location)]):
            returned = function(module, **options)
    except Exception as error:
        raise CompileError(
            f"{what} raised {type(error).__name__} in {_line(error, function)}: {error}"
        ) from error
    if returned is False:
        raise CompileError(f"{what} found nothing to do: it returned False")
    if returned is not None and returned is not True:
        raise CompileError(f"{what} must return True, False or None, got {returned!r}")
    try:
        module.operation.verify()
        PassManager.parse("builtin.module(piper-verify)").run(module.operation)
    except ir.MLIRError as error:  # type: ignore[attr-defined]  # the stub lacks it
        lines = "\n".join(diagnostics(error))
        raise CompileError(f"{what} left a module that is not valid:\n{lines}") from None


def _line(error: BaseException, function: UserFunction) -> str:
    """Return file and line: of the innermost frame in the function's file, if it has one."""
    frames = traceback.extract_tb(error.__traceback__)
    code = getattr(function, "__code__", None)
    own = [frame for frame in frames if code is not None and frame.filename == code.co_filename]
    frame = (own or frames)[-1]
    return f"{frame.filename}:{frame.lineno}"
