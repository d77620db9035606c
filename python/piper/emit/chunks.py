"""Chunks as Python functions: unpack states, launch kernels, pack gradients."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from piper.emit.layouts import is_flat_pack
from piper.emit.locations import describe
from piper.emit.names import Namer, identifier
from piper.emit.symbols import Symbols
from piper.mlir import ir

__all__ = ["emit_chunk"]


def emit_chunk(chunk: ir.Operation, symbols: Symbols) -> str:
    """Return the text of the function for a ``piper.chunk`` of a module with these symbols."""
    return "\n".join(_Function(chunk, symbols).lines())


class _Function:
    """One function being written."""

    def __init__(self, chunk: ir.Operation, symbols: Symbols) -> None:
        self._chunk, self._symbols = chunk, symbols
        self._symbol = ir.StringAttr(chunk.attributes["sym_name"]).value
        self._block = chunk.regions[0].blocks[0]
        self._namer = Namer()
        self._names: dict[ir.Value[ir.Type], str] = {}

    def lines(self) -> Iterator[str]:
        """Yield the lines, decorator first."""
        body = list(self._block.operations)
        arguments = ", ".join(self._bind(argument, "x") for argument in self._block.arguments)
        yield f"@chunk(results={len(body[-1].operands)})"
        where = describe(self._chunk.location)
        yield f"def {identifier(self._symbol)}({arguments}):  # {self._symbol}, {where}"
        for operation in body:
            yield from (f"    {line}" for line in self._statement(operation.operation))

    def _bind(self, value: ir.Value[ir.Type], wish: str) -> str:
        name = self._namer.fresh(wish)
        self._names[value] = name
        return name

    def _statement(self, op: ir.Operation) -> Iterator[str]:
        match op.name:
            case "piper.unpack":
                yield from self._unpack(op)
            case "piper.launch":
                yield self._launch(op)
            case "piper.pack":
                yield self._pack(op)
            case "piper.relabel":
                self._names[op.results[0]] = self._names[op.operands[0]]
            case "piper.return":
                if op.operands:
                    yield f"return {', '.join(self._names[operand] for operand in op.operands)}"
            case _:
                raise ValueError(
                    f"@{self._symbol} expected unpack, launch, pack, relabel and return, which rank "
                    f"programs can hold, got {op.name}"
                )

    def _unpack(self, op: ir.Operation) -> Iterator[str]:
        """Yield the lines that name the members which are used: views of the flat tensor.

        Several are made by one split, which costs less than a slice each; their shape is given
        where they are read. Behind the members the tensor may have padding.
        """
        flat = self._names[op.operands[0]]
        bucket = ir.FlatSymbolRefAttr(op.attributes["bucket"]).value
        sizes = [_numel(member) for member in op.results]
        used = [_is_used(member) for member in op.results]
        members = zip(self._symbols.members[bucket], op.results, used, strict=True)
        names = [
            self._bind(member, "_".join(state.split(".")[-2:])) if is_used else "_"
            for state, member, is_used in members
        ]
        padding = _numel(op.operands[0]) - sum(sizes)
        if sum(used) > 1:
            targets, parts = ([*names, "_"], [*sizes, padding]) if padding else (names, sizes)
            yield f"{', '.join(targets)} = {flat}.split_with_sizes({parts})"
            for name, member in zip(names, op.results, strict=True):
                self._names[member] = _shaped(name, member)
        elif any(used):
            index = used.index(True)
            start, end = sum(sizes[:index]), sum(sizes[: index + 1])
            part = flat if len(sizes) == 1 and not padding else f"{flat}[{start}:{end}]"
            yield f"{names[index]} = {_shaped(part, op.results[index])}"

    def _pack(self, op: ir.Operation) -> str:
        """Return the line that makes a tuple to accumulate, or a flat tensor for a collective."""
        members = ", ".join(self._names[operand] for operand in op.operands)
        name = self._bind(op.results[0], "g")
        if is_flat_pack(op, self._symbols):
            return f"{name} = flatten({members}, numel={_numel(op.results[0])})"
        return f"{name} = ({members},)"

    def _launch(self, op: ir.Operation) -> str:
        kernel = identifier(ir.FlatSymbolRefAttr(op.attributes["kernel"]).value)
        arguments = ", ".join(self._names[operand] for operand in op.operands)
        results = ", ".join(self._bind(result, "y") for result in op.results)
        return f"{results} = k.{kernel}({arguments})"


def _is_used(value: ir.Value[ir.Type]) -> bool:
    return next(iter(value.uses), None) is not None


def _numel(value: ir.Value[ir.Type]) -> int:
    return prod(ir.RankedTensorType(value.type).shape)


def _shaped(flat: str, member: ir.Value[ir.Type]) -> str:
    """Return a flat part in the shape of its member."""
    shape = ir.RankedTensorType(member.type).shape
    return flat if len(shape) == 1 else f"{flat}.view({_shape(shape)})"


def _shape(shape: list[int]) -> str:
    return ", ".join(map(str, shape)) if shape else "()"
