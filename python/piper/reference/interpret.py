"""The step of one microbatch, before it is laid out on ranks, as a function of tensors.

The level of buckets still holds one step: reads, runs of chunks, tangents, sums and outputs. It is
run here as in a single process, place by place and microbatch by microbatch, op by op, from the IR:
neither the rank programs nor the kernels that were made of it have a part in it. A single process
holds every bucket whole and adds up all gradients, so what gathers and reduces them does nothing.

Where ranks share out weights, sequences or experts, a chunk is about what one of them has. Then the
step is run for each place (see ``piper_runtime.checking.places``), and an exchange between ranks is one
between the values of places:

    place    tp 0    tp 1                  of dp 0, and again of dp 1
    chunk    F: x0   F: x1                 terms of a sum
    all_reduce       x0 + x1 -> both
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from piper_runtime import compute
from piper_runtime.checking.oracle import exchange_name
from piper_runtime.checking.places import Places
from torch import Tensor

from piper.emit.names import identifier
from piper.emit.symbols import Symbols, name_of
from piper.frontend.attributes import dtype_of_type
from piper.mlir import ir
from piper.mlir.dialects import piper
from piper.reference.chunk_functions import ChunkFunction, Values, read_chunk, read_kernels
from piper.reference.exchanges import Exchange, exchange, read_exchange

__all__ = ["Results", "StepFunction", "read_steps"]

Microbatches = Sequence[Sequence[Mapping[str, Tensor]]]
"""Inputs by name, by shard and microbatch."""
Flats = Sequence[Mapping[str, Tensor]]
"""The flat values of buckets by name, by place."""

CPU = torch.device("cpu")
_HALF = re.compile(r"<@\"?([^\s\"]+)\"? \[([\d, ]*)\] -> \[([\d, ]*)\]>")


@dataclass
class Results:
    """What a call of a step makes."""

    chunks: dict[tuple[str, int, int], tuple[Any, ...]] = field(default_factory=dict)
    """The results of each chunk, by its function's name, microbatch and place."""
    operands: dict[tuple[str, int, int], tuple[Any, ...]] = field(default_factory=dict)
    """What each chunk was run on."""
    tangents: dict[str, Tensor] = field(default_factory=dict)
    outputs: dict[str, Tensor] = field(default_factory=dict)
    gradients: dict[tuple[str, int], Tensor] = field(default_factory=dict)
    """The flat sum of all gradients of each bucket, by place: of its local part."""
    loss_scale: float = 1.0
    """What tangents, and so gradients, are multiplied by; outputs are not."""


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


@dataclass(frozen=True)
class _Sizes:
    counts: tuple[Any, ...]
    outputs: tuple[Any, ...]


@dataclass(frozen=True)
class _Cell:
    """The values of one microbatch at one place."""

    place: int
    microbatch: int
    values: Values


Op = _Run | _Tangent | _Convert | _Sizes | Exchange


