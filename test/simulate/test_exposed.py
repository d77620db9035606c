"""Exposed communication by kind and axis: hand-checked programs, and counting unit by unit."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from handmade import Rows, chunk, facts, run
from hypothesis import given
from hypothesis import strategies as st
from piper.cli.report import program_report
from piper.simulate.exposed import KINDS, Exposure, Talk, measure_exposed
from piper.simulate.values import COLLECTIVES, MESSAGES
from piper.simulate.views import program_timeline

Span = tuple[float, float]
ONE, TWO, FIVE = chunk("one"), chunk("two", stage=1), chunk("five")


def talk(kind: str, start: float, end: float, *, axis: str = "dp", size: float = 0.0) -> Talk:
    return Talk(kind, axis, (start, end), {"wire": size} if size else {})


def short(found: Sequence[Exposure]) -> dict[str, tuple[float, float]]:
    """Seconds under way and exposed, by kind."""
    return {part.kind: (part.under_way, part.exposed) for part in found}


def test_every_kind_of_communication_has_a_name() -> None:
    assert set(KINDS) == {*MESSAGES, *COLLECTIVES}


def test_what_is_beside_compute_is_not_exposed() -> None:
    #   compute   |    work   |     | work |
    #   messages     |   a    |
    #   gathers                   | b |
    found = measure_exposed(
        [talk("messages", 1, 4), talk("gathers", 5, 8)],
        [(0, 3), (6, 7)],
    )
    assert short(found) == {"messages": (3, 1), "gathers": (3, 2)}


def test_what_is_under_way_together_shares_the_time() -> None:
    #   messages   | 0         6 |
    #   gathers        | 2     6 |
    #   reductions         | 4 6 |     and again from 8 to 9, alone
    found = measure_exposed(
        [
            talk("messages", 0, 6),
            talk("gathers", 2, 6),
            talk("reductions", 4, 6),
            talk("reductions", 8, 9),
        ],
        [],
    )
    assert {kind: under_way for kind, (under_way, _) in short(found).items()} == {
        "messages": 6,
        "reductions": 3,
        "gathers": 4,
    }
    assert [part.exposed for part in found] == pytest.approx([2 + 1 + 2 / 3, 2 / 3 + 1, 1 + 2 / 3])
    assert sum(part.exposed for part in found) == pytest.approx(7)  # of the nine, all but two


def test_two_of_one_kind_are_under_way_once() -> None:
    found = measure_exposed([talk("gathers", 0, 4), talk("gathers", 1, 5)], [(2, 3)])
    assert short(found) == {"gathers": (5, 4)}


def test_axes_are_told_apart_and_bytes_add_up_by_link() -> None:
    found = measure_exposed(
        [
            talk("reductions", 0, 1, axis="ep", size=3),
            talk("reductions", 1, 2, axis="dp", size=4),
            talk("reductions", 2, 3, axis="dp", size=5),
            talk("messages", 3, 3, axis="pp"),
        ],
        [],
    )
    assert [(part.kind, part.axis, part.exposed) for part in found] == [
        ("messages", "pp", 0),
        ("reductions", "dp", 2),
        ("reductions", "ep", 1),
    ]
    assert [dict(part.num_bytes) for part in found] == [{}, {"wire": 9}, {"wire": 3}]


spans = st.tuples(st.integers(0, 12), st.integers(0, 6)).map(lambda it: (it[0], it[0] + it[1]))
classes = st.tuples(st.sampled_from(sorted(set(KINDS.values()))), st.sampled_from(["dp", "ep"]))


@given(st.lists(st.tuples(classes, spans), max_size=8), st.lists(spans, max_size=4))
def test_equals_counting_unit_by_unit(
    talks: list[tuple[tuple[str, str], tuple[int, int]]], work: list[tuple[int, int]]
) -> None:
    found = measure_exposed([Talk(*key, span, {}) for key, span in talks], work)
    expected: dict[tuple[str, str], list[float]] = {key: [0.0, 0.0] for key, _ in talks}
    for now in range(20):
        idle = not any(start <= now < end for start, end in work)
        active = {key for key, (start, end) in talks if start <= now < end}
        for key in active:
            expected[key][0] += 1
            expected[key][1] += 1 / len(active) if idle else 0
    assert {(part.kind, part.axis) for part in found} == set(expected)
    for part in found:
        assert [part.under_way, part.exposed] == pytest.approx(expected[part.kind, part.axis])


# Programs.


def pipeline() -> tuple[Rows, Rows]:
    """A forward here, a message, a forward there; then both reduce over all ranks."""
    first, second = Rows(), Rows()
    here = first.run(ONE.name)
    first.send(here, "0.1", after=[first.record()])
    got, event = second.recv("0.1")
    there = second.run(TWO.name, got, after=[event])
    for rows, value in ((first, here), (second, there)):
        rows.all_reduce(value, "all", after=[rows.record()])
    return first, second


def test_a_program_by_kind_and_axis() -> None:
    simulation = run(facts(*pipeline(), chunks=[ONE, TWO], ways=["0.1"], dp=2))
    #   pp 0   | 0F0 |                 |  all_reduce: four ranks, 6 x 2 bytes
    #   0.1          | msg |           |  at 8 bytes a second
    #   pp 1               |    1F0    |
    assert simulation.makespan == 4 + 1.5
    assert [short(parts) for parts in simulation.exposures] == [
        {"messages": (1, 1), "reductions": (1.5, 1.5)},
        {"messages": (1, 1), "reductions": (1.5, 1.5)},
    ]
    assert simulation.exposed == (2.5, 2.5)
    assert {part.axis for part in simulation.exposures[0]} == {"pp", "pp x dp"}
    assert [dict(part.num_bytes) for part in simulation.exposures[0]] == [
        {"wire": 8},
        {"wire": 12},
    ]


def test_the_report_has_shares_of_the_step() -> None:
    first, second = pipeline()
    first.run(FIVE.name, mb=1)  # hides all that rank 0 has to say
    simulation = run(facts(first, second, chunks=[ONE, TWO, FIVE], ways=["0.1"], dp=2))
    assert [short(parts) for parts in simulation.exposures] == [
        {"messages": (1, 0), "reductions": (1.5, 0)},
        {"messages": (1, 1), "reductions": (1.5, 1.5)},
    ]
    lines = list(program_report(simulation, program_timeline(simulation), None))
    start = next(i for i, line in enumerate(lines) if line.startswith("communication: "))
    header = "  kind        axis     under way  exposed  of the step  at most    at"
    header += "  bytes that a rank sends or receives"
    assert lines[start + 1 : start + 5] == [
        header,
        "  messages    pp              1s    500ms         8.3%       1s  pp 1  8B wire",
        "  reductions  pp x dp       1.5s    750ms        12.5%     1.5s  pp 1  12B wire",
        "  all                               1.25s        20.8%     2.5s  pp 1",
    ]


def test_a_program_that_does_not_communicate_has_no_report() -> None:
    rows = Rows()
    rows.run(ONE.name)
    simulation = run(facts(rows, chunks=[ONE]))
    lines = list(program_report(simulation, program_timeline(simulation), None))
    assert not [line for line in lines if line.startswith("communication")]
