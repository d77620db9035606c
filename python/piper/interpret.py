"""The step of one microbatch, before it is laid out on ranks, as a function of tensors.

The level of buckets still holds one step: reads, runs of chunks, tangents, sums and outputs. It is
run here as in a single process, shard by shard and microbatch by microbatch, op by op, from the IR:
neither the rank programs nor the kernels that were made of it have a part in it. A single process
holds every bucket whole and adds up all gradients, so what gathers and reduces them does nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import torch
from piper_runtime import compute
from torch import Tensor

from piper.emit.names import identifier
from piper.emit.symbols import Symbols, name_of
from piper.frontend.attributes import dtype_of_type
from piper.frontend.exporter import export_kernel
from piper.mlir import ir
from piper.mlir.dialects import piper

__all__ = ["Results", "StepFunction", "read_steps"]

Values = dict[Any, Any]
Action = Callable[[Values], None]
Microbatches = Sequence[Sequence[Mapping[str, Tensor]]]
"""Inputs by name, by shard and microbatch."""

CPU = torch.device("cpu")
_VIEWS = (torch.ops.aten.view.default, torch.ops.aten._unsafe_view.default)
_HALF = re.compile(r"<@\"?([^\s\"]+)\"? \[([\d, ]*)\] -> \[([\d, ]*)\]>")


@dataclass
class Results:
    """What a call of a step makes."""

    chunks: dict[tuple[str, int, int], tuple[Any, ...]] = field(default_factory=dict)
    """The results of each chunk, by its function's name, microbatch and shard."""
    operands: dict[tuple[str, int, int], tuple[Any, ...]] = field(default_factory=dict)
    """What each chunk was run on."""
    tangents: dict[str, Tensor] = field(default_factory=dict)
    outputs: dict[str, Tensor] = field(default_factory=dict)
    gradients: dict[str, Tensor] = field(default_factory=dict)
    """The flat sum of all gradients of each bucket."""


@dataclass(frozen=True)
class _Chunk:
    """A chunk as a function: its arguments, what it does, what it returns."""

    arguments: Sequence[Any]
    actions: Sequence[Action]
    returned: Sequence[Any]

    def __call__(self, *operands: Any) -> tuple[Any, ...]:
        values: Values = dict(zip(self.arguments, operands, strict=True))
        for act in self.actions:
            act(values)
        return tuple(values[value] for value in self.returned)


@dataclass(frozen=True)
class _Half:
    """The input or weight part of a backward chunk, by positions of the whole's values."""

    name: str
    operands: tuple[int, ...]
    results: tuple[int, ...]


@dataclass(frozen=True)
class _Run:
    """A run of a chunk in the step, and the halves that programs may run in its place."""

    name: str
    inputs: tuple[Any, ...]
    outputs: tuple[Any, ...]
    halves: tuple[_Half, ...]


@dataclass(frozen=True)
class _Tangent:
    loss: str
    count: Any
    output: Any
    coefficient: float
    dtype: torch.dtype


@dataclass(frozen=True)
class _Convert:
    input: Any
    output: Any
    dtype: torch.dtype


