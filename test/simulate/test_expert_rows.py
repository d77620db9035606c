"""Rows that are known at run time only: what takes time, what takes memory, and uneven loads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
from handmade import Rows, chunk, facts, run
from piper.emit.symbols import Symbols
from piper.mlir import ir
from piper.simulate import ProgramFacts, ProgramSimulation
from piper.simulate.communication import measure_traffic, measure_volumes
from piper.simulate.facts import ChunkFacts, KernelFacts, read_chunks, read_kernels
from piper.simulate.sizes import Rows as Uneven
from piper.simulate.sizes import Size
from piper.simulate.values import read_values
from piper_runtime.manifest import BucketSpec

Span = tuple[float, float]

ROUTER = chunk("one", size=64)
EXPERTS = replace(chunk("five"), results=(Size(64, 128, dynamic=True),))
JOIN = chunk("two", size=64)


def exchange(rows: Rows, value: int, *, sizes: Sequence[int] = (), **more: Any) -> int:
    """An all_to_all; `more` is the type of the result, unless that is the operand's."""
    after = [rows.record()]
    return rows.add("all_to_all", value, *sizes, after=after, results=2, stream="all", **more)[0]


def layer(*, back: bool = True) -> Rows:
    """Rows of 8 bytes: eight are sent, eight are expected, at most sixteen may come."""
    rows = Rows()
    sent = rows.run(ROUTER.name)
    counts = exchange(rows, sent)
    sizes = rows.add("host_wait", counts, results=2)
    typed: dict[str, Any] = {"dtype": "i8", "shape": [-1, 8], "bound": 16, "expect": 8}
    got = exchange(rows, sent, sizes=sizes, **typed)
    made = rows.run(EXPERTS.name, got)
    if back:
        exchange(rows, made, sizes=sizes[::-1], dtype="i8", shape=[8, 8])
    return rows


def program(*rows: Rows, dynamic: float = 1.0, **more: Any) -> ProgramFacts:
    """Four ranks share the experts; the kernel of these spends `dynamic` of its time on rows."""
    found = facts(*rows, chunks=[ROUTER, EXPERTS, JOIN], dp=4, **more)
    kernels = dict(found.kernels)
    kernels["five"] = replace(kernels["five"], dynamic=dynamic)
    return replace(found, kernels=kernels)


def times(simulation: ProgramSimulation, op: str) -> list[float]:
    rows = simulation.facts.entry("train")[0]
    spans = zip(rows, simulation.times[0], strict=True)
    return [end - start for row, (start, end) in spans if row["op"] == op]


def test_rows_take_the_time_of_what_is_expected() -> None:
    simulation = run(program(layer()))
    # Three quarters of 64 bytes at 8 a second, for counts, rows and the way back alike.
    assert times(simulation, "all_to_all") == [6, 6, 6]
    assert simulation.makespan == 1 + 6 + 6 + 5 + 6
    [part] = simulation.exposures[0]
    assert (part.kind, part.axis, part.exposed) == ("all_to_all", "dp", 18)
    [traffic] = measure_traffic(program(layer()))
    assert (traffic.calls, traffic.num_bytes) == (3, 3 * 48)


def test_rows_are_no_parameters() -> None:
    bucket = BucketSpec("w$b", ("w",), (0,), "float32", 50, "float32")
    rows = layer()
    before = measure_volumes(program(rows, buckets=[bucket]))[0]
    assert (before.collectives, before.trained, before.multiple) == (3 * 48, 200, 0)
    [gradient] = rows.add("read", results=1, symbol="w$b", slot="grad")
    rows.all_reduce(gradient, "all")
    assert measure_volumes(program(rows, buckets=[bucket]))[0].multiple == 2


def test_rows_take_the_memory_of_the_bound() -> None:
    found = run(program(layer(back=False))).memory[0]
    # The router's rows; counts, and what may come; and what experts make of that.
    assert found.step == 64 + 64 + 128 + 128
    values = read_values(layer().rows, program(layer()))
    dynamic = [value for value in values.sizes if values.is_dynamic(value)]
    assert [(values.bytes(value), values.most(value)) for value in dynamic] == [(64, 128)] * 2


def test_a_bound_without_an_expectation_is_expected() -> None:
    rows = Rows()
    typed: dict[str, Any] = {"dtype": "i8", "shape": [-1, 8], "bound": 16}
    got = exchange(rows, rows.run(ROUTER.name), **typed)
    assert read_values(rows.rows, program(rows)).sizes[got] == Size(128, 128, dynamic=True)


def test_the_busiest_rank_is_what_all_wait_for() -> None:
    simulation = run(program(layer()), load=1.5)
    assert times(simulation, "all_to_all") == [6, 9, 9]  # counts are equal parts
    assert times(simulation, "run") == [1, 7.5]
    assert simulation.memory == run(program(layer())).memory


