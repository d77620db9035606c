"""Rows of one layer of experts that are taken for one another.

All rows of a layer that only the run knows the number of have the same counts, and most the same
type: what a forward pass sends and gets back, what it keeps, and the gradients of all these.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import piper
import pytest
from compiled import refusal
from mutations import Value, body_of
from piper.mlir import ir
from small_moe import WIDTH, Experted, batches, captures

CASES = {
    "kept": Experted("1F1B", 0, 2, 2, ep=2),
    "computed again": Experted("1F1B", 0, 2, 2, ep=2, remat=piper.remat("layer", policy="full")),
}
# Of a gradient and something else a sum may be meant: a backward function may add what it likes.
SUM = "aten.add.Tensor"


@dataclass(frozen=True)
class Slip:
    """An operand of an op of a holder takes another value, each by number."""

    holder: int
    op: int
    operand: int
    value: int


@cache
def text_of(case: Experted) -> str:
    shared = captures(layers=1)
    program = shared.compile(case.plan(), batches(case)[0])
    return program.texts["ir/chunks.mlir"]


def holders(module: ir.Module) -> list[ir.Operation]:
    """The training step, chunks and kernels."""
    every = [view.operation for view in module.body.operations]
    named = [op for op in every if op.name in ("piper.step", "piper.chunk", "piper.kernel")]
    return [op for op in named if _symbol(op) != "eval"]


def _symbol(op: ir.Operation) -> str:
    return ir.StringAttr(op.attributes["sym_name"]).value


def values_of(holder: ir.Operation) -> list[Value]:
    """Arguments and results, in order."""
    block = holder.regions[0].blocks[0]
    return [*block.arguments, *(result for op in body_of(holder) for result in op.results)]


def slips(module: ir.Module) -> Iterator[Slip]:
    """Each operand that is such rows, with each other value of its type that is there."""
    for number, holder in enumerate(holders(module)):
        known = len(holder.regions[0].blocks[0].arguments)
        values = values_of(holder)
        for place, op in enumerate(body_of(holder)):
            for index, operand in enumerate(op.operands):
                for position, value in enumerate(values[:known]):
                    if _is_rows(operand) and value.type == operand.type and value != operand:
                        yield Slip(number, place, index, position)
            known += len(op.results)


def _is_rows(value: Value) -> bool:
    kind = value.type
    return isinstance(kind, ir.RankedTensorType) and not kind.has_static_shape


def backward_values(module: ir.Module) -> set[Value]:
    """What depends on a tangent, in the step and in all that it runs."""
    by_name = {_symbol(op): op for op in holders(module)}
    found: set[Value] = set()

    def follow(holder: ir.Operation) -> None:
        for op in body_of(holder):
            name = next(
                (op.attributes[key] for key in ("chunk", "kernel") if key in op.attributes), None
            )
            given = [value in found for value in op.operands]
            if name is None:
                if op.name == "piper.tangent" or any(given):
                    found.update(op.results)
                continue
            called = by_name[ir.FlatSymbolRefAttr(name).value]
            block = called.regions[0].blocks[0]
            found.update(a for a, is_found in zip(block.arguments, given, strict=True) if is_found)
            follow(called)
            returned = body_of(called)[-1].operands
            found.update(r for r, v in zip(op.results, returned, strict=True) if v in found)

    follow(by_name["train"])
    return found


@dataclass(frozen=True)
class Found:
    """A slip in words, whether it mixes both passes, and why it is refused, if it is."""

    where: str
    user: str
    columns: int
    mixes: bool
    reason: str | None


@cache
def found(case: Experted) -> list[Found]:
    text = text_of(case)
    with ir.Context():
        module = ir.Module.parse(text)
        backward = backward_values(module)
        every = [(slip, *_describe(module, slip, backward)) for slip in slips(module)]
    made = []
    for slip, where, user, columns, mixes in every:
        with ir.Context():
            module = ir.Module.parse(text)
            holder = holders(module)[slip.holder]
            body_of(holder)[slip.op].operands[slip.operand] = values_of(holder)[slip.value]
            reason = refusal(module.operation)
        made.append(Found(where, user, columns, mixes, reason))
    return made


def _describe(module: ir.Module, slip: Slip, backward: set[Value]) -> tuple[str, str, int, bool]:
    holder = holders(module)[slip.holder]
    op, value = body_of(holder)[slip.op], values_of(holder)[slip.value]
    operand = op.operands[slip.operand]
    name = op.attributes.get("op_name", None)
    user = ir.StringAttr(name).value if name is not None else op.name.removeprefix("piper.")
    columns = ir.RankedTensorType(operand.type).shape[1]
    mixes = (operand in backward) != (value in backward)
    return holder.name.removeprefix("piper."), user, columns, mixes


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_rows_and_gradients_of_rows_are_told_apart(case: Experted) -> None:
    every = [slip for slip in found(case) if slip.mixes and slip.user != SUM]
    assert len(every) > 50
    assert [slip for slip in every if slip.reason is None] == []


def test_rows_before_experts_and_behind_are_told_apart() -> None:
    """Those that ranks exchange, wherever the step or a chunk hands them on."""
    every = [
        slip
        for slip in found(CASES["kept"])
        if slip.where in ("step", "chunk") and slip.columns == WIDTH
    ]
    assert len(every) > 10
    assert [slip for slip in every if slip.reason is None] == []


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_rows_that_are_right_are_accepted(case: Experted) -> None:
    with ir.Context():
        assert refusal(ir.Module.parse(text_of(case)).operation) is None