class StepFunction:
    """An entry point; ``contributions`` names, by bucket, the chunk results that add to it."""

    def __init__(self, step: piper.StepOp, chunks: Mapping[str, piper.ChunkOp], scope: _Scope):
        """Turn every chunk that the step runs into a function."""
        self.contributions: dict[str, list[tuple[str, int]]] = {}
        self._chunks: dict[str, _Chunk] = {}
        self._arguments: dict[str, Any] = {}
        self._reads: list[tuple[str, Any]] = []
        self._ops: list[_Run | _Tangent | _Convert] = []
        self._sums: list[tuple[str, Any]] = []
        self._outputs: list[tuple[str, Any, Any]] = []
        self._scope, self._sources = scope, chunks
        self._same: dict[Any, Any] = {}  # the values that are gathered or reduced
        self._makers: dict[Any, tuple[_Run, int]] = {}
        block = step.body.blocks[0]
        for name, argument in zip(step.inputs, block.arguments, strict=True):
            self._arguments[ir.StringAttr(name).value] = argument
        for op in block:
            self._read(op, step)

    def __call__(self, buckets: Mapping[str, Tensor], inputs: Microbatches) -> Results:
        """Run the step on every microbatch of every shard; ``buckets`` are flat values by name."""
        results = Results()
        shared = {value: buckets[name] for name, value in self._reads}
        cells: list[tuple[int, int, Values]] = [
            (shard, mb, shared | {self._arguments[name]: part[name] for name in self._arguments})
            for shard, parts in enumerate(inputs)
            for mb, part in enumerate(parts)
        ]
        for op in self._ops:
            if isinstance(op, _Tangent):
                self._start(op, cells, results)
                continue
            for shard, mb, values in cells:
                if isinstance(op, _Convert):
                    values[op.output] = _converted(values[op.input], op.dtype)
                else:
                    self._run(op, shard, mb, values, results)
        for bucket, value in self._sums:
            self._add(bucket, [values[value] for _, _, values in cells], results)
        for name, value, scale in self._outputs:
            parts = [v[value] if scale is None else v[value] * v[scale] for _, _, v in cells]
            results.outputs[name] = torch.stack(parts).sum()
        return results

    # Running.

    def _run(self, run: _Run, shard: int, mb: int, values: Values, results: Results) -> None:
        operands = [values[value] for value in run.inputs]
        made = self._chunks[run.name](*operands)
        values.update(zip(run.outputs, made, strict=True))
        results.chunks[identifier(run.name), mb, shard] = made
        results.operands[identifier(run.name), mb, shard] = tuple(operands)
        passed: tuple[Any, ...] = ()
        for half in run.halves:
            given = (*(operands[i] for i in half.operands), *passed)
            results.operands[identifier(half.name), mb, shard] = given
            found = self._chunks[half.name](*given)
            passed = found[len(half.results) :]
            ours = (*(made[i] for i in half.results), *passed)
            results.chunks[identifier(half.name), mb, shard] = ours

    def _start(self, op: _Tangent, cells: list[tuple[int, int, Values]], results: Results) -> None:
        """Make a tangent of the count over all microbatches and shards."""
        count = None
        if op.count is not None:
            count = compute.total(*[values[op.count] for _, _, values in cells])
        tangent = compute.tangent(
            op.coefficient, op.dtype, CPU, *([] if count is None else [count])
        )
        results.tangents[op.loss] = tangent
        for _, _, values in cells:
            values[op.output] = tangent

    def _add(self, bucket: str, packs: Sequence[Any], results: Results) -> None:
        dtype = self._scope.gradients[bucket]
        for pack in packs:
            parts = pack if isinstance(pack, tuple) else (pack,)
            flat = torch.cat([part.reshape(-1) for part in parts]).to(dtype)
            known = results.gradients.get(bucket)
            results.gradients[bucket] = flat if known is None else known + flat

    # Reading the IR.

    def _read(self, op: Any, step: piper.StepOp) -> None:
        """Take note of an op of the step."""
        match op:
            case piper.ReadOp():
                self._reads.append((op.symbol.value, op.result))
            case piper.RunOp():
                run = self._read_run(op)
                self._makers.update((out, (run, i)) for i, out in enumerate(run.outputs))
                self._ops.append(run)
            case piper.TangentOp():
                self._ops.append(self._read_tangent(op, step))
            case piper.SumOp():
                assert op.bucket is not None
                contribution = self._root(op.inputs[0])
                self._sums.append((op.bucket.value, contribution))
                self._contribute(op.bucket.value, *self._makers[contribution])
            case piper.AllGatherOp() | piper.AllReduceOp() | piper.ReduceScatterOp():
                self._same[op.operation.results[0]] = self._root(op.operation.operands[0])
            case piper.ConvertOp():
                self._read_convert(op)
            case piper.OutputOp():
                name = ir.StringAttr(op.operation.attributes["name"]).value
                self._outputs.append((name, op.value, op.scale))
            case _:
                raise ValueError(
                    f"check mode expected read, run, tangent, convert, sum, output and "
                    f"collectives of buckets in a step, got {op.operation.name}"
                )

    def _read_convert(self, op: piper.ConvertOp) -> None:
        source = self._root(op.value)
        if source in self._makers:
            self._makers[op.result] = self._makers[source]
        self._ops.append(_Convert(source, op.result, dtype_of_type(_item(op.result))))

    def _read_run(self, op: piper.RunOp) -> _Run:
        name = op.chunk.value
        attributes = self._sources[name].operation.attributes
        halves = [_read_half(attributes[key]) for key in ("input", "weight") if key in attributes]
        for chunk in (name, *(half.name for half in halves)):
            self._chunks[chunk] = _read_chunk(self._sources[chunk], self._scope)
        inputs = tuple(self._root(value) for value in op.inputs)
        return _Run(name, inputs, tuple(op.operation.results), tuple(halves))

    def _root(self, value: Any) -> Any:
        """Return the value that a gathered or reduced one is made of."""
        return self._same.get(value, value)

    def _read_tangent(self, op: piper.TangentOp, step: piper.StepOp) -> _Tangent:
        coefficient = float(ir.FloatAttr(op.coeff).value)
        if op.examples is not None:
            examples = ir.IntegerAttr(op.examples).value
            coefficient /= examples * self._scope.microbatches * self._scope.shards
        dtype = dtype_of_type(ir.RankedTensorType(op.result.type).element_type)
        return _Tangent(op.loss.value, op.count, op.result, coefficient, dtype)

    def _contribute(self, bucket: str, run: _Run, index: int) -> None:
        """Note a result that adds to a bucket, and that of a half which stands for it."""
        found = self.contributions.setdefault(bucket, [])
        found.append((identifier(run.name), index))
        for half in run.halves:
            places = enumerate(half.results)
            found += [(identifier(half.name), place) for place, of in places if of == index]