class StepFunction:
    """An entry point; ``contributions`` names, by bucket, the chunk results that add to it."""

    def __init__(self, step: piper.StepOp, chunks: Mapping[str, piper.ChunkOp], scope: _Scope):
        """Turn every chunk that the step runs into a function."""
        self.contributions: dict[str, list[tuple[str, int]]] = {}
        self._chunks: dict[str, ChunkFunction] = {}
        self._arguments: dict[str, Any] = {}
        self._reads: list[tuple[str, Any, torch.dtype]] = []
        self._ops: list[Op] = []
        self._sums: dict[str, list[Any]] = {}
        self._reduced: set[Any] = set()  # those that are reduced, before they are added up
        self._outputs: list[tuple[str, Any, Any]] = []
        self._scope, self._sources = scope, chunks
        self._same: dict[Any, Any] = {}  # the values that are gathered or reduced
        # By value: the chunk or exchange that makes it, and halves of the chunk; which result it is.
        self._makers: dict[Any, list[tuple[str, int]]] = {}
        block = step.body.blocks[0]
        for name, argument in zip(step.inputs, block.arguments, strict=True):
            self._arguments[ir.StringAttr(name).value] = argument
        for op in block:
            self._read(op, step)

    def __call__(self, buckets: Flats, inputs: Microbatches, *, loss_scale: float = 1.0) -> Results:
        """Run the step at every place on every microbatch of its shard."""
        results = Results(loss_scale=loss_scale)
        cells = self._cells(buckets, inputs)
        for op in self._ops:
            self._execute(op, cells, results)
        for bucket in self._sums:
            self._add(bucket, cells, results)
        counted = self._counted(cells)
        for name, value, scale in self._outputs:
            total = compute.total(*[cell.values[value] for cell in counted])
            factor = None if scale is None else counted[0].values[scale]
            results.outputs[name] = _scaled(total, factor, loss_scale)
        return results

    # Running.

    def _cells(self, buckets: Flats, inputs: Microbatches) -> list[_Cell]:
        """Return what is there before the first op."""
        cells = []
        for place, flats in enumerate(buckets):
            read = {value: flats[name].to(dtype) for name, value, dtype in self._reads}
            for mb, part in enumerate(inputs[self._scope.places.shard(place)]):
                given = {self._arguments[name]: part[name] for name in self._arguments}
                cells.append(_Cell(place, mb, read | given))
        return cells

    def _counted(self, cells: list[_Cell]) -> list[_Cell]:
        """Return the cells of one place per shard: others have the same losses and counts."""
        firsts = set(self._scope.places.firsts())
        return [cell for cell in cells if cell.place in firsts]

    def _execute(self, op: Op, cells: list[_Cell], results: Results) -> None:
        match op:
            case _Tangent():
                self._start(op, cells, results)
            case Exchange():
                self._exchange(op, cells, results)
            case _Run():
                for cell in cells:
                    self._run(op, cell, results)
            case _Convert():
                for cell in cells:
                    cell.values[op.output] = _converted(cell.values[op.input], op.dtype)
            case _Sizes():
                for cell in cells:
                    found = [compute.sizes(cell.values[count]) for count in op.counts]
                    cell.values.update(zip(op.outputs, found, strict=True))

    def _run(self, run: _Run, cell: _Cell, results: Results) -> None:
        mb, place = cell.microbatch, cell.place
        operands = [cell.values[value] for value in run.inputs]
        made = self._chunks[run.name](*operands)
        cell.values.update(zip(run.outputs, made, strict=True))
        results.chunks[identifier(run.name), mb, place] = made
        results.operands[identifier(run.name), mb, place] = tuple(operands)
        passed: tuple[Any, ...] = ()
        for half in run.halves:
            given = (*(operands[i] for i in half.operands), *passed)
            results.operands[identifier(half.name), mb, place] = given
            found = self._chunks[half.name](*given)
            passed = found[len(half.results) :]
            ours = (*(made[i] for i in half.results), *passed)
            results.chunks[identifier(half.name), mb, place] = ours

    def _exchange(self, op: Exchange, cells: list[_Cell], results: Results) -> None:
        """Exchange values between the places of each group, and call them by their names."""
        by_key = {(cell.microbatch, cell.place): cell for cell in cells}
        names = self._makers.get(op.output, [])
        for mb in sorted({cell.microbatch for cell in cells}):
            for places in dict.fromkeys(
                self._scope.places.group(cell.place, op.axes) for cell in cells
            ):
                group = [by_key[mb, place] for place in places]
                sizes = None if op.sizes is None else [cell.values[op.sizes] for cell in group]
                made = exchange(op, [cell.values[op.input] for cell in group], sizes)
                for cell, value in zip(group, made, strict=True):
                    cell.values[op.output] = value
                    for name, _ in names:
                        results.chunks[name, mb, cell.place] = (value,)

    def _start(self, op: _Tangent, cells: list[_Cell], results: Results) -> None:
        """Make a tangent of the count over all microbatches and shards."""
        count = None
        if op.count is not None:
            count = compute.total(*[cell.values[op.count] for cell in self._counted(cells)])
        coefficient = op.coefficient * results.loss_scale
        tangent = compute.tangent(coefficient, op.dtype, CPU, *([] if count is None else [count]))
        results.tangents[op.loss] = tangent
        for cell in cells:
            cell.values[op.output] = tangent

    def _add(self, bucket: str, cells: list[_Cell], results: Results) -> None:
        """Add what the places of each group, which have terms of one gradient, contribute.

        That is microbatch by microbatch, as ranks do it whose schedule has them in order, and over
        places at the end, or of each term if the step reduces each: in 16 bits another order is
        another number.
        """
        each = all(value in self._reduced for value in self._sums[bucket])
        totals: dict[int, Tensor] = {}
        for mb in sorted({cell.microbatch for cell in cells}):
            for value in self._sums[bucket]:
                terms = self._terms(bucket, value, [c for c in cells if c.microbatch == mb])
                terms = self._reduce(bucket, terms) if each else terms
                for place, term in terms.items():
                    totals[place] = totals[place] + term if place in totals else term
        totals = totals if each else self._reduce(bucket, totals)
        results.gradients.update(((bucket, place), total) for place, total in totals.items())

    def _terms(self, bucket: str, value: Any, cells: Sequence[_Cell]) -> dict[int, Tensor]:
        """Return what one result adds to a flat gradient, by place."""
        terms = {}
        for cell in cells:
            pack = cell.values[value]
            parts = pack if isinstance(pack, tuple) else (pack,)
            flat = torch.cat([part.reshape(-1) for part in parts])
            terms[cell.place] = flat.to(self._scope.gradients[bucket])
        return terms

    def _reduce(self, bucket: str, terms: Mapping[int, Tensor]) -> dict[int, Tensor]:
        """Return sums over the places of each group, by place."""
        axes, totals = self._scope.summed[bucket], {}
        for place in terms:
            group = self._scope.places.group(place, axes)
            first = group[0]
            if place == first:
                totals[place] = compute.total(*[terms[other] for other in group])
            totals[place] = totals[first]
        return totals

    # Reading the IR.

    def _read(self, op: Any, step: piper.StepOp) -> None:
        """Take note of an op of the step."""
        match op:
            case piper.ReadOp():
                self._reads.append((op.symbol.value, op.result, _torch_dtype(op.result)))
            case piper.RunOp():
                self._read_run(op)
            case piper.TangentOp():
                self._ops.append(self._read_tangent(op, step))
            case piper.SumOp():
                assert op.bucket is not None
                contribution = self._root(op.inputs[0])
                self._sums.setdefault(op.bucket.value, []).append(contribution)
                if op.inputs[0] in self._reduced:
                    self._reduced.add(contribution)
                found = self.contributions.setdefault(op.bucket.value, [])
                found += self._makers[contribution]
            case piper.HostWaitOp():
                counts = tuple(self._root(count) for count in op.counts)
                self._ops.append(_Sizes(counts, tuple(op.operation.results)))
            case (
                piper.AllGatherOp()
                | piper.AllReduceOp()
                | piper.ReduceScatterOp()
                | piper.AllToAllOp()
            ):
                self._read_collective(op)
            case piper.ConvertOp():
                self._read_convert(op)
            case piper.OutputOp():
                name = ir.StringAttr(op.operation.attributes["name"]).value
                self._outputs.append((name, op.value, op.scale))
            case _:
                raise ValueError(
                    f"check mode expected read, run, tangent, convert, sum, output, host_wait and "
                    f"collectives in a step, got {op.operation.name}"
                )

    def _read_convert(self, op: piper.ConvertOp) -> None:
        source = self._root(op.value)
        if op.value in self._reduced:
            self._reduced.add(op.result)
        if source in self._makers:
            self._makers[op.result] = self._makers[source]
        self._ops.append(_Convert(source, op.result, _torch_dtype(op.result)))

    def _read_collective(self, op: Any) -> None:
        """Take note of an exchange; what is done to a bucket does nothing here."""
        found = read_exchange(op)
        if found is None:
            self._same[op.operation.results[0]] = self._root(op.operation.operands[0])
            if not isinstance(op, piper.AllGatherOp):
                self._reduced.add(op.operation.results[0])
            return
        found = replace(found, input=self._root(found.input))
        self._makers[found.output] = [
            (exchange_name(found.kind, name, index), 0)
            for name, index in self._makers.get(found.input, [])
        ]
        self._ops.append(found)

    def _read_run(self, op: piper.RunOp) -> None:
        name = op.chunk.value
        attributes = self._sources[name].operation.attributes
        halves = [_read_half(attributes[key]) for key in ("input", "weight") if key in attributes]
        for chunk in (name, *(half.name for half in halves)):
            self._chunks[chunk] = read_chunk(self._sources[chunk], self._scope.kernels)
        inputs = tuple(self._root(value) for value in op.inputs)
        for index, output in enumerate(op.operation.results):
            places = [
                (identifier(half.name), place)
                for half in halves
                for place, of in enumerate(half.results)
                if of == index
            ]
            self._makers[output] = [(identifier(name), index), *places]
        self._ops.append(_Run(name, inputs, tuple(op.operation.results), tuple(halves)))

    def _root(self, value: Any) -> Any:
        """Return the value that a gathered or reduced one is made of."""
        return self._same.get(value, value)

    def _read_tangent(self, op: piper.TangentOp, step: piper.StepOp) -> _Tangent:
        coefficient = float(ir.FloatAttr(op.coeff).value)
        if op.examples is not None:
            examples = ir.IntegerAttr(op.examples).value
            shards = len(self._scope.places.firsts())
            coefficient /= examples * self._scope.microbatches * shards
        return _Tangent(op.loss.value, op.count, op.result, coefficient, _torch_dtype(op.result))


