"""How long each pass takes, and how that grows with stages x microbatches.

    python benchmarks/compile_time.py DualPipeV:8x16x24
    python benchmarks/compile_time.py 1F1B:8x32 1F1B:16x64 1F1B:32x128

A size is a schedule, ranks x microbatches, and perhaps layers (default: one per stage). Compiles a
chain of small layers, each a chunk, at dp 2, from the captured step to the dump that programs are
emitted from. Prints seconds per pass and, by themselves, of the verifiers of ops that MLIR runs
after every pass; how many instructions came out; the most memory that the process held so far; and
per pass the slope of log(seconds) over log(instructions) between one size and the next.
"""

from __future__ import annotations

import argparse
import math
import re
import resource
import time
from collections.abc import Iterator
from dataclasses import dataclass

from piper.emit.dump import read_programs
from piper.mlir import ir
from piper.mlir.passmanager import PassManager
from piper.schedules import Homes, Table, generate, homes_of

STAGES = {
    "capture to chunks": ("remat", "outline-chunks"),
    "record": ("annotate", "split", "place", "replicate", "update", "order"),
    "materialise": (
        "assign-kinds",
        "form-buckets",
        "split-backward",
        "unroll-microbatches",
        "insert-transfers",
        "insert-reductions",
        "order-cells",
    ),
    "verify": ("verify",),
    "lower": ("lower-programs",),
    "verify programs": ("verify",),
}

OP_VERIFIER = "(ops' verifiers)"  # MLIR runs them after every pass

DEFAULT = ["DualPipeV:8x16x24", "1F1B:24x108", "1F1B:64x280"]  # the last two: 25k, 200k ops

X, W, S = "tensor<4x8xf32>", "tensor<8x8xf32>", "tensor<f32>"
PURE, VIEW = "facts <pure, flops = 512>", "facts <view>"


@dataclass(frozen=True)
class Size:
    """What to compile."""

    schedule: str
    ranks: int
    microbatches: int
    layers: int

    @classmethod
    def parse(cls, text: str) -> Size:
        """Read ``1F1B:8x32`` or ``DualPipeV:8x16x24``.

        Raises:
            ValueError: another form.
        """
        match = re.fullmatch(r"(\w+):(\d+)x(\d+)(?:x(\d+))?", text)
        if match is None:
            raise ValueError(
                f"expected a size such as 1F1B:8x32 or DualPipeV:8x16x24, got {text!r}"
            )
        schedule, ranks, microbatches = match[1], int(match[2]), int(match[3])
        stages = homes_of(schedule, ranks=ranks, microbatches=microbatches).stages
        return cls(schedule, ranks, microbatches, int(match[4] or stages))

    def __str__(self) -> str:
        """See `parse`."""
        return f"{self.schedule}:{self.ranks}x{self.microbatches}x{self.layers}"

    @property
    def table(self) -> Table:
        """The schedule's table."""
        return generate(self.schedule, ranks=self.ranks, microbatches=self.microbatches)

    @property
    def homes(self) -> Homes:
        """Where the schedule places stages."""
        return homes_of(self.schedule, ranks=self.ranks, microbatches=self.microbatches)


def module_text(size: Size) -> str:
    """The captured step and its strategy as MLIR."""
    return "\n".join([*_strategy(size), *_step(size.layers)])


def _strategy(size: Size) -> Iterator[str]:
    homes = size.homes
    rows = ", ".join(f'"{row}"' for row in size.table.lines())
    places = [list(row) for row in homes.rows]
    where = f"homes {places}" if len(places) > 1 else f"coordinates {places[0]}"
    yield f"piper.mesh @mesh [pp = {size.ranks} unrolled, dp = 2 manual]"
    yield from (f"piper.state @l{i} parameter : {W}" for i in range(size.layers))
    yield f'piper.schedule @order axis = "pp" stages = {homes.stages}'
    yield f"  microbatches = {size.microbatches} [{rows}]"
    yield "piper.strategy @strategy mesh = @mesh {"
    yield f'  piper.do.place <all> stages = {homes.stages} axis = "pp" {where}'
    yield f"  piper.do.split microbatches = {size.microbatches} dims = {{x = 0}}"
    yield '  piper.do.replicate <all> axes = ["dp"] zero = 0 bucket = 25000000 reduce = "last"'
    yield '  piper.do.order @order\n  piper.do.update <all> optimizer = "sgd" clip = 1.0\n}'