@dataclass(frozen=True)
class _Scope:
    """What chunks need to know of the module."""

    kernels: Mapping[str, Callable[..., Any]]
    members: Mapping[str, tuple[str, ...]]
    gradients: Mapping[str, torch.dtype]
    microbatches: int
    shards: int


def read_steps(text: str, *, microbatches: int, shards: int) -> dict[str, StepFunction]:
    """Return the entry points of ``ir/cluster.mlir`` by name.

    The functions hold on to the parsed module, whose values name theirs.
    """
    module = ir.Module.parse(text)
    symbols = Symbols(module)
    scope = _Scope(
        kernels={
            op.sym_name.value: _callable(op) for op in module.body if isinstance(op, piper.KernelOp)
        },
        members=symbols.members,
        gradients={
            name_of(bucket): dtype_of_type(_element(bucket.attributes["grad"]))
            for bucket in symbols.all("bucket")
            if "grad" in bucket.attributes
        },
        microbatches=microbatches,
        shards=shards,
    )
    chunks = {op.sym_name.value: op for op in module.body if isinstance(op, piper.ChunkOp)}
    steps = [op for op in module.body if isinstance(op, piper.StepOp)]
    return {step.sym_name.value: StepFunction(step, chunks, scope) for step in steps}


def _item(value: ir.Value[ir.Type]) -> ir.Type:
    return ir.RankedTensorType(value.type).element_type


def _converted(value: Any, dtype: torch.dtype) -> Any:
    """Return a tensor, or a pack of tensors, in a dtype."""
    if isinstance(value, tuple):
        return tuple(part.to(dtype) for part in value)
    return value.to(dtype)


def _element(attribute: ir.Attribute) -> ir.Type:
    return ir.RankedTensorType(ir.TypeAttr(attribute).value).element_type


def _read_half(attribute: ir.Attribute) -> _Half:
    found = _HALF.search(str(attribute))
    assert found is not None, attribute
    operands, results = (tuple(map(int, re.findall(r"\d+", found[i]))) for i in (2, 3))
    return _Half(found[1], operands, results)


def _read_chunk(chunk: piper.ChunkOp, scope: _Scope) -> _Chunk:
    block = chunk.body.blocks[0]
    actions: list[Action] = []
    for op in block:
        match op:
            case piper.UnpackOp():
                actions.append(_unpack(op))
            case piper.LaunchOp():
                actions.append(_launch(op, scope.kernels[op.kernel.value]))
            case piper.PackOp():
                actions.append(_pack(tuple(op.members), op.result))
            case piper.RelabelOp():
                actions.append(_copy(op.operation.operands[0], op.result))
            case piper.ReturnOp():
                return _Chunk(tuple(block.arguments), actions, tuple(op.values))
            case _:
                raise ValueError(
                    f"check mode expected unpack, launch, pack, relabel and return in "
                    f"@{chunk.sym_name.value}, got {op.operation.name}"
                )
    raise AssertionError("a chunk ends in a return")


def _unpack(op: piper.UnpackOp) -> Action:
    flat, members = op.value, tuple(op.operation.results)
    shapes = [tuple(ir.RankedTensorType(member.type).shape) for member in members]

    def act(values: Values) -> None:
        parts = values[flat].split([prod(shape) for shape in shapes])
        for member, part, shape in zip(members, parts, shapes, strict=True):
            values[member] = part.view(shape)

    return act


def _launch(op: piper.LaunchOp, kernel: Callable[..., Any]) -> Action:
    inputs, outputs = tuple(op.inputs), tuple(op.operation.results)

    def act(values: Values) -> None:
        made = kernel(*[values[value] for value in inputs])
        values.update(zip(outputs, made if len(outputs) > 1 else (made,), strict=True))

    return act


def _pack(members: Sequence[Any], output: Any) -> Action:
    def act(values: Values) -> None:
        values[output] = tuple(values[member] for member in members)

    return act


def _copy(source: Any, output: Any) -> Action:
    def act(values: Values) -> None:
        values[output] = values[source]

    return act


def _callable(kernel: piper.KernelOp) -> Callable[..., Any]:
    """A kernel whose views take what has no such view: values here may be strided in another way
    than those that it was captured from.
    """
    module = export_kernel(kernel)
    for node in module.graph.nodes:
        if node.target in _VIEWS:
            node.target = torch.ops.aten.reshape.default
    module.recompile()
    return module
