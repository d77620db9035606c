"""How compile time grows with stages x microbatches: near linear, or something is wrong.

    python benchmarks/compile_time.py --sizes 8x32 16x64 32x128

Compiles a chain of small layers, one per stage, under 1F1B at dp 2, from the captured step to the
dump that programs are emitted from. Prints seconds per part, how many instructions came out, and
the slope of log(seconds) over log(instructions) between one size and the next.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass

from piper.emit.dump import read_programs
from piper.mlir import ir
from piper.mlir.passmanager import PassManager
from piper.schedules import generate

PARTS = {
    "outline": "piper-outline-chunks",
    "record": "piper-record",
    "materialize": "piper-materialize",
    "lower": "piper-lower",
}

X, W, S = "tensor<4x8xf32>", "tensor<8x8xf32>", "tensor<f32>"
PURE, VIEW = "facts <pure, flops = 512>", "facts <view>"


@dataclass(frozen=True)
class Size:
    """Stages (one layer and one coordinate each) and microbatches."""

    stages: int
    microbatches: int

    @classmethod
    def parse(cls, text: str) -> Size:
        """Read ``8x32``."""
        stages, _, microbatches = text.partition("x")
        return cls(int(stages), int(microbatches))


def module_text(size: Size) -> str:
    """The captured step and its strategy as MLIR."""
    return "\n".join([*_strategy(size), *_step(size.stages)])


def _strategy(size: Size) -> Iterator[str]:
    rows = ", ".join(
        f'"{row}"'
        for row in generate("1F1B", size.stages, size.microbatches).without_idle().lines()
    )
    yield f"piper.mesh @mesh [pp = {size.stages} unrolled, dp = 2 manual]"
    yield from (f"piper.state @l{i} parameter : {W}" for i in range(size.stages))
    yield f'piper.schedule @order axis = "pp" stages = {size.stages}'
    yield f"  microbatches = {size.microbatches} [{rows}]"
    yield "piper.strategy @strategy mesh = @mesh {"
    yield f'  piper.do.place <all> stages = {size.stages} axis = "pp"'
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


def measure(size: Size) -> tuple[dict[str, float], int]:
    """Seconds per part, and how many instructions the programs have together."""
    seconds = {}
    with ir.Context():
        module = ir.Module.parse(module_text(size))
        for part, pipeline in PARTS.items():
            passes = PassManager.parse(f"builtin.module({pipeline})")
            passes.enable_verifier(True)
            start = time.perf_counter()
            passes.run(module.operation)
            seconds[part] = time.perf_counter() - start
        start = time.perf_counter()
        programs = read_programs(module)
        seconds["dump"] = time.perf_counter() - start
    return seconds, sum(len(program["rows"]) for program in programs)


def main() -> None:
    """Measure the sizes given and print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    default = ["8x32", "16x64", "32x128"]
    parser.add_argument("--sizes", nargs="+", default=default, help="stages x microbatches")
    sizes = [Size.parse(text) for text in parser.parse_args().sizes]
    columns = [*PARTS, "dump", "total"]
    print("      size  instructions " + " ".join(f"{name:>11}" for name in columns) + "  slope")
    before: tuple[float, int] | None = None
    for size in sizes:
        seconds, count = measure(size)
        total = sum(seconds.values())
        slope = ""
        if before is not None:
            slope = f"{math.log(total / before[0]) / math.log(count / before[1]):6.2f}"
        before = (total, count)
        name = f"{size.stages}x{size.microbatches}"
        cells = " ".join(f"{value:11.3f}" for value in [*seconds.values(), total])
        print(f"{name:>10} {count:13} {cells} {slope}")


if __name__ == "__main__":
    main()
