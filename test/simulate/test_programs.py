"""Programs in time: streams, rendezvous, links, the host, steps that follow each other."""

from __future__ import annotations

import pytest
from handmade import Rows, chunk, facts, network, run
from piper.simulate import CycleError, Network, link
from piper_runtime.manifest import BucketSpec

ONE, TWO, FIVE = chunk("one"), chunk("two", stage=1), chunk("five")


def pipeline(*, barrier: bool, microbatches: int = 2) -> tuple[Rows, Rows]:
    """Two ranks: a short F here, a long one there, and no way back; then, perhaps, a barrier."""
    first, second = Rows(), Rows()
    for mb in range(microbatches):
        value = first.run(ONE.name, mb=mb)
        first.send(value, "0.1", mb=mb, after=[first.record()])
        got, event = second.recv("0.1", mb=mb)
        value = second.run(TWO.name, got, mb=mb, after=[event])
    if barrier:
        for rows in (first, second):
            here = rows.run(ONE.name, mb=9)
            done, event = rows.all_reduce(here, "all", after=[rows.record()])
            rows.add("free", done, after=[event])
    return first, second


def test_a_message_is_between_what_makes_and_what_uses_it() -> None:
    simulation = run(facts(*pipeline(barrier=False), chunks=[ONE, TWO], ways=["0.1"]))
    #   pp 0  | F0 | F1 |
    #   0.1        | 0  | 1  |
    #   pp 1            |   F0    |   F1    |
    assert simulation.times[0] == ((0, 1), (1, 1), (1, 2), (1, 2), (2, 2), (2, 3))
    assert simulation.times[1] == ((1, 2), (2, 4), (2, 3), (4, 6))
    assert simulation.makespan == 6
    assert simulation.busy_per_coordinate == (2, 4)
    assert (simulation.busy, simulation.bubble_makespan, simulation.bubble_span) == (4, 2, 0)
    # Rank 0 computes or has no message under way; rank 1 waits for the bytes of the first.
    assert simulation.exposed == (1, 1)


def test_latency_is_no_load_on_the_link() -> None:
    program = facts(*pipeline(barrier=False), chunks=[ONE, TWO], ways=["0.1"])
    simulation = run(program, network(latency=10))
    assert simulation.times[1][0] == (1, 12)
    assert simulation.times[1][2] == (12, 23)  # the stream of the message is busy until then
    assert simulation.makespan == 25


def test_the_critical_path_is_by_name() -> None:
    simulation = run(facts(*pipeline(barrier=False), chunks=[ONE, TWO], ways=["0.1"]))
    assert [(s.name, s.rank, s.start, s.end) for s in simulation.critical_path] == [
        ("0F0", 0, 0, 1),
        ("message of microbatch 0 to pp 1", None, 1, 2),
        ("1F0", 1, 2, 4),
        ("1F1", 1, 4, 6),
    ]


def test_a_rendezvous_waits_for_the_last_and_blocks_the_stream() -> None:
    first, second = Rows(), Rows()
    for mb in range(2):
        value = first.run(ONE.name, mb=mb)
        first.send(value, "0.1", mb=mb, after=[first.record()])
    second.run(FIVE.name)
    event = second.record()
    for mb in range(2):
        second.recv("0.1", mb=mb, after=[event])
    simulation = run(facts(first, second, chunks=[ONE, FIVE], ways=["0.1"]))
    assert simulation.times[0][2] == simulation.times[1][2] == (5, 6)
    assert simulation.times[0][5] == simulation.times[1][3] == (6, 7)


def test_two_messages_share_the_way_out_of_a_rank() -> None:
    first, second, third = Rows(), Rows(), Rows()
    value = first.run(ONE.name)
    event = first.record()
    for way in ("0.1", "0.2"):
        first.send(value, way, after=[event])
    second.recv("0.1")
    third.recv("0.2")
    program = facts(first, second, third, chunks=[ONE], ways=["0.1", "0.2"])
    simulation = run(program)
    assert simulation.times[1][0] == (1, 2)
    assert simulation.times[2][0] == (2, 3)
    slow_to_arrive = run(program, network(latency=4))
    assert slow_to_arrive.times[2][0] == (2, 7)  # latencies overlap, bytes do not


def test_a_collective_joins_all_and_takes_the_time_of_its_ring() -> None:
    rows = [Rows(), Rows()]
    for one, name in zip(rows, (ONE.name, FIVE.name), strict=True):
        one.all_reduce(one.run(name), "all", after=[one.record()])
    program = facts(*rows, chunks=[ONE, FIVE], dp=2)
    simulation = run(program, network(latency=0.5))
    # Four members: 6 steps of 2 bytes at 8 bytes a second, each half a second late.
    assert simulation.times[0][2] == simulation.times[1][2] == (5, 5 + 6 * (2 / 8 + 0.5))
    assert simulation.barrier == "all_reduce all"
    assert simulation.critical_path[-1].rank is None


