"""What simulation needs of a compiled program: its instructions, and what chunks and kernels cost.

Instructions come from the one dump that C++ writes; the rest is read from the symbols of the last
level of the IR, of which there are few.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from piper_runtime import Program
from piper_runtime.manifest import BucketSpec, Manifest
from piper_runtime.mesh import CommSpec
from piper_runtime.names import dtype_name

from piper.emit.layouts import is_flat_pack
from piper.emit.symbols import Symbols, name_of
from piper.frontend.attributes import dtype_of_type
from piper.mlir import ir
from piper.schedules import Action, Pass
from piper.simulate.replication import Replication, read_replications
from piper.simulate.sizes import Rows, Size, dynamic_rows, is_dynamic, type_bytes, type_size

__all__ = [
    "PROGRAMS",
    "ChunkFacts",
    "KernelFacts",
    "ProgramFacts",
    "Row",
    "name_place",
    "read_chunks",
    "read_kernels",
]

Row = Mapping[str, Any]
"""An instruction as the dump has it: see `piper.emit.dump`."""

PROGRAMS = "ir/programs.mlir"
"""The text of a program that is its last level of IR."""

_COST = re.compile(r"flops = (\d+), bytes = (\d+)")
_FLOPS = re.compile(r"\bflops = (\d+)")


@dataclass(frozen=True, slots=True)
class KernelFacts:
    """One launch of a kernel.

    `bytes` counts arguments and results. `dtype` is torch's name of the floating dtype that most of
    these bytes have, or empty. `temporaries` are the bytes that are alive at most inside, beyond
    arguments and results, if every op makes a new tensor; workspaces inside of ops are not known.

    Where arguments have rows that are known at run time only, these are `rows`, those of the launch
    with most of them; `bytes` and `flops` are then of what is expected, `temporaries` and `results`
    of the bound. `dynamic` is the part of the FLOPs, or without any of the bytes, that such rows
    have.
    """

    flops: int
    bytes: int
    dtype: str
    temporaries: int
    results: int
    rows: Rows | None = None
    dynamic: float = 0.0


@dataclass(frozen=True, slots=True)
class ChunkFacts:
    """One run of a chunk: `results` has the bytes of each, `temporaries` are as those of a kernel."""

    name: str
    stage: int | None
    pass_: str
    kernels: tuple[str, ...]
    results: tuple[Size, ...]
    temporaries: int

    def action(self, microbatch: int) -> Action | None:
        """The action of the table that a run belongs to; None for a preamble."""
        if self.stage is None:
            return None
        letter: Pass = self.pass_  # type: ignore[assignment]  # what has a stage has such a pass
        return Action(self.stage, letter, microbatch)


@dataclass(frozen=True)
class ProgramFacts:
    """A compiled program: `programs[entry][coordinate]` are rows in issue order."""

    manifest: Manifest
    axis: str
    kernels: Mapping[str, KernelFacts]
    chunks: Mapping[str, ChunkFacts]
    programs: Mapping[str, Mapping[int, Sequence[Row]]]
    replications: Mapping[str, Replication] = field(default_factory=dict)  # by bucket

    @classmethod
    def read(cls, program: Program | str | Path) -> ProgramFacts:
        """Read a program, or the directory of one.

        Raises:
            FileNotFoundError: there is no program in the directory.
            ValueError: the program has no IR.
        """
        if not isinstance(program, Program):
            program = Program.open(program)
        if PROGRAMS not in program.texts:
            raise ValueError(f"expected a program with a file {PROGRAMS}, got {program.path}")
        with ir.Context():
            module = ir.Module.parse(program.texts[PROGRAMS])
            return cls.of(program.manifest, Symbols(module))

    @classmethod
    def of(cls, manifest: Manifest, symbols: Symbols) -> ProgramFacts:
        """Collect what the last level of the IR says beside the manifest made from it."""
        kernels = read_kernels(symbols)
        programs: dict[str, dict[int, Sequence[Row]]] = {}
        for dumped in symbols.programs:
            programs.setdefault(dumped["entry"], {})[dumped["at"]] = dumped["rows"]
        return cls(
            manifest=manifest,
            axis=symbols.axis,
            kernels=kernels,
            chunks=read_chunks(symbols, kernels),
            programs=programs,
            replications=read_replications(symbols),
        )

    def entry(self, name: str) -> Mapping[int, Sequence[Row]]:
        """The programs of an entry point by coordinate.

        Raises:
            ValueError: no such entry point; the message lists all.
        """
        if name not in self.programs:
            raise ValueError(f"entry point must be one of {list(self.programs)}, got {name!r}")
        return self.programs[name]

    def bucket(self, name: str) -> BucketSpec:
        """A bucket of the manifest."""
        return next(bucket for bucket in self.manifest.buckets if bucket.name == name)

    def action(self, row: Row) -> Action | None:
        """The action of the table that an instruction runs; None for all but chunks with stage."""
        return self.chunks[row["chunk"]].action(row["mb"]) if row["op"] == "run" else None

    def axes(self, comm: CommSpec) -> str:
        """The axes along which members of a communicator differ: `dp`, `pp` or `pp x dp`."""
        unrolled = [self.axis] if self.axis and len(comm.coordinates) > 1 else []
        return " x ".join([*unrolled, *comm.axes]) or "none"

    def place(self, coordinate: int) -> str:
        """`pp 0`, or `all ranks` without an unrolled axis."""
        return name_place(self.axis, coordinate)


def name_place(axis: str, coordinate: int) -> str:
    """Return `pp 0`, or `all ranks` without an unrolled axis."""
    return f"{axis} {coordinate}" if axis else "all ranks"


def read_kernels(symbols: Symbols) -> dict[str, KernelFacts]:
    """Every kernel of a module by name."""
    rows = _launched_rows(symbols)
    return {name_of(op): _kernel(op, rows.get(name_of(op))) for op in symbols.all("kernel")}


def read_chunks(symbols: Symbols, kernels: Mapping[str, KernelFacts]) -> dict[str, ChunkFacts]:
    """Every chunk of a module by name."""
    return {name: _chunk(name, op, kernels, symbols) for name, op in symbols.chunks.items()}


def _launched_rows(symbols: Symbols) -> dict[str, Rows]:
    """The rows, known at run time only, of the kernels that have such; their types say no bounds."""
    found: dict[str, Rows] = {}
    for chunk in symbols.chunks.values():
        for view in chunk.regions[0].blocks[0].operations:
            op = view.operation
            if op.name != "piper.launch":
                continue
            name = ir.FlatSymbolRefAttr(op.attributes["kernel"]).value
            for value in (*op.operands, *op.results):
                rows = dynamic_rows(value.type)
                if rows is not None and rows.expect >= found.get(name, rows).expect:
                    found[name] = rows
    return found


def _kernel(kernel: ir.Operation, rows: Rows | None) -> KernelFacts:
    cost = _COST.search(str(kernel.attributes.get("cost")))
    signature = _signature(kernel)
    types = [*signature.inputs, *signature.results]
    expect, bound = (rows.expect, rows.bound) if rows else (0, 0)
    results = sum(type_bytes(type_, rows=bound) for type_ in signature.results)
    whole = sum(type_bytes(type_, rows=expect) for type_ in types)
    return KernelFacts(
        flops=int(cost[1]) if cost else 0,
        bytes=int(cost[2]) if cost and not rows else whole,
        dtype=_main_dtype(types, expect),
        temporaries=max(0, _most_alive(kernel, bound) - results),
        results=results,
        rows=rows,
        dynamic=_dynamic_share(kernel, types, expect) if rows else 0.0,
    )


def _dynamic_share(kernel: ir.Operation, types: Sequence[ir.Type], expect: int) -> float:
    """Which part of the FLOPs of a kernel is for rows that are known at run time only."""
    flops = {False: 0, True: 0}
    for view in kernel.regions[0].blocks[0].operations:
        op = view.operation
        found = _FLOPS.search(str(op.attributes.get("facts", "")))
        values = (*op.operands, *op.results)
        flops[any(is_dynamic(value.type) for value in values)] += int(found[1]) if found else 0
    if not any(flops.values()):
        for type_ in types:
            flops[is_dynamic(type_)] += type_bytes(type_, rows=expect)
    return flops[True] / max(1, sum(flops.values()))


def _chunk(
    name: str, chunk: ir.Operation, kernels: Mapping[str, KernelFacts], symbols: Symbols
) -> ChunkFacts:
    body = [view.operation for view in chunk.regions[0].blocks[0].operations]
    launched = [
        ir.FlatSymbolRefAttr(op.attributes["kernel"]).value
        for op in body
        if op.name == "piper.launch"
    ]
    results = tuple(map(type_size, _signature(chunk).results))
    alive = most = 0
    for kernel in (kernels[symbol] for symbol in launched):
        # What a launch returns is a local variable of the chunk until that returns.
        alive += kernel.results
        most = max(most, alive + kernel.temporaries)
    most = max(most, alive + sum(_copied(op) for op in body if _is_flat(op, symbols)))
    stage = chunk.attributes.get("stage")
    return ChunkFacts(
        name=name,
        stage=None if stage is None else ir.IntegerAttr(stage).value,
        pass_=name.partition("$")[2][:1],
        kernels=tuple(launched),
        results=results,
        temporaries=max(0, most - sum(size.most for size in results)),
    )


def _is_flat(op: ir.Operation, symbols: Symbols) -> bool:
    """Return whether an op of a chunk makes a flat tensor of several gradients."""
    return op.name == "piper.pack" and is_flat_pack(op, symbols)


def _copied(pack: ir.Operation) -> int:
    """Bytes of a flat pack that is a copy; one of a single tensor without padding is a view."""
    num_bytes = type_bytes(pack.results[0].type)
    alone = len(pack.operands) == 1 and type_bytes(pack.operands[0].type) == num_bytes
    return 0 if alone else num_bytes


def _signature(op: ir.Operation) -> ir.FunctionType:
    return ir.FunctionType(ir.TypeAttr(op.attributes["function_type"]).value)


def _main_dtype(types: Sequence[ir.Type], rows: int) -> str:
    """The floating dtype of most bytes."""
    totals: dict[str, int] = {}
    for type_ in types:
        dtype = dtype_of_type(ir.RankedTensorType(type_).element_type)
        if dtype.is_floating_point:
            name = dtype_name(dtype)
            totals[name] = totals.get(name, 0) + type_bytes(type_, rows=rows)
    return max(totals, key=totals.__getitem__, default="")


def _most_alive(kernel: ir.Operation, rows: int) -> int:
    """Most bytes of tensors made inside a kernel that are alive at once, results among them."""
    block = kernel.regions[0].blocks[0]
    root: dict[ir.Value[ir.Type], ir.Value[ir.Type]] = {arg: arg for arg in block.arguments}
    made: dict[ir.Value[ir.Type], int] = {}
    steps = []
    for view in block.operations:
        op = view.operation
        used = [root[operand] for operand in op.operands]
        is_view = "<view" in str(op.attributes.get("facts", ""))
        for result in op.results:
            root[result] = used[0] if is_view and used else result
            if root[result] is result:
                made[result] = type_bytes(result.type, rows=rows)
        steps.append((op, used))
    last = {value: index for index, (_, used) in enumerate(steps) for value in used}
    return _peak(
        [list(_changes(op, used, index, made, last)) for index, (op, used) in enumerate(steps)]
    )


def _changes(
    op: ir.Operation,
    used: Sequence[ir.Value[ir.Type]],
    index: int,
    made: Mapping[ir.Value[ir.Type], int],
    last: Mapping[ir.Value[ir.Type], int],
) -> Iterator[int]:
    """What an op adds to the bytes that are alive, then what goes after it."""
    yield from (made.get(result, 0) for result in op.results)
    if op.name != "piper.return":
        yield from (-made.get(value, 0) for value in dict.fromkeys(used) if last[value] == index)
        yield from (-made.get(result, 0) for result in op.results if result not in last)


def _peak(steps: Sequence[Sequence[int]]) -> int:
    alive = most = 0
    for changes in steps:
        for change in changes:
            alive += change
            most = max(most, alive)
    return most