@dataclass(frozen=True)
class _Scope:
    """What chunks need to know of the module."""

    kernels: Mapping[str, Callable[..., Any]]
    gradients: Mapping[str, torch.dtype]
    microbatches: int
    places: Places
    summed: Mapping[str, tuple[str, ...]]


def read_steps(
    text: str, *, microbatches: int, places: Places, summed: Mapping[str, tuple[str, ...]]
) -> dict[str, StepFunction]:
    """Return the entry points of ``ir/cluster.mlir`` by name.

    ``summed`` are, by bucket, the axes along which ranks have terms of its gradient. The functions hold on to the parsed module, whose values name theirs.
    """
    module = ir.Module.parse(text)
    symbols = Symbols(module)
    scope = _Scope(
        kernels=read_kernels(module),
        gradients={
            name_of(bucket): dtype_of_type(_element(bucket.attributes["grad"]))
            for bucket in symbols.all("bucket")
            if "grad" in bucket.attributes
        },
        microbatches=microbatches,
        places=places,
        summed=summed,
    )
    chunks = {op.sym_name.value: op for op in module.body if isinstance(op, piper.ChunkOp)}
    steps = [op for op in module.body if isinstance(op, piper.StepOp)]
    return {step.sym_name.value: StepFunction(step, chunks, scope) for step in steps}


def _torch_dtype(value: ir.Value[ir.Type]) -> torch.dtype:
    return dtype_of_type(ir.RankedTensorType(value.type).element_type)


def _scaled(value: Tensor, factor: Tensor | None, loss_scale: float) -> Tensor:
    """Return an output times its factor, without the loss scale that this has."""
    if factor is None:
        return value
    if loss_scale == 1.0:
        return value * factor
    return (value.double() * factor.double() / loss_scale).to(value.dtype)


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
