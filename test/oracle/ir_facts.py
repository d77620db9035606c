"""What tests read from the IR in a program's artifact."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from math import prod

from piper.mlir import ir
from piper_runtime import Program

__all__ = ["count_ops", "count_transfers", "exchanged_shapes", "kept_bytes", "launched_kernels"]

_BITS = {"f64": 64, "f32": 32, "bf16": 16, "f16": 16, "i64": 64, "i32": 32, "i8": 8, "i1": 8}


def count_ops(program: Program, level: str) -> Counter[str]:
    """How many ops of each name the module of a level ("chunks", "cluster", ...) has."""
    counts: Counter[str] = Counter()

    def visit(op: ir.Operation) -> None:
        counts[op.name] += 1

    _walk(program, level, visit)
    return counts


def count_transfers(program: Program, entry: str) -> int:
    """How many values an entry point sends between coordinates in one call."""
    transfers = []

    def visit(op: ir.Operation) -> None:
        if op.name == "piper.transfer" and str(_parent(op).attributes["of"]) == f"@{entry}":
            transfers.append(op.name)

    _walk(program, "cluster", visit)
    return len(transfers)


def exchanged_shapes(program: Program) -> set[tuple[int, ...]]:
    """The shapes of what ranks sum and gather within chunks."""
    found: set[tuple[int, ...]] = set()

    def visit(op: ir.Operation) -> None:
        if op.name in ("piper.all_gather", "piper.all_reduce", "piper.reduce_scatter"):
            found.update(tuple(ir.RankedTensorType(one.type).shape) for one in op.results)

    _walk(program, "chunks", visit)
    return found


def launched_kernels(program: Program, prefix: str) -> dict[str, set[str]]:
    """The kernels of chunks whose name begins with `prefix`, by the part after the ``$``."""
    found: dict[str, set[str]] = {}

    def visit(op: ir.Operation) -> None:
        if op.name != "piper.launch":
            return
        chunk = ir.StringAttr(_parent(op).attributes["sym_name"]).value
        if chunk.startswith(prefix):
            kernels = found.setdefault(chunk.partition("$")[2], set())
            kernels.add(str(op.attributes["kernel"]))

    _walk(program, "chunks", visit)
    return found


def kept_bytes(program: Program, chunk: str) -> dict[str, int]:
    """Bytes of each value that the F pass of a chunk makes or takes, and its B pass takes.

    The keys tell the value: "result 3 tensor<2x8xf64>" or "operand 0 ...".
    """
    passes: dict[str, ir.Operation] = {}

    def visit(op: ir.Operation) -> None:
        if op.name != "piper.run":
            return
        name, _, suffix = str(op.attributes["chunk"]).strip('@"').partition("$")
        if name == chunk and suffix in ("F", "B"):
            passes[suffix] = op
            if len(passes) == 2:
                kept.update(_kept(passes["F"], passes["B"]))

    kept: dict[str, int] = {}
    _walk(program, "chunks", visit)
    assert kept, f"expected chunks {chunk}$F and {chunk}$B in the step"
    return kept


def _kept(forward: ir.Operation, backward: ir.Operation) -> dict[str, int]:
    taken = list(backward.operands)
    values = {f"operand {i}": value for i, value in enumerate(forward.operands)}
    values |= {f"result {i}": value for i, value in enumerate(forward.results)}
    return {
        f"{place} {value.type}": _bytes(value.type)
        for place, value in values.items()
        if value in taken
    }


def _parent(op: ir.Operation) -> ir.Operation:
    parent = op.parent
    assert parent is not None
    return parent


def _bytes(type_: ir.Type) -> int:
    tensor = ir.RankedTensorType(type_)
    return prod(tensor.shape) * _BITS[str(tensor.element_type)] // 8


def _walk(program: Program, level: str, visit: Callable[[ir.Operation], None]) -> None:
    def step(op: ir.Operation) -> ir.WalkResult:
        visit(op)
        return ir.WalkResult.ADVANCE

    with ir.Context():
        module = ir.Module.parse(program.texts[f"ir/{level}.mlir"])
        module.operation.walk(step, ir.WalkOrder.PRE_ORDER)
