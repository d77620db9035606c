"""Tables whose rows wait for each other: found at ordering, from the values of the cluster."""

from __future__ import annotations

import re
from itertools import pairwise
from random import Random

import pytest
from compiled import ONE_F_ONE_B, ZBV, Strategy, compiled
from piper.mlir import ir
from piper.mlir.passmanager import PassManager
from piper.schedules import Table
from piper.schedules.dependences import check_progress
from test_table_mutations import PIPELINE, Rows, mutated

FEW, MANY = 12, 300
_LINK = re.compile(
    r"coordinate (?P<at>\d+) stops before (?P<cell>\w+), number (?P<number>\d+) of its row: "
    r"@(?P<chunk>\S+) for microbatch (?P<mb>\d+) needs this value of @\S+ for microbatch \d+, "
    r"which coordinate (?P<to>\d+) runs in (?P<made>\w+), number (?P<behind>\d+) of its row"
    r"(, behind (?P<head>\w+))?"
)


def finishes(rows: Rows) -> bool:
    """Whether the rows of a table finish by the dependences that cells stand for."""
    try:
        check_progress(Table.of([" ".join(row) for row in rows]))
    except ValueError:
        return False
    return True


def notes_of(text: str) -> list[str] | None:
    """The notes of the deadlock that lowering a module reports; None if it reports nothing."""
    with ir.Context():
        module = ir.Module.parse(text)
        try:
            PassManager.parse(f"builtin.module({PIPELINE})").run(module.operation)
        except ir.MLIRError as error:  # type: ignore[attr-defined]  # the stub lacks it
            first = error.error_diagnostics[0]
            assert "deadlocks: cells wait for each other in a cycle" in first.message
            return [note.message for note in first.notes if "stops before" in note.message]
    return None


def check_cycle(rows: Rows, notes: list[str]) -> None:
    """Assert that the notes are a cycle of cells that are where the notes say."""
    links = []
    for note in notes:
        match = _LINK.fullmatch(note)
        assert match, note
        at, number, to, behind = (int(match[k]) for k in ("at", "number", "to", "behind"))
        assert rows[at][number] == match["cell"]
        assert rows[to][behind] == match["made"]
        assert match["cell"].endswith(match["mb"])
        links.append((at, match["cell"], to, match["head"] or match["made"]))
    assert len({at for at, *_ in links}) == len(links)
    for (_, _, to, head), (at, cell, _, _) in pairwise([*links, links[0]]):
        assert (to, head) == (at, cell)


def check_tables(strategy: Strategy, seeds: range) -> set[bool]:
    """Assert that ordering agrees with the table alone; return what was found."""
    found = set()
    for seed in seeds:
        choice = Random(seed)
        text, rows = mutated(compiled(strategy).level("chunks"), "swap two cells", choice)
        for _ in range(choice.randint(0, 3)):
            text, rows = mutated(text, "swap two cells", choice)
        notes = notes_of(text)
        assert (notes is None) == finishes(rows), rows
        if notes is not None:
            check_cycle(rows, notes)
        found.add(notes is None)
    return found


@pytest.mark.parametrize("strategy", [ONE_F_ONE_B, ZBV], ids=str)
def test_a_deadlock_is_found_and_its_cycle_shown(strategy: Strategy) -> None:
    assert False in check_tables(strategy, range(FEW))


@pytest.mark.slow
@pytest.mark.parametrize("strategy", [ONE_F_ONE_B, ZBV], ids=str)
def test_many_deadlocks_are_found_and_their_cycles_shown(strategy: Strategy) -> None:
    check_tables(strategy, range(FEW, MANY))