def test_only_their_part_of_a_kernel_has_more_rows() -> None:
    simulation = run(program(layer(), dynamic=0.2), load=2.0)
    assert times(simulation, "run") == pytest.approx([1, 5 * (0.8 + 2 * 0.2)])


def test_loads_that_cannot_be_are_refused() -> None:
    for load in (0.5, float("nan")):
        with pytest.raises(ValueError, match="load of the busiest rank must be at least 1, got"):
            run(program(layer()), load=load)
    with pytest.raises(ValueError, match=r"must be at most 2, which is what .*, got 2\.5"):
        run(program(layer()), load=2.5)
    rows = Rows()
    rows.run(ROUTER.name)
    with pytest.raises(ValueError, match="whose ranks exchange rows by counts, got 2 for one with"):
        run(program(rows), load=2)


@pytest.mark.parametrize(
    ("issue", "experts", "wait", "join"),
    [(0, (1, 6), 7, (7, 9)), (0.5, (2, 7), 7.5, (8, 10))],
)
def test_the_host_waits_for_counts_while_the_device_computes(
    issue: float, experts: Span, wait: float, join: Span
) -> None:
    """What was issued before runs on; what is issued behind waits, whatever it needs."""
    rows = Rows()
    counts = exchange(rows, rows.run(ROUTER.name))
    rows.run(EXPERTS.name, mb=1)
    rows.add("host_wait", counts, results=2)
    rows.run(JOIN.name, mb=1)
    simulation = run(program(rows), issue=issue)
    found = dict(zip((row["op"] for row in rows.rows), simulation.times[0], strict=True))
    assert found["all_to_all"] == (1 + issue, 7 + issue)  # six seconds
    assert simulation.times[0][3] == experts
    assert found["host_wait"] == (wait, wait)
    assert found["run"] == join


# What is read of kernels and chunks.

MODULE = """
!x = tensor<4x2xf32>
!q = tensor<?x2xf32>
!Q = tensor<?x2xf32, #piper.layout<ep = varying, bound = 8, expect = 4>>
!X = tensor<4x2xf32, #piper.layout<ep = varying>>
piper.mesh @mesh [pp = 1 unrolled, ep = 2 manual]
piper.kernel @mixed$1(%x: !x, %q: !q) -> (!x, !q) {
  %0 = torch "aten.neg.default"(%x) facts <pure, flops = 30> : (!x) -> !x
  %1 = torch "aten.neg.default"(%q) facts <pure, flops = 10> : (!q) -> !q
  %2 = torch "aten.neg.default"(%1) facts <pure> : (!q) -> !q
  return %0, %2 : !x, !q
} cost <flops = 40, bytes = 64>
piper.kernel @copy$2(%x: !x, %q: !q) -> !q {
  %0 = torch "aten.clone.default"(%q) facts <pure> : (!q) -> !q
  return %0 : !q
}
piper.stream @compute
piper.chunk @a.0$F pass = F stage = 0 (%x: !X, %q: !Q) -> (!X, !Q) {
  %0, %1 = launch @mixed$1(%x, %q) on @compute : (!X, !Q) -> (!X, !Q)
  %2 = launch @copy$2(%x, %1) on @compute : (!X, !Q) -> !Q
  return %0, %2 : !X, !Q
}
"""


@pytest.fixture
def symbols() -> Iterator[Symbols]:
    with ir.Context():
        yield Symbols(ir.Module.parse(MODULE))


def test_kernels_count_rows_as_their_launch_lets_expect(symbols: Symbols) -> None:
    kernels = read_kernels(symbols)
    # Two tensors of 32 bytes and two of four rows of 8; inside, two of eight rows are alive.
    assert kernels["mixed$1"] == KernelFacts(
        40, 128, "float32", temporaries=64, results=96, rows=Uneven(4, 8), dynamic=0.25
    )
    # Without FLOPs, what counts are the bytes: of three tensors, two have such rows.
    copied = kernels["copy$2"]
    assert (copied.bytes, copied.temporaries, copied.results) == (96, 0, 64)
    assert copied.dynamic == pytest.approx(2 / 3)


def test_chunks_have_both_sizes(symbols: Symbols) -> None:
    [found] = read_chunks(symbols, read_kernels(symbols)).values()
    results = (Size.of(32), Size(32, 64, dynamic=True))
    # Both launches' results live until the end: 96 and 64, of which 96 are the chunk's own. While
    # the first ran, 64 more than its own.
    assert found == ChunkFacts("a.0$F", 0, "F", ("mixed$1", "copy$2"), results, temporaries=64)
