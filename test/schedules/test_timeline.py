"""When cells run, and rows that wait for each other in a circle."""

from __future__ import annotations

import re

import pytest
from piper.schedules import Action, Table, check_progress, generate, timeline, with_idle


def test_idle_cells_align_steps() -> None:
    assert with_idle(Table.parse(["0F0 0B0", "1F0 1B0"])).lines() == ("0F0 . . 0B0", ". 1F0 1B0 .")


def test_halved_backwards_release_the_stage_before() -> None:
    table = Table.parse(["0F0 0I0 0W0", "1F0 1I0 1W0"])
    assert with_idle(table).lines() == ("0F0 . . 0I0 0W0", ". 1F0 1I0 1W0 .")


def test_a_pair_takes_one_step_in_pictures() -> None:
    table = Table.parse(["0F0 (0F1;0B0)OVERLAP_F_B 0B1", "1F0 1B0 1F1 1B1"])
    assert with_idle(table).lines() == (
        "0F0 . . (0F1;0B0)OVERLAP_F_B . . 0B1",
        ". 1F0 1B0 . 1F1 1B1 .",
    )


def test_both_results_of_a_pair_are_there_at_its_end() -> None:
    table = Table.parse(["0F0 (0F1;0B0)OVERLAP_F_B 0B1", "1F0 1B0 1F1 1B1"])
    costs = {"F": 2, "B": 3}
    alone = timeline(table, costs)  # type: ignore[arg-type]
    assert alone[Action(0, "F", 1)] == alone[Action(0, "B", 0)] == (7, 12)
    overlapped = timeline(table, costs, pair=4)  # type: ignore[arg-type]
    assert overlapped[Action(0, "F", 1)] == overlapped[Action(0, "B", 0)] == (7, 11)
    assert overlapped[Action(1, "F", 1)] == (11, 13)


CROSSED = ["0F0 0B0 0F1 0B1", "1F1 1B1 1F0 1B0"]
CROSSED_LINKS = [
    "rank 0, step 1: 0B0 waits for 1B0",
    "rank 1, step 3: 1B0 comes after 1F1",
    "rank 1, step 0: 1F1 waits for 0F1",
    "rank 0, step 2: 0F1 comes after 0B0",
]


def links_of(error: ValueError) -> list[str]:
    return re.findall(r"^  (rank .*)$", str(error), re.MULTILINE)


def marks_of(error: ValueError) -> set[str]:
    return set(re.findall(">([^<]*)<", str(error)))


def test_a_circle_is_shown_whole() -> None:
    with pytest.raises(ValueError, match="wait for each other in a circle") as error:
        check_progress(Table.parse(CROSSED))
    assert links_of(error.value) == CROSSED_LINKS
    assert marks_of(error.value) == {"0B0", "1B0", "1F1", "0F1"}
    assert str(error.value).splitlines()[-3:] == [
        "  step   0    1    2    3",
        "rank 0  0F0 >0B0<>0F1< 0B1",
        "rank 1 >1F1< 1B1  1F0 >1B0<",
    ]


def test_all_ways_to_a_timeline_find_it() -> None:
    for find in (timeline, with_idle, check_progress):
        with pytest.raises(ValueError, match="in a circle"):
            find(Table.parse(CROSSED))


def test_rows_that_only_wait_for_the_circle_are_not_part_of_it() -> None:
    rows = [*CROSSED, "2F0 2B0 2F1 2B1"]
    with pytest.raises(ValueError, match="rank 0, step 1") as error:
        check_progress(Table.parse(rows))
    assert not any("rank 2" in link for link in links_of(error.value)[:2])


def test_a_circle_of_three_ranks() -> None:
    rows = ["0F0 0B0 0F1 0B1", "1F0 1F1 1B0 1B1", "2F1 2F0 2B0 2B1"]
    with pytest.raises(ValueError, match="in a circle") as error:
        check_progress(Table.parse(rows))
    assert links_of(error.value) == [
        "rank 0, step 1: 0B0 waits for 1B0",
        "rank 1, step 2: 1B0 comes after 1F1",
        "rank 1, step 1: 1F1 waits for 0F1",
        "rank 0, step 2: 0F1 comes after 0B0",
    ]


def test_a_row_may_wait_for_itself() -> None:
    with pytest.raises(ValueError, match="in a circle") as error:
        check_progress(Table.parse(["0B0 0F0"]))
    assert links_of(error.value) == [
        "rank 0, step 0: 0B0 waits for 0F0",
        "rank 0, step 1: 0F0 comes after 0B0",
    ]


def test_a_pair_may_wait_for_itself() -> None:
    with pytest.raises(ValueError, match="in a circle") as error:
        check_progress(Table.parse(["0F0 (1F0;0B0)OVERLAP_F_B 1B0"]))
    assert links_of(error.value) == [
        "rank 0, step 1: 1F0&0B0 waits for 1B0",
        "rank 0, step 2: 1B0 comes after 1F0&0B0",
    ]
    with pytest.raises(ValueError, match="in a circle") as error:
        check_progress(Table.parse(["(0F0;0B0)OVERLAP_F_B"]))
    assert links_of(error.value) == ["rank 0, step 0: 0F0&0B0 waits for 0F0"]


def test_a_pair_waits_for_the_inputs_of_both() -> None:
    """Apart, the same actions in the same order would go through."""
    apart = ["0F0 0F1 0B0 0B1", "1F0 1F1 1B0 1B1"]
    check_progress(Table.parse(apart))
    together = ["0F0 (0F1;0B0)OVERLAP_F_B 0B1", "1F0 1F1 1B0 1B1"]
    with pytest.raises(ValueError, match="in a circle") as error:
        check_progress(Table.parse(together))
    assert links_of(error.value) == [
        "rank 0, step 1: 0F1&0B0 waits for 1B0",
        "rank 1, step 2: 1B0 comes after 1F1",
        "rank 1, step 1: 1F1 waits for 0F1",
    ]


def test_a_circle_in_a_long_table_is_shown_with_what_is_around_it() -> None:
    rows = [list(row) for row in generate("1F1B", ranks=8, microbatches=100).rows]
    rows[0].insert(0, rows[0].pop(rows[0].index(Action(0, "B", 70))))
    with pytest.raises(ValueError, match="in a circle") as error:
        check_progress(Table(rows))
    assert {"0B70", "0F70"} <= marks_of(error.value)
    assert max(map(len, str(error.value).splitlines())) < 300


def test_refuses_what_it_cannot_place_in_time() -> None:
    with pytest.raises(ValueError, match="rank 0, step 1: 0F0 is run twice"):
        timeline(Table.parse(["0F0 0F0"]))
    with pytest.raises(ValueError, match="rank 0, step 1: 0SEND_F0 is communication"):
        timeline(Table.parse(["0F0 0SEND_F0"]))
