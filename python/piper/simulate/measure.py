"""Measure the kernels of a compiled program on this machine, each with random arguments."""

from __future__ import annotations

import platform
import statistics
import time
from collections.abc import Callable, Sequence
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
from piper.simulate.facts import PROGRAMS
from piper.simulate.prices import Profile

__all__ = ["measure_kernels"]

_COPY = 1 << 26  # bytes: more than caches hold


def measure_kernels(
    program: Program | str | Path,
    *,
    repeats: int = 5,
    device: torch.device | str = "cpu",
    clock: Callable[[], float] = time.perf_counter,
) -> Profile:
    """Run every kernel as a rank would, alone, and note the median of `repeats` runs.

    Floating arguments are normal random numbers; integers are 0, which is a valid index and a valid
    label, so a kernel whose time depends on its integers is measured for these. The time is that of
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
            tensors = [_argument(shape, dtype, generator, place) for shape, dtype in arguments]
            seconds[name] = _median(partial(function, *tensors), repeats, place, clock)
        source = torch.ones(_COPY // 4, device=place)
        target = torch.empty_like(source)
        copied = _median(partial(target.copy_, source), repeats, place, clock)
    return Profile(_machine(place), seconds, 2 * _COPY / copied)


def _signatures(program: Program) -> dict[str, list[tuple[list[int], torch.dtype]]]:
    """Shape and dtype of the arguments of every kernel."""
    with ir.Context():
        symbols = Symbols(ir.Module.parse(program.texts[PROGRAMS]))
        return {
            name_of(kernel): [
                _tensor(argument.type) for argument in kernel.regions[0].blocks[0].arguments
            ]
            for kernel in symbols.all("kernel")
        }


def _tensor(type_: ir.Type) -> tuple[list[int], torch.dtype]:
    tensor = ir.RankedTensorType(type_)
    return list(tensor.shape), dtype_of_type(tensor.element_type)


def _argument(
    shape: Sequence[int], dtype: torch.dtype, generator: torch.Generator, device: torch.device
) -> Tensor:
    if dtype.is_floating_point or dtype.is_complex:
        wide = torch.complex64 if dtype.is_complex else torch.float32
        return torch.randn(shape, generator=generator, dtype=wide).to(device, dtype)
    return torch.zeros(shape, dtype=dtype, device=device)


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
