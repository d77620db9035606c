"""How long each pass takes, and how that grows with stages x microbatches.

    python benchmarks/compile_time.py --check
    python benchmarks/compile_time.py DualPipeV:8x16x24
    python benchmarks/compile_time.py 1F1B:8x32 1F1B:16x64 1F1B:32x128

A size is a schedule, ranks x microbatches, and perhaps layers (default: one per stage). Compiles a
chain of small layers, each a chunk, at dp 2, from the captured step to the dump that programs are
emitted from. Prints seconds per pass and, by themselves, of the verifiers of ops that MLIR runs
after every pass but `verify`, which changes nothing; how many instructions came out; and per pass
the slope of log(seconds) over log(instructions) between one size and the next. The caches are
emptied before each pass, so that every size finds its IR in memory: else small IR, which fits into
them, costs less per op.

The last lines say which bounds hold, of those whose sizes were measured: DualPipeV:8x16x24 from
record to verified programs in at most 1 s; 1F1B:64x512, all of it, in at most 20 s and 4 GB; and no
pass that takes 2 ms or more at 1F1B:64x280 has a slope above 1.15 from 1F1B:24x108 to there. With
``--check`` the exit status is 1 if one of them does not hold.
"""

from __future__ import annotations

import argparse
import math
import re
import resource
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from bound import Bound, add_check, verdict
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

OP_VERIFIER = "(ops' verifiers)"  # MLIR runs them after every pass that changes something
CHANGES_NOTHING = "verify"

SECOND, LARGEST = "DualPipeV:8x16x24", "1F1B:64x512"
SLOPE = ("1F1B:24x108", "1F1B:64x280")  # 25k and 200k instructions
DEFAULT = [SECOND, *SLOPE, LARGEST]

MOST_SECONDS = 1.0  # of SECOND
LARGEST_SECONDS, LARGEST_BYTES = 20.0, 4e9
MOST_SLOPE, LEAST_SECONDS = 1.15, 0.002  # of a pass, if it takes that long at the larger size

_EVICTING = np.zeros(2**28, dtype=np.uint8)  # bytes, more than any cache holds

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
    """What a size took: seconds by (stage of the compiler, pass), and instructions that came out.

    `peak` is the most memory of the process until then, in bytes.
    """

    seconds: dict[tuple[str, str], float]
    instructions: int
    peak: int

    @property
    def total(self) -> float:
        """Seconds from the captured step to the dump."""
        return sum(self.seconds.values())

    @property
    def inner(self) -> float:
        """Seconds from record to verified programs."""
        outer = ("dump", "capture to chunks")
        return sum(seconds for (stage, _), seconds in self.seconds.items() if stage not in outer)

    def slopes(self, before: Measured) -> dict[tuple[str, str], float]:
        """How each pass has grown with the instructions, as an exponent."""
        grown = math.log(self.instructions / before.instructions)
        return {
            key: math.log(seconds / before.seconds[key]) / grown
            for key, seconds in self.seconds.items()
        }


def measure(sizes: Iterable[str], *, repeat: int) -> dict[str, Measured]:
    """Compile each size, a pass at a time; the least time of several attempts.

    The sizes take turns, so that what slows the machine down for a while slows all of them.
    """
    attempts = [{text: _measure_once(Size.parse(text)) for text in sizes} for _ in range(repeat)]
    return {text: _least([attempt[text] for attempt in attempts]) for text in attempts[0]}


def _least(attempts: list[Measured]) -> Measured:
    seconds = {key: min(a.seconds[key] for a in attempts) for key in attempts[0].seconds}
    return Measured(seconds, attempts[0].instructions, attempts[-1].peak)


def _measure_once(size: Size) -> Measured:
    seconds = {}
    with ir.Context():
        module = ir.Module.parse(module_text(size))
        for stage, passes in STAGES.items():
            checked = 0.0
            for name in passes:
                manager = PassManager.parse(f"builtin.module(piper-{name})")
                manager.enable_verifier(False)
                seconds[stage, name] = _time(manager.run, module.operation)
                if name != CHANGES_NOTHING:
                    checked += _time(module.operation.verify)
            if checked:
                seconds[stage, OP_VERIFIER] = checked
        seconds["dump", "dump"] = _time(read_programs, module)
        instructions = sum(len(program["rows"]) for program in read_programs(module))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return Measured(seconds, instructions, peak)


def _time(run: Callable[..., object], *operands: object) -> float:
    """The seconds of a call that finds nothing in the caches."""
    np.add(_EVICTING, 1, out=_EVICTING)
    start = time.perf_counter()
    run(*operands)
    return time.perf_counter() - start


def bounds(measured: Mapping[str, Measured]) -> Iterator[Bound]:
    """The bounds of the sizes that were measured."""
    if found := measured.get(SECOND):
        text = f"{SECOND} from record to verified programs in {found.inner:.3f} s"
        yield Bound(f"{text}, at most {MOST_SECONDS:g} s", found.inner <= MOST_SECONDS)
    if found := measured.get(LARGEST):
        text = f"{LARGEST} in {found.total:.2f} s and {found.peak / 1e9:.2f} GB"
        fits = found.total <= LARGEST_SECONDS and found.peak <= LARGEST_BYTES
        yield Bound(f"{text}, at most {LARGEST_SECONDS:g} s and {LARGEST_BYTES / 1e9:g} GB", fits)
    if all(size in measured for size in SLOPE):
        yield _slope_bound(*(measured[size] for size in SLOPE))


def _slope_bound(small: Measured, large: Measured) -> Bound:
    slopes = {
        key: slope
        for key, slope in large.slopes(small).items()
        if large.seconds[key] >= LEAST_SECONDS
    }
    stage, name = max(slopes, key=lambda key: slopes[key])
    steepest = slopes[stage, name]
    over = sum(slope > MOST_SLOPE for slope in slopes.values())
    text = (
        f"{' to '.join(SLOPE)}: {over} of {len(slopes)} passes of at least "
        f"{LEAST_SECONDS * 1e3:g} ms are steeper than {MOST_SLOPE:g}, the steepest is {name} of "
        f"{stage}: {steepest:.2f}"
    )
    return Bound(text, not over)


def main() -> int:
    """Measure the sizes given, print a table of each and the bounds; returns the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("sizes", nargs="*", metavar="SIZE", help="as above", default=DEFAULT)
    parser.add_argument("--repeat", type=int, default=15, help="attempts, of which the best counts")
    add_check(parser, "these bounds hold")
    options = parser.parse_args()
    sizes = set(options.sizes)
    if options.check and not (sizes & {SECOND, LARGEST} or sizes.issuperset(SLOPE)):
        parser.error(f"--check expected sizes that have bounds, of {DEFAULT}, got {options.sizes}")
    measured = measure(options.sizes, repeat=options.repeat)
    before: Measured | None = None
    for text, found in measured.items():
        _report(Size.parse(text), found, before)
        before = found
    return verdict(bounds(measured), check=options.check)


def _report(size: Size, measured: Measured, before: Measured | None) -> None:
    print(f"{size}: {measured.instructions} instructions")
    slopes = {} if before is None else measured.slopes(before)
    for (stage, name), seconds in measured.seconds.items():
        slope = f"  slope {slopes[stage, name]:5.2f}" if slopes else ""
        print(f"  {stage:>17}  {name:20} {seconds:8.3f} s{slope}")
    print(
        f"  record to verified programs {measured.inner:.3f} s, with outlining and dump "
        f"{measured.total:.3f} s"
    )


if __name__ == "__main__":
    sys.exit(main())
