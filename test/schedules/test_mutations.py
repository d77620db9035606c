"""Tables with a slip: refused, or by luck still a schedule, as a plain definition decides."""

from __future__ import annotations

import random

from hypothesis import assume, given, settings
from hypothesis import strategies as st
from piper.schedules import (
    SCHEDULES,
    Action,
    Cell,
    Homes,
    Table,
    check_progress,
    homes_of,
    members,
    validate,
)
from test_schedules import make, sizes

Rows = list[list[Cell]]


def is_accepted(rows: Rows, homes: Homes, microbatches: int) -> bool:
    try:
        table = Table(rows)
        validate(table, homes, microbatches)
        check_progress(table)
    except ValueError:
        return False
    return True


def is_schedule(rows: Rows, homes: Homes, microbatches: int) -> bool:
    """Each stage runs each microbatch once, at home, and rows in order get to their ends."""
    ran = [(row, action) for row, cells in enumerate(rows) for a in cells for action in members(a)]
    for stage in range(homes.stages):
        for microbatch in range(microbatches):
            mine = [
                (row, action.pass_)
                for row, action in ran
                if (action.stage, action.microbatch) == (stage, microbatch)
            ]
            if {row for row, _ in mine} != {homes.of(stage, microbatch)}:
                return False
            if sorted(pass_ for _, pass_ in mine) not in (["B", "F"], ["F", "I", "W"]):
                return False
    return len(rows) == homes.ranks and runs_to_the_end(rows, homes.stages)


def runs_to_the_end(rows: Rows, stages: int) -> bool:
    left = [[cell for cell in row if cell is not None] for row in rows]
    done: set[Action] = set()
    moved = True
    while moved:
        moved = False
        for row in left:
            while row and all(is_ready(action, done, stages) for action in members(row[0])):
                done.update(members(row.pop(0)))
                moved = True
    return not any(left)


def is_ready(action: Action, done: set[Action], stages: int) -> bool:
    stage, microbatch = action.stage, action.microbatch
    if action.pass_ == "F":
        return stage == 0 or Action(stage - 1, "F", microbatch) in done
    if action.pass_ == "W":
        return Action(stage, "I", microbatch) in done
    after = (Action(stage + 1, "B", microbatch), Action(stage + 1, "I", microbatch))
    last = stage == stages - 1
    return Action(stage, "F", microbatch) in done and (last or any(a in done for a in after))


def swap(rows: Rows, chance: random.Random) -> None:
    row = chance.choice(rows)
    a, b = (chance.randrange(len(row)) for _ in range(2))
    row[a], row[b] = row[b], row[a]


def drop(rows: Rows, chance: random.Random) -> None:
    row = chance.choice(rows)
    row.pop(chance.randrange(len(row)))


def duplicate(rows: Rows, chance: random.Random) -> None:
    row = chance.choice(rows)
    row.insert(chance.randrange(len(row) + 1), chance.choice(row))


def move(rows: Rows, chance: random.Random) -> None:
    cell = chance.choice(rows).pop(0)
    row = chance.choice(rows)
    row.insert(chance.randrange(len(row) + 1), cell)


def rewrite(rows: Rows, chance: random.Random) -> None:
    row = chance.choice(rows)
    step = chance.randrange(len(row))
    action = members(row[step])[0]
    row[step] = Action(action.stage, chance.choice("FBIW"), action.microbatch)  # type: ignore[arg-type]


def part(rows: Rows, chance: random.Random) -> None:
    """Run the two of a pair one after the other."""
    for row in rows:
        for step, cell in enumerate(row):
            if len(members(cell)) == 2:
                row[step : step + 1] = members(cell)
                return


MUTATIONS = [swap, drop, duplicate, move, rewrite, part]


@settings(max_examples=300)
@given(sizes(), st.lists(st.sampled_from(MUTATIONS), min_size=1, max_size=2), st.randoms())
def test_a_slip_is_refused_or_still_a_schedule(
    size: tuple[str, int, int, int], mutations: list[object], chance: random.Random
) -> None:
    name, ranks, microbatches, chunks = size
    assume(ranks * microbatches * chunks <= 96)
    rows = [list(row) for row in make(*size).rows]
    for mutation in mutations:
        assume(all(rows))
        mutation(rows, chance)  # type: ignore[operator]
    homes = homes_of(name, ranks, microbatches, chunks)
    assert is_accepted(rows, homes, microbatches) == is_schedule(rows, homes, microbatches)


@given(sizes(), st.sampled_from([drop, duplicate]), st.randoms())
def test_no_dropped_or_doubled_cell_is_accepted(
    size: tuple[str, int, int, int], mutation: object, chance: random.Random
) -> None:
    name, ranks, microbatches, chunks = size
    rows = [list(row) for row in make(*size).rows]
    mutation(rows, chance)  # type: ignore[operator]
    assert not is_accepted(rows, homes_of(name, ranks, microbatches, chunks), microbatches)


@given(st.integers(1, 3), st.integers(1, 4), st.integers(1, 3), st.randoms())
def test_shuffled_rows_are_accepted_if_they_run(
    ranks: int, microbatches: int, chunks: int, chance: random.Random
) -> None:
    homes = Homes.v(ranks, ranks * chunks)
    rows: Rows = [[] for _ in range(ranks)]
    for stage in range(homes.stages):
        for microbatch in range(microbatches):
            passes = chance.choice(["FB", "FIW"])
            rows[homes.of(stage, microbatch)] += [
                Action(stage, pass_, microbatch)  # type: ignore[arg-type]
                for pass_ in passes
            ]
    for row in rows:
        chance.shuffle(row)
        if chance.random() < 0.8:
            row.sort(key=lambda cell: "FBIW".index(members(cell)[0].pass_))
    assert is_accepted(rows, homes, microbatches) == is_schedule(rows, homes, microbatches)


def test_the_definition_accepts_every_schedule() -> None:
    for name in SCHEDULES:
        size = name, 2, 4, SCHEDULES[name].chunks or 2
        rows = [list(row) for row in make(*size).rows]
        assert is_schedule(rows, homes_of(*size), 4)
