"""The dump of programs says of every instruction what the IR says, in columns and again in rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import piper
import pytest
from compiled_mlp import compiled, sgd
from piper.emit.dump import read_programs
from piper.mlir import ir

SPARSE = ("chunk", "mb", "stream", "peer", "bucket", "norm", "onto", "clip", "dtype", "shape")
"""Some of what only some rows have."""


@pytest.fixture(scope="module")
def module() -> Iterator[ir.Module]:
    program = compiled("1F1B", pp=2, microbatches=2, dp=2, update=piper.update(sgd, clip=1.0))
    with ir.Context():
        yield ir.Module.parse(program.texts["ir/programs.mlir"])


def plain(attribute: ir.Attribute) -> Any:
    """An attribute as JSON has it; None for what the dump leaves out."""
    if isinstance(attribute, ir.FlatSymbolRefAttr | ir.StringAttr | ir.IntegerAttr | ir.FloatAttr):
        return attribute.value
    text = str(attribute)  # such as #piper.slot<value>
    return text[text.index("<") + 1 : -1] if text.startswith("#piper.slot") else None


def read_row(op: ir.Operation, numbers: dict[ir.Value[ir.Type], int]) -> dict[str, Any]:
    """What the bindings say of an instruction, but for its location and optional operands."""
    is_event = {operand: str(operand.type) == "!piper.event" for operand in op.operands}
    row = {
        "op": op.name.removeprefix("piper."),
        "in": [numbers[operand] for operand in op.operands if not is_event[operand]],
        "after": [numbers[operand] for operand in op.operands if is_event[operand]],
        "out": [numbers.setdefault(result, len(numbers)) for result in op.results],
    }
    attributes = {name: plain(op.attributes[name]) for name in op.attributes}
    return row | {name: value for name, value in attributes.items() if value is not None}


def test_every_row_is_what_the_bindings_say(module: ir.Module) -> None:
    dumped = read_programs(module)
    programs = [op for op in module.body.operations if op.operation.name == "piper.program"]
    assert [program["name"] for program in dumped] == [
        ir.StringAttr(op.operation.attributes["sym_name"]).value for op in programs
    ]
    assert [(program["entry"], program["at"]) for program in dumped] == [
        ("train", 0),
        ("train", 1),
        ("eval", 0),
        ("eval", 1),
    ]
    seen: set[str] = set()
    whole = 0
    for program, op in zip(dumped, programs, strict=True):
        numbers: dict[ir.Value[ir.Type], int] = {}
        instructions = op.operation.regions[0].blocks[0].operations
        assert len(program["rows"]) == len(instructions)
        for row, view in zip(program["rows"], instructions, strict=True):
            expected = read_row(view.operation, numbers)
            assert {name: row[name] for name in expected} == expected
            file, line, path, directive = row["loc"]
            said = str(view.operation.location)
            assert f'"{file}":{line}:' in said if file else line == 0
            assert path in said
            assert directive in said
            whole += all(row["loc"])
            seen |= row.keys()
    assert seen >= set(SPARSE)
    assert whole > 20