def test_the_host_issues_in_order() -> None:
    rows = Rows()
    for mb in range(3):
        rows.run(ONE.name, mb=mb)
    simulation = run(facts(rows, chunks=[ONE]), issue=4)
    assert simulation.times[0] == ((4, 5), (8, 9), (12, 13))
    assert [step.name for step in simulation.critical_path] == ["issue", "0F2"]


@pytest.mark.parametrize("issue", [0, 0.5])
def test_the_host_blocks_at_a_host_wait_alone(issue: float) -> None:
    rows = Rows()
    sizes = rows.run(FIVE.name)
    rows.add("host_wait", sizes, results=1)
    event = rows.record()
    rows.all_reduce(sizes, "all", after=[event])
    value = rows.run(ONE.name, mb=1)
    simulation = run(facts(rows, chunks=[ONE, FIVE]), issue=issue)
    done = 5 + issue
    assert simulation.times[0][0] == (issue, done)
    assert simulation.times[0][4] == (done + 3 * issue, done + 3 * issue + 1)
    assert value == 5


@pytest.mark.parametrize("issue", [0, 0.5])
def test_the_host_reads_what_may_skip_an_update(issue: float) -> None:
    """What it issues behind waits for that, on whatever stream, and not for the update."""
    rows = Rows()
    part = rows.run(ONE.name)
    [flag] = rows.add("nonfinite", rows.run(FIVE.name), results=1, dtype="i1", shape=[])
    [gradient] = rows.add("read", results=1, symbol="w$b", slot="grad")
    rows.add("update", gradient, flag, results=1, bucket="w$b", skip=flag)
    rows.all_reduce(part, "all", after=[])
    bucket = BucketSpec("w$b", ("w",), (0,), "float32", 10, "float32")
    program = facts(rows, chunks=[ONE, FIVE], buckets=[bucket])
    times = run(program, issue=issue, optimizer=8).times[0]
    done = times[2][1]
    assert times[4][0] == done + issue
    assert times[5][0] == done + 2 * issue


def test_steps_overlap_unless_they_end_in_a_barrier() -> None:
    free = run(facts(*pipeline(barrier=False), chunks=[ONE, TWO], ways=["0.1"]))
    assert (free.makespan, free.busy, free.barrier) == (6, 4, None)
    # Rank 0 is ahead, but rank 1 receives nothing before its last step has ended.
    assert (free.period, free.realized_bubble) == (5, 1)
    held = run(facts(*pipeline(barrier=True), chunks=[ONE, TWO], ways=["0.1"]))
    assert held.makespan == held.period == 8.0
    assert held.realized_bubble == held.bubble_makespan == 3
    assert held.barrier == "all_reduce all"


def test_the_next_step_needs_the_loss() -> None:
    first, second = pipeline(barrier=False)
    first.run(ONE.name, mb=9)
    second.output(second.run(TWO.name, mb=9))
    simulation = run(facts(first, second, chunks=[ONE, TWO], ways=["0.1"]))
    # Rank 0 could begin its next step at 3, but gets the loss when rank 1 is done.
    assert simulation.makespan == simulation.period == 8


def test_waits_in_a_circle_are_named() -> None:
    first, second = Rows(), Rows()
    for rows, out, into in ((first, "0.1", "1.0"), (second, "1.0", "0.1")):
        got, event = rows.recv(into)
        value = rows.run(ONE.name, got, after=[event])
        rows.send(value, out, after=[rows.record()])
    with pytest.raises(CycleError) as caught:
        run(facts(first, second, chunks=[ONE], ways=["0.1", "1.0"]))
    assert "0F0 at pp 0 waits for message of microbatch 0 to pp 0" in str(caught.value)
    assert "0F0 at pp 1 waits for message of microbatch 0 to pp 1" in str(caught.value)


def test_a_message_has_two_ends() -> None:
    first, second = Rows(), Rows()
    first.send(first.run(ONE.name), "0.1", after=[first.record()])
    with pytest.raises(ValueError, match=r"send\$0\.1 expected 1 more to take part"):
        run(facts(first, second, chunks=[ONE], ways=["0.1"]))


def test_what_is_not_known_is_refused() -> None:
    rows = Rows()
    rows.add("teleport", results=1)
    with pytest.raises(ValueError, match=r"cannot simulate instruction piper\.teleport"):
        run(facts(rows))
    rows = Rows()
    rows.run(ONE.name)
    program = facts(rows, chunks=[ONE])
    with pytest.raises(ValueError, match=r"entry point must be one of \['train'\], got 'eval'"):
        run(program, entry="eval")
    with pytest.raises(ValueError, match="seconds to issue an instruction must be at least 0"):
        run(program, issue=-1)
    wrong = Network(network().default, {"tp": link("pcie4")})
    with pytest.raises(ValueError, match="link of axis 'tp' must be for one of pp=1 x dp=1"):
        run(program, wrong)
