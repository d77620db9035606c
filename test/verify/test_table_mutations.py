"""Schedules that were changed are refused, or still train as the one they were made of."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from random import Random

import pytest
from compiled import DUAL_PIPE_V, ONE_F_ONE_B, ZBV, Strategy, compiled, refusal
from levels import FLAGS, piper_opt
from oracle import BOUND
from piper.mlir import ir

STRATEGIES = [ONE_F_ONE_B, DUAL_PIPE_V, ZBV]
FEW, MANY = 4, 40
PIPELINE = "piper-record,piper-materialize,piper-lower"
_ROWS = re.compile(r"(piper\.schedule @order .*)\[(.*)\]")

Rows = list[list[str]]
Mutation = Callable[[Rows, Random], None]


def _place(rows: Rows, choice: Random) -> tuple[list[str], int]:
    row = choice.choice(rows)
    return row, choice.randrange(len(row))


def _swap(rows: Rows, choice: Random) -> None:
    row, i = _place(rows, choice)
    j = choice.randrange(len(row))
    row[i], row[j] = row[j], row[i]


def _swap_next(rows: Rows, choice: Random) -> None:
    row, i = _place(rows, choice)
    j = (i + 1) % len(row)
    row[i], row[j] = row[j], row[i]


def _drop(rows: Rows, choice: Random) -> None:
    row, i = _place(rows, choice)
    del row[i]


def _duplicate(rows: Rows, choice: Random) -> None:
    row, i = _place(rows, choice)
    row.insert(choice.randrange(len(row)), row[i])


def _move(rows: Rows, choice: Random) -> None:
    row, i = _place(rows, choice)
    other, j = _place(rows, choice)
    other.insert(j, row.pop(i))


def _change(rows: Rows, choice: Random) -> None:
    """Give a cell another stage, pass or microbatch."""
    row, i = _place(rows, choice)
    row[i] = re.sub(r"\d+$", str(choice.randrange(7)), row[i], count=1)
    if choice.random() < 0.5:
        row[i] = re.sub(r"[A-Z]", choice.choice("FBIW"), row[i], count=1)


def _cut_or_join(rows: Rows, choice: Random) -> None:
    """Run some backward cell as I and W, apart or together; or, in a table of halves, as a whole."""
    whole = [(row, i) for row in rows for i, cell in enumerate(row) if re.match(r"\d+B", cell)]
    if not whole:
        row, i = choice.choice(
            [(row, i) for row in rows for i, cell in enumerate(row) if re.match(r"\d+I", cell)]
        )
        row.remove(row[i].replace("I", "W"))
        row[i] = row[i].replace("I", "B")
        return
    row, i = choice.choice(whole)
    cell = row[i]
    row[i] = cell.replace("B", "I")
    row.insert(choice.randint(i, len(row)), cell.replace("B", "W"))


def _swap_rows(rows: Rows, choice: Random) -> None:
    rows[0], rows[-1] = rows[-1], rows[0]


MUTATIONS: dict[str, Mutation] = {
    "swap two cells": _swap,
    "swap with the next cell": _swap_next,
    "drop a cell": _drop,
    "duplicate a cell": _duplicate,
    "move a cell": _move,
    "change a cell": _change,
    "cut or join a backward cell": _cut_or_join,
    "swap rows": _swap_rows,
}


def mutated(text: str, kind: str, choice: Random) -> tuple[str, Rows]:
    """A module of chunks with another table, and the table."""
    match = _ROWS.search(text)
    assert match
    rows = [row.split() for row in json.loads(f"[{match[2]}]")]
    MUTATIONS[kind](rows, choice)
    written = ", ".join(f'"{" ".join(row)}"' for row in rows)
    return _ROWS.sub(lambda m: f"{m[1]}[{written}]", text, count=1), rows


def lower(text: str) -> tuple[ir.Module | None, str]:
    """The lowered module and no error, or none and the first error."""
    try:
        module = ir.Module.parse(text)
    except ir.MLIRError as fault:  # type: ignore[attr-defined]  # the stub lacks it
        return None, str(fault)
    error = refusal(module.operation, PIPELINE)
    return (module, "") if error is None else (None, error)


def check_kind(strategy: Strategy, kind: str, seeds: range) -> None:
    base = compiled(strategy)
    for seed in seeds:
        text, rows = mutated(base.level("chunks"), kind, Random(seed))
        done = piper_opt(text, *FLAGS["cluster"], *FLAGS["programs"], "-o", "/dev/null")
        assert done.returncode in (0, 1), (seed, rows, done.stderr)
        with ir.Context():
            module, error = lower(text)
            assert bool(error) == bool(done.returncode)
            if module is not None:
                try:
                    base.check(module, bound=BOUND)  # contributions come in another order
                except Exception as fault:
                    raise AssertionError(f"{strategy}, seed {seed}, accepted: {rows}") from fault


@pytest.mark.parametrize("kind", MUTATIONS)
@pytest.mark.parametrize("strategy", STRATEGIES[:2], ids=str)
def test_a_mutation_is_refused_or_harmless(strategy: Strategy, kind: str) -> None:
    check_kind(strategy, kind, range(FEW))


@pytest.mark.slow
@pytest.mark.parametrize("kind", MUTATIONS)
@pytest.mark.parametrize("strategy", STRATEGIES, ids=str)
def test_many_mutations_are_refused_or_harmless(strategy: Strategy, kind: str) -> None:
    check_kind(strategy, kind, range(FEW, MANY))


@pytest.mark.parametrize("kind", ["drop a cell", "duplicate a cell"])
def test_no_cell_is_lost_or_run_twice(kind: str) -> None:
    with ir.Context():
        for seed in range(FEW):
            text, _ = mutated(compiled(ONE_F_ONE_B).level("chunks"), kind, Random(seed))
            assert re.search("expected (a cell|each cell once)", lower(text)[1])
