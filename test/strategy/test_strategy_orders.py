"""Orders and placements together: what follows, and every way in which they do not fit."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from piper.schedules import (
    SCHEDULES,
    Action,
    Cell,
    Homes,
    Pair,
    Table,
    check_progress,
    generate,
    homes_of,
    validate,
)
from piper.strategy import Directive, Strategy, order, place, split


def make(size: int, *directives: Directive, microbatches: int = 8) -> Strategy:
    return Strategy(mesh={"pp": size}, directives=[*directives, split(microbatches=microbatches)])


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_named_schedule_places_its_stages(name: str) -> None:
    schedule = SCHEDULES[name]
    stages = schedule.stages(2, schedule.chunks or 3)
    strategy = make(2, place(stages=stages), order(name))
    assert strategy.homes == homes_of(name, 2, 8, schedule.chunks or 3)
    assert strategy.table == generate(name, ranks=2, microbatches=8, chunks=schedule.chunks or 3)
    said = make(2, place(stages=stages, coordinates=schedule.placement), order(name))
    assert said.homes == strategy.homes


@given(st.sampled_from(sorted(SCHEDULES)), st.permutations(range(4)))
def test_coordinates_may_have_other_names(name: str, names: list[int]) -> None:
    schedule = SCHEDULES[name]
    homes = homes_of(name, 4, 8)
    renamed = Homes(tuple(tuple(names[rank] for rank in row) for row in homes.rows))
    strategy = make(4, place(stages=homes.stages, coordinates=renamed), order(schedule.name))
    validate(strategy.table, renamed, 8)
    check_progress(strategy.table)
    rows = generate(name, ranks=4, microbatches=8).rows
    assert [strategy.table.rows[names[rank]] for rank in range(4)] == list(rows)


def test_ir_of_a_v() -> None:
    strategy = make(2, place(stages=4), order("zbvzerobubble"), microbatches=1)
    place_op = 'piper.do.place <all> stages = 4 axis = "pp" coordinates [0, 1, 1, 0] loc'
    assert place_op in strategy.ir()
    assert (
        'piper.schedule @order axis = "pp" stages = 4 microbatches = 1 '
        '["0F0 3F0 3I0 3W0 0I0 0W0", "1F0 2F0 2I0 2W0 1I0 1W0"]'
    ) in strategy.ir()


def test_ir_of_both_directions() -> None:
    strategy = make(2, place(stages=2), order("DualPipe"), microbatches=4)
    assert " homes [[0, 1], [0, 1], [1, 0], [1, 0]] loc" in strategy.ir()
    assert "(1F3;0B0)OVERLAP_F_B" in strategy.ir()


def test_ir_of_one_stage_on_each_coordinate_is_short() -> None:
    for coordinates in (None, "each", [0, 1]):
        given: Any = coordinates
        strategy = make(2, place(stages=2, coordinates=given), order("1F1B"))
        assert 'piper.do.place <all> stages = 2 axis = "pp" loc' in strategy.ir()


def test_all_places_say_the_same_in_ir() -> None:
    """One may leave out what the other says."""
    strategy = make(2, place(stages=4), place(stages=4, coordinates="v"), order("ZBVZeroBubble"))
    assert strategy.ir().count("coordinates [0, 1, 1, 0]") == 2
    same = [place(stages=4, coordinates="loop"), place(stages=4, coordinates=[0, 1, 0, 1])]
    assert make(2, *same, order("LoopedBFS")).homes == Homes.loop(2, 4)


def one_by_one(ranks: int, microbatches: int, chunks: int) -> Iterator[list[Cell | str]]:
    """A microbatch at a time; stages as a loop."""
    for rank in range(ranks):
        stages = [rank + ranks * chunk for chunk in range(chunks)]
        row: list[Cell | str] = []
        for microbatch in range(microbatches):
            row += [f"{stage}F{microbatch}" for stage in stages]
            row += [None, *(Action(stage, "B", microbatch) for stage in reversed(stages))]
        yield row


def test_a_generator_is_a_schedule() -> None:
    strategy = make(2, place(stages=4, coordinates="loop"), order(one_by_one), microbatches=2)
    assert strategy.table.lines() == (
        "0F0 2F0 2B0 0B0 0F1 2F1 2B1 0B1",
        "1F0 3F0 3B0 1B0 1F1 3F1 3B1 1B1",
    )


def test_a_function_may_return_a_table() -> None:
    asked = []

    def mine(ranks: int, microbatches: int, chunks: int) -> Table:
        asked.append((ranks, microbatches, chunks))
        return generate("1F1B", ranks=ranks, microbatches=microbatches)

    strategy = make(4, place(stages=4), order(mine))
    assert strategy.table == generate("1F1B", ranks=4, microbatches=8)
    assert asked == [(4, 8, 1)]


def test_a_function_sees_the_most_stages_of_a_coordinate() -> None:
    asked = []

    def mine(ranks: int, microbatches: int, chunks: int) -> Table:
        asked.append(chunks)
        return Table.parse(["0F0 1F0 1B0 0B0", "2F0 2B0"])

    make(2, place(stages=3, coordinates=[0, 0, 1]), order(mine), microbatches=1)
    assert asked == [2]


@pytest.mark.parametrize("as_text", [True, False])
def test_a_file_is_a_schedule(as_text: bool, tmp_path: Path) -> None:
    table = generate("DualPipeV", ranks=2, microbatches=8)
    table.write_csv(tmp_path / "mine.csv")
    path = tmp_path / "mine.csv"
    directive = order(str(path) if as_text else path)
    strategy = make(2, place(stages=4, coordinates="v"), directive)
    assert strategy.table == table
    assert isinstance(strategy.table.rows[0][7], Pair)


def test_a_users_homes_may_depend_on_the_microbatch() -> None:
    homes = Homes(((0, 1), (1, 0)))
    table = Table.parse(["0F0 1F1 1B1 0B0", "0F1 1F0 1B0 0B1"])
    strategy = make(2, place(stages=2, coordinates=homes), order(table), microbatches=2)
    assert " homes [[0, 1], [1, 0]] loc" in strategy.ir()
    assert strategy.table == table


def wrong_rows(ranks: int, microbatches: int, chunks: int) -> Any:
    return 3


def bogus_rows(ranks: int, microbatches: int, chunks: int) -> list[str]:
    return ["0F0 0B0", "1F0 3BOGUS1"]


CROSSED = Table.parse(["0F0 0B0 0F1 0B1", "1F1 1B1 1F0 1B0"])

REFUSED: dict[str, tuple[int, list[Directive], int, str]] = {
    "v": (
        2,
        [place(stages=4, coordinates="loop"), order("ZBVZeroBubble")],
        8,
        "order ZBVZeroBubble places stages as a v, got loop",
    ),
    "loop": (
        2,
        [place(stages=4, coordinates=[0, 0, 1, 1]), order("LoopedBFS")],
        8,
        r"order LoopedBFS places stages as a loop, got \[0, 0, 1, 1\]",
    ),
    "each": (
        2,
        [place(stages=2, coordinates="bidirectional"), order("1F1B")],
        8,
        "order 1F1B places stages one on each rank, got bidirectional",
    ),
    "both": (
        2,
        [place(stages=2, coordinates="each"), order("DualPipe")],
        8,
        "order DualPipe places stages in both directions, got each",
    ),
    "stages": (
        2,
        [place(stages=3, coordinates=[0, 1, 1]), order("ZBVZeroBubble")],
        8,
        r"order ZBVZeroBubble needs stages == 2 \* ranks = 4, got 3",
    ),
    "stages left to the order": (
        4,
        [place(stages=4), order("Interleaved1F1B")],
        8,
        "order Interleaved1F1B needs stages to be a multiple of ranks, at least .* = 8, got 4",
    ),
    "microbatches": (
        4,
        [place(stages=8), order("DualPipeV")],
        4,
        r"order DualPipeV needs microbatches >= 2 \* ranks = 8, got 4",
    ),
    "table without coordinates": (
        2,
        [place(stages=4), order(one_by_one)],
        2,
        "stages must equal the size of axis 'pp', one stage .* got 4 stages and size 2: coord",
    ),
    "no multiple": (
        2,
        [place(stages=3, coordinates="v"), order(one_by_one)],
        2,
        "place on axis 'pp': a v needs stages to be a multiple of ranks = 2, got 3",
    ),
    "odd": (
        2,
        [place(stages=2, coordinates="bidirectional"), order("DualPipe")],
        5,
        "place on axis 'pp': bidirectional needs an even number of microbatches, .* got 5",
    ),
    "a coordinate without a stage": (
        3,
        [place(stages=3, coordinates=[0, 1, 1]), order("1F1B")],
        2,
        r"place coordinates must be all those below 3, the size of axis 'pp', got \[0, 1, 1\]",
    ),
    "a coordinate outside": (
        2,
        [place(stages=3, coordinates=[0, 1, 2]), order("1F1B")],
        2,
        "place coordinates must be all those below 2, the size of axis 'pp', got each",
    ),
    "homes of other microbatches": (
        2,
        [place(stages=2, coordinates=Homes(((0, 1), (1, 0)))), order("DualPipe")],
        4,
        "place coordinates must be for 4 microbatches, got 2",
    ),
    "circle": (
        2,
        [place(stages=2), order(CROSSED)],
        2,
        "(?s)rank 0, step 1: these wait for each other in a circle:.*1B0 comes after 1F1.*>0B0<",
    ),
    "circle with idle cells": (
        2,
        [place(stages=2), order(Table.parse([". 0F0 . 0B0 0F1 0B1", "1F1 1B1 1F0 1B0"]))],
        2,
        "(?s)rank 0, step 3: these wait for each other .*rank 0, step 4: 0F1 comes after.*>0B0<",
    ),
    "a pass after idle cells": (
        2,
        [place(stages=2), order(Table.parse([". . 0F0 0B0 0F1", "1F0 1B0"]))],
        1,
        "(?s)rank 0, step 4: 0F1 expected a microbatch below 1.* [.] .*>0F1<",
    ),
    "communication": (
        2,
        [place(stages=2), order(Table.parse(["0F0 0SEND_F0 0B0", "1F0 1B0"]))],
        1,
        r"(?s)0SEND_F0 is communication, which Piper derives: .*compute_only\(\).*>0SEND_F0<",
    ),
    "unknown rank": (
        2,
        [place(stages=2), order(Table.parse(["0F0 0B0", "1F0 1B0", "2F0 2B0"]))],
        1,
        "(?s)rank 2, step 0: 2F0 expected on a rank below 2.*>2F0<",
    ),
    "bogus cell": (
        2,
        [place(stages=2), order(bogus_rows)],
        1,
        "(?s)order schedule table: rank 1, step 1: expected an action.*got '3BOGUS1'.*>3BOGUS1<",
    ),
}


@pytest.mark.parametrize(
    ("size", "directives", "microbatches", "message"), REFUSED.values(), ids=REFUSED
)
def test_refuses(size: int, directives: list[Directive], microbatches: int, message: str) -> None:
    with pytest.raises(ValueError, match=message) as error:
        make(size, *directives, microbatches=microbatches)
    assert str(error.value).startswith(f"{__file__}:"), "the message starts with a place"


def test_a_function_must_return_rows() -> None:
    with pytest.raises(TypeError, match="order schedule must return a Table or rows, got 3"):
        make(2, place(stages=2), order(wrong_rows))


def of_one(ranks: int) -> Table:
    return Table.parse("0F0 0B0\n" * ranks)


class OfTwo:
    def __call__(self, ranks: int, *, microbatches: int) -> Table:
        return of_one(ranks * microbatches)


def test_a_function_must_take_three_numbers() -> None:
    wrong: Any = of_one
    message = (
        rf"^{re.escape(__file__)}:\d+:\d+: order schedule must be callable as "
        r"of_one\(ranks, microbatches, chunks\), got of_one\(ranks: 'int'\) -> 'Table': too many"
    )
    with pytest.raises(TypeError, match=message):
        order(wrong)
    wrong = OfTwo()
    with pytest.raises(TypeError, match=r"callable as OfTwo\(ranks, microbatches, chunks\)"):
        order(wrong)


def test_a_function_whose_arguments_cannot_be_asked_for() -> None:
    """Which is no error as long as nothing calls it."""
    builtin: Any = min
    made: Any = order(builtin)
    assert made.schedule is min


def test_a_function_must_not_return_text() -> None:
    def as_text(ranks: int, microbatches: int, chunks: int) -> str:
        return "0F0 0B0\n1F0 1B0"

    wrong: Any = as_text
    with pytest.raises(TypeError, match=r"a Table or rows, got '0F0.*', which Table\.parse reads"):
        make(2, place(stages=2), order(wrong))


def test_a_file_is_read_when_the_order_is_made(tmp_path: Path) -> None:
    (tmp_path / "mine.csv").write_text("0F0,0B0\n1F0\n")
    with pytest.raises(ValueError, match="rank 1, step 1: row 1 expected 2 cells") as refusal:
        order(tmp_path / "mine.csv")
    assert "Table.read_csv(path, ragged=True)" in str(refusal.value)


def test_a_ragged_file_is_read_as_its_refusal_says(tmp_path: Path) -> None:
    path = tmp_path / "torch.csv"
    path.write_text("0F0,,,0B0\n,1F0,1B0\n")
    strategy = make(2, place(stages=2), order(Table.read_csv(path, ragged=True)), microbatches=1)
    assert strategy.table == Table.parse("0F0 0B0\n1F0 1B0")
