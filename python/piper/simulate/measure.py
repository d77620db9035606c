"""Measure the kernels of a compiled program on this machine, each with random arguments."""

from __future__ import annotations

import math
import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from piper_runtime import Program
from torch import Tensor

from piper.emit.names import identifier
from piper.emit.symbols import Symbols, name_of
from piper.frontend.attributes import dtype_of_type
from piper.mlir import ir
from piper.simulate.facts import PROGRAMS, read_kernels
from piper.simulate.prices import Profile

__all__ = ["measure_kernels"]

_COPY = 1 << 26  # bytes: more than caches hold
_EXPERTS = "piper.moe_"  # what ops of experts are called


def measure_kernels(
    program: Program | str | Path,
    *,
    repeats: int = 5,
    device: torch.device | str = "cpu",
    clock: Callable[[], float] = time.perf_counter,
) -> Profile:
    """Run every kernel as a rank would, alone, and note the median of `repeats` runs.

    Floating arguments are normal random numbers; integers are 0, which is a valid index and a valid
    label, so a kernel whose time depends on its integers is measured for these. Rows that are known
    at run time only are as many as expected, in order, and all experts have equally many. The time is that of
    the kernel with all that torch does on the host around it, with as many threads as torch has
    here. The memory bandwidth is that of a copy, bytes read plus bytes written.

    Raises:
        ValueError: `repeats` is below 1.
    """
    if repeats < 1:
        raise ValueError(f"repeats must be at least 1, got {repeats}")
    program = program if isinstance(program, Program) else Program.open(program)
    place = torch.device(device)
    functions = program.load(place).modules[0].k
    seconds = {}
    with torch.no_grad():
        for name, arguments in _signatures(program).items():
            function = getattr(functions, identifier(name))
            generator = torch.Generator().manual_seed(0)
            tensors = [argument.make(generator, place) for argument in arguments]
            seconds[name] = _median(partial(function, *tensors), repeats, place, clock)
        source = torch.ones(_COPY // 4, device=place)
        target = torch.empty_like(source)
        copied = _median(partial(target.copy_, source), repeats, place, clock)
    return Profile(_machine(place), seconds, 2 * _COPY / copied)


@dataclass(frozen=True, slots=True)
class _Argument:
    """What to make for an argument.

    `rows` is the sum of the counts of rows that it holds, if any; it may hold an `order` of rows.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    rows: int | None
    is_order: bool

    def make(self, generator: torch.Generator, device: torch.device) -> Tensor:
        if self.dtype.is_floating_point or self.dtype.is_complex:
            wide = torch.complex64 if self.dtype.is_complex else torch.float32
            drawn = torch.randn(self.shape, generator=generator, dtype=wide)
            return drawn.to(device, self.dtype)
        if self.is_order:
            return torch.arange(math.prod(self.shape), dtype=self.dtype, device=device)
        if self.rows is None:
            return torch.zeros(self.shape, dtype=self.dtype, device=device)
        each, over = divmod(self.rows, math.prod(self.shape))
        counts = torch.full([math.prod(self.shape)], each, dtype=self.dtype)
        counts[:over] += 1
        return counts.view(self.shape).to(device)


def _signatures(program: Program) -> dict[str, list[_Argument]]:
    """The arguments of every kernel."""
    with ir.Context():
        symbols = Symbols(ir.Module.parse(program.texts[PROGRAMS]))
        facts = read_kernels(symbols)
        return {
            name: _arguments(kernel, rows.expect if rows else 0)
            for kernel in symbols.all("kernel")
            for name, rows in [(name_of(kernel), facts[name_of(kernel)].rows)]
        }


def _arguments(kernel: ir.Operation, rows: int) -> list[_Argument]:
    block = kernel.regions[0].blocks[0]
    counted = {}  # by argument: the rows whose counts it holds
    ordered: set[ir.Value[ir.Type]] = set()
    for view in block.operations:
        op = view.operation
        if "op_name" in op.attributes and _EXPERTS in ir.StringAttr(op.attributes["op_name"]).value:
            held = [_shape(value, rows)[0] for value in op.operands if _holds_rows(value)]
            counted.update({v: max(held) for v in op.operands if held and _is_integer(v, rank=2)})
            ordered.update(v for v in op.operands if _is_integer(v, rank=1))
    return [
        _Argument(
            _shape(argument, rows),
            dtype_of_type(ir.RankedTensorType(argument.type).element_type),
            counted.get(argument),
            argument in ordered,
        )
        for argument in block.arguments
    ]


def _shape(value: ir.Value[ir.Type], rows: int) -> tuple[int, ...]:
    shape = ir.RankedTensorType(value.type).shape
    return tuple(rows if size < 0 else size for size in shape)


def _holds_rows(value: ir.Value[ir.Type]) -> bool:
    """Whether an operand of an op of experts has rows: these are floating, and of two dims."""
    tensor = ir.RankedTensorType(value.type)
    return tensor.rank == 2 and dtype_of_type(tensor.element_type).is_floating_point


def _is_integer(value: ir.Value[ir.Type], *, rank: int) -> bool:
    """Whether it has the number of rows per rank and expert (rank 2) or their order (rank 1)."""
    tensor = ir.RankedTensorType(value.type)
    return tensor.rank == rank and dtype_of_type(tensor.element_type) == torch.int64


def _median(
    run: Callable[[], Any], repeats: int, device: torch.device, clock: Callable[[], float]
) -> float:
    """The median time, after a run that does not count."""
    times = []
    for _ in range(repeats + 1):
        start = clock()
        run()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        times.append(clock() - start)
    return statistics.median(times[1:])


def _machine(device: torch.device) -> str:
    """The machine in words."""
    if device.type == "cuda":
        return f"{torch.cuda.get_device_name(device)}, torch {torch.__version__}"
    threads = torch.get_num_threads()
    return f"{platform.machine()} with {threads} threads of torch {torch.__version__}"
