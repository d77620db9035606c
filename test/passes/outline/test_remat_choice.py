"""What piper-remat chooses, against all that it could have chosen, on small random chunks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, combinations

from hypothesis import given
from hypothesis import strategies as st
from piper.mlir import ir
from piper.mlir.dialects import piper
from piper.mlir.passmanager import PassManager

FREE = ("x", "w", "p")  # an input, a state and a value of the preamble
OUTSIDE = "e"  # a value of another chunk


@dataclass(frozen=True)
class Op:
    """An op of the forward pass: a result per size in rows, its operands, and if it is heavy."""

    sizes: tuple[int, ...]
    operands: tuple[str, ...]
    heavy: bool


@dataclass(frozen=True)
class Chunk:
    """A chunk: the rows of the value from outside, forward ops, and what the backward uses."""

    outside: int
    ops: tuple[Op, ...]
    used: tuple[str, ...]

    def sizes(self) -> dict[str, int]:
        """Rows of each value that costs something to keep."""
        made = {name: op.sizes[i] for op, names in self.makers() for i, name in enumerate(names)}
        return {OUTSIDE: self.outside, **made}

    def makers(self) -> Iterator[tuple[Op, list[str]]]:
        """Each op with the names of its results."""
        for index, op in enumerate(self.ops):
            yield op, [f"v{index}#{i}" for i in range(len(op.sizes))]

    def text(self) -> str:
        """The chunk as a captured step."""
        sizes = {**self.sizes(), **dict.fromkeys(FREE, 1)}
        lines = [_line("%p", "p", ["x"], sizes, [1], "pure", ("preamble", "P"))]
        lines.append(_line("%e", "e", ["x"], sizes, [self.outside], "pure, heavy", ("b.0", "F")))
        for index, op in enumerate(self.ops):
            facts = "pure, heavy" if op.heavy else "pure"
            name = f"%v{index}:{len(op.sizes)}"
            lines.append(
                _line(name, f"v{index}", op.operands, sizes, op.sizes, facts, ("a.0", "F"))
            )
        for index, value in enumerate(self.used):
            name = f"%g{index}"
            lines.append(_line(name, f"g{index}", [value], sizes, [1], "pure", ("a.0", "B")))
        step = 'piper.step @train phase = captured mesh = @mesh inputs ["x"] dims [0]'
        head = ["piper.mesh @mesh []", f"piper.state @w parameter : {_type(1)}"]
        head += [f"{step} (%x: {_type(1)}) {{", f"  %w = read @w : {_type(1)}"]
        return "\n".join([*head, *lines, "}"])


def _line(
    name: str,
    op: str,
    operands: Sequence[str],
    sizes: dict[str, int],
    made: Sequence[int],
    facts: str,
    tag: tuple[str, str],
) -> str:
    given = ", ".join(_type(sizes[value]) for value in operands)
    results = ", ".join(map(_type, made))
    return (
        f'  {name} = torch "aten.{op}.default"({", ".join(f"%{value}" for value in operands)}) '
        f'facts <{facts}> tag <"{tag[0]}" {tag[1]}> : ({given}) -> ({results})'
    )


def _type(rows: int) -> str:
    return f"tensor<{rows}x4xf32>"


@st.composite
def chunks(draw: st.DrawFn) -> Chunk:
    rows = st.integers(1, 6)
    names = [*FREE, OUTSIDE]
    ops: list[Op] = []
    for index in range(draw(st.integers(1, 7))):
        sizes = tuple(draw(st.lists(rows, min_size=1, max_size=2)))
        recent = st.sampled_from(names[-4:])
        operands = draw(st.lists(recent, min_size=1, max_size=2, unique=True))
        ops.append(Op(sizes, tuple(operands), draw(st.booleans())))
        names += [f"v{index}#{i}" for i in range(len(sizes))]
    used = draw(st.lists(st.sampled_from(names), min_size=1, max_size=4, unique=True))
    return Chunk(draw(rows), tuple(ops), tuple(used))


def best(chunk: Chunk) -> tuple[int, int]:
    """The fewest rows kept, and how few ops are computed again for that: by trying everything."""
    sizes = chunk.sizes()
    subsets = chain.from_iterable(combinations(sizes, n) for n in range(len(sizes) + 1))
    found = []
    for kept in subsets:
        again = _again(chunk, set(kept))
        if again is not None:
            found.append((sum(sizes[name] for name in kept), len(again)))
    return min(found)


def _again(chunk: Chunk, kept: set[str]) -> set[int] | None:
    """The ops that the backward pass computes again, None if it cannot do with what is kept."""
    again: set[int] = set()
    pending = list(chunk.used)
    while pending:
        value = pending.pop()
        if value in kept or value in FREE:
            continue
        if value == OUTSIDE or chunk.ops[_index(value)].heavy:
            return None
        if _index(value) not in again:
            again.add(_index(value))
            pending.extend(chunk.ops[_index(value)].operands)
    return again


def _index(value: str) -> int:
    return int(value[1:].partition("#")[0])


def ops_of(module: ir.Module) -> list[piper.TorchOp]:
    step = next(op for op in module.body if isinstance(op, piper.StepOp))
    return [op for op in step.body.blocks[0] if isinstance(op, piper.TorchOp)]


def is_backward(op: piper.TorchOp) -> bool:
    return str(op.tag).endswith("B>")


def rows_kept(ops: Iterable[piper.TorchOp]) -> int:
    """Rows of the values of forward passes that backward ops use."""
    operands = {operand for op in filter(is_backward, ops) for operand in op.inputs}
    return sum(
        ir.RankedTensorType(operand.type).shape[0]
        for operand in operands
        if isinstance(operand.owner, ir.OpView | ir.Operation)
        and operand.owner.name == "piper.torch"
        and str(operand.owner.attributes["tag"]).endswith(" F>")
    )


def computed(ops: Iterable[piper.TorchOp]) -> list[str]:
    """What each use of the backward pass computes, from inputs on, as one expression."""
    texts: dict[ir.Value[ir.Type], str] = {}
    uses = []
    for op in ops:
        name = op.op_name.value
        text = f"{name}({', '.join(texts.get(value, value.get_name()) for value in op.inputs)})"
        for index, result in enumerate(op.operation.results):
            texts[result] = f"{text}#{index}"
        if name.startswith("aten.g"):
            uses.append(text)
    return uses


@given(chunks())
def test_the_fewest_bytes_are_kept_and_nothing_is_computed_in_vain(chunk: Chunk) -> None:
    with ir.Context():
        before, after = ir.Module.parse(chunk.text()), ir.Module.parse(chunk.text())
        PassManager.parse("builtin.module(piper-remat)").run(after.operation)
        old, new = ops_of(before), ops_of(after)
        assert computed(new) == computed(old)
        assert (rows_kept(new), len(new) - len(old)) == best(chunk), after
        assert rows_kept(new) <= rows_kept(old)