def _step(layers: int) -> Iterator[str]:
    def op(result: str, call: str, facts: str, tag: str, types: str) -> str:
        return f"  %{result} = torch {call} {facts} tag <{tag}> : {types}"

    last = layers - 1
    yield 'piper.step @train phase = captured mesh = @mesh inputs ["x"] dims [0]'
    yield f"    (%x0: {X}) {{"
    yield from (f"  %w{i} = read @l{i} : {W}" for i in range(layers))
    yield f'  %t = tangent "loss" coeff 1.0 -> {S}'
    for i in range(layers):
        tag = f'"layer.{i}" F'
        yield op(f"a{i}", f'"aten.mm.default"(%x{i}, %w{i})', PURE, tag, f"({X}, {W}) -> {X}")
        yield op(f"x{i + 1}", f'"aten.tanh.default"(%a{i})', PURE, tag, f"({X}) -> {X}")
    yield op("l", f'"aten.sum.default"(%x{layers})', PURE, f'"layer.{last}" F', f"({X}) -> {S}")
    yield f'  output "loss" %l scale %t : {S}, {S}'
    tag = f'"layer.{last}" B'
    yield op(f"d{layers}", f'"aten.mul.Tensor"(%x{layers}, %t)', PURE, tag, f"({X}, {S}) -> {X}")
    for i in reversed(range(layers)):
        tag, pair = f'"layer.{i}" B', f"({X}, {X}) -> {X}"
        yield op(f"e{i}", f'"aten.tanh_backward.default"(%d{i + 1}, %x{i + 1})', PURE, tag, pair)
        yield op(f"d{i}", f'"aten.mm.default"(%e{i}, %w{i})', PURE, tag, f"({X}, {W}) -> {X}")
        yield op(f"y{i}", f'"aten.t.default"(%x{i})', VIEW, tag, f"({X}) -> tensor<8x4xf32>")
        types = f"(tensor<8x4xf32>, {X}) -> {W}"
        yield op(f"g{i}", f'"aten.mm.default"(%y{i}, %e{i})', PURE, tag, types)
        yield f"  grad @l{i} %g{i} tag <{tag}> : {W}"
    yield "}"


@dataclass(frozen=True)
class Measured:
    """Seconds by (stage of the compiler, pass), and how many instructions the programs have."""

    seconds: dict[tuple[str, str], float]
    instructions: int


def measure(size: Size, *, repeat: int) -> Measured:
    """Compile one size, a pass at a time; the least time of several attempts."""
    attempts = [_measure_once(size) for _ in range(repeat)]
    seconds = {key: min(a.seconds[key] for a in attempts) for key in attempts[0].seconds}
    return Measured(seconds, attempts[0].instructions)


def _measure_once(size: Size) -> Measured:
    seconds = {}
    with ir.Context():
        module = ir.Module.parse(module_text(size))
        for stage, passes in STAGES.items():
            checked = 0.0
            for name in passes:
                manager = PassManager.parse(f"builtin.module(piper-{name})")
                manager.enable_verifier(False)
                start = time.perf_counter()
                manager.run(module.operation)
                done = time.perf_counter()
                module.operation.verify()
                seconds[stage, name] = done - start
                checked += time.perf_counter() - done
            seconds[stage, OP_VERIFIER] = checked
        start = time.perf_counter()
        programs = read_programs(module)
        seconds["dump", "dump"] = time.perf_counter() - start
    return Measured(seconds, sum(len(program["rows"]) for program in programs))


def main() -> None:
    """Measure the sizes given and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("sizes", nargs="*", metavar="SIZE", help="as above", default=DEFAULT)
    parser.add_argument("--repeat", type=int, default=3, help="attempts, of which the best counts")
    options = parser.parse_args()
    before: Measured | None = None
    for size in map(Size.parse, options.sizes):
        measured = measure(size, repeat=options.repeat)
        _report(size, measured, before)
        before = measured


def _report(size: Size, measured: Measured, before: Measured | None) -> None:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"{size}: {measured.instructions} instructions, at most {peak:.2f} GiB so far")
    for (stage, name), seconds in measured.seconds.items():
        slope = ""
        if before is not None:
            grown = math.log(measured.instructions / before.instructions)
            slope = f"  slope {math.log(seconds / before.seconds[stage, name]) / grown:5.2f}"
        print(f"  {stage:>17}  {name:20} {seconds:8.3f} s{slope}")
    inner = [
        s
        for (stage, _), s in measured.seconds.items()
        if stage not in ("dump", "capture to chunks")
    ]
    total = sum(measured.seconds.values())
    print(
        f"  record to verified programs {sum(inner):.3f} s, with outlining and dump {total:.3f} s"
    )


if __name__ == "__main__":
    main()
