"""The verifier accepts exactly those program sets that the abstract machine finishes."""

from __future__ import annotations

import re
from itertools import pairwise
from random import Random
from typing import Any

import pytest
import torch
from brute_force import find_hazard, waits_of
from hypothesis import HealthCheck, Phase, find, given, settings
from machine import Rows, Verdict, execute, read_rows, verify
from piper_runtime.errors import DeadlockError
from program_sets import ProgramSet, program_sets

FAST = settings(max_examples=100, derandomize=True, suppress_health_check=list(HealthCheck))
LONG = settings(FAST, max_examples=2000)
MODES = pytest.mark.parametrize("single_queue", [False, True])
SEEDS = (0, 1)
Faults = type[Exception] | tuple[type[Exception], ...]
"""What ends a set that does not finish."""


def finishes(programs: ProgramSet, *, single_queue: bool, faults: Faults = DeadlockError) -> bool:
    """Whether a set finishes, in issue order and at random, then always with the same outputs."""
    runs = []
    for seed in (None, *SEEDS):
        try:
            runs.append(execute(programs, single_queue=single_queue, seed=seed))
        except faults:
            runs.append({})
    for ours in runs[1:]:
        assert ours.keys() == runs[0].keys()
        assert all(torch.equal(ours[name], value) for name, value in runs[0].items())
    return bool(runs[0])


def check_progress(
    programs: ProgramSet, *, single_queue: bool, faults: Faults = DeadlockError
) -> bool:
    """Assert that the verifier knows whether a set finishes, and that it shows a cycle if not."""
    verdict = verify(programs.text, single_queue=single_queue)
    finished = finishes(programs, single_queue=single_queue, faults=faults)
    assert bool(verdict) == finished, verdict
    if "wait for each other" in verdict.error:
        is_shared = "shares one queue" in verdict.error
        check_cycle(verdict, read_rows(programs.text), single_queue=is_shared)
    return finished


def check_cycle(verdict: Verdict, rows: list[Rows], *, single_queue: bool) -> None:
    """Assert that each link is a wait of the machine and leads to where the next begins."""
    shape = re.compile(r"coordinate (\d+), number (\d+): .*? waits for number (\d+), ")
    links = []
    for note in verdict.notes:
        match = shape.match(note)
        assert match, note
        links.append(tuple(map(int, match.groups())))
    waits = [waits_of(program, single_queue=single_queue) for program in rows]
    for at, number, other in links:
        reached = {number}
        while other not in reached:  # waits along one stream are shown as one link
            assert reached, (at, number, other)
            reached = {earlier for late in reached for earlier in waits[at][late]}
    for (at, _, other), (then, number, _) in pairwise([*links, links[0]]):
        assert _node(rows, at, other) == _node(rows, then, number)


def _node(rows: list[Rows], at: int, number: int) -> tuple[Any, ...]:
    """The same for all ends of a message or a collective."""
    stream = rows[at][number].get("stream")
    if stream is None:
        return at, number
    return stream, sum(row.get("stream") == stream for row in rows[at][:number])


def check_waits(programs: ProgramSet) -> None:
    """Assert that a set is refused if anything in it may come too early, and else runs right."""
    hazards = [find_hazard(rows) for rows in read_rows(programs.text)]
    if not any(hazards):
        check_progress(programs, single_queue=False)
        return
    verdict = verify(programs.text)
    assert not verdict, hazards
    assert re.search("to wait for|is still there", verdict.error)


@MODES
@FAST
@given(programs=program_sets())
def test_progress(programs: ProgramSet, single_queue: bool) -> None:
    check_progress(programs, single_queue=single_queue)


@FAST
@given(programs=program_sets(careless=True))
def test_waits(programs: ProgramSet) -> None:
    check_waits(programs)


@pytest.mark.slow
@MODES
@LONG
@given(programs=program_sets())
def test_progress_of_many(programs: ProgramSet, single_queue: bool) -> None:
    check_progress(programs, single_queue=single_queue)


@pytest.mark.slow
@LONG
@given(programs=program_sets(careless=True))
def test_waits_of_many(programs: ProgramSet) -> None:
    check_waits(programs)


KINDS = {
    "one that finishes": lambda p: bool(verify(p.text)) and len(p.comms) > 1,
    "one that does not": lambda p: "to finish, got" in verify(p.text).error,
    "one that only queues of their own finish": lambda p: (
        bool(verify(p.text)) and not verify(p.text, single_queue=True)
    ),
    "one order here, another there": lambda p: (
        "shares both communicators" in verify(p.text, single_queue=True).error
    ),
}
CARELESS_KINDS = {
    "a missing event": "to wait for what makes operand",
    "a free before a read": "to wait for a stream that reads",
    "a buffer too early": "its buffer is taken",
    "a use after a free": "is still there",
}
SEARCH = settings(
    max_examples=3000,
    phases=[Phase.generate],
    database=None,
    suppress_health_check=list(HealthCheck),
)


@pytest.mark.parametrize("kind", KINDS)
def test_sets_are_of_every_kind(kind: str) -> None:
    find(program_sets(), KINDS[kind], settings=SEARCH, random=Random(0))


@pytest.mark.parametrize("kind", CARELESS_KINDS)
def test_careless_sets_are_of_every_kind(kind: str) -> None:
    def is_kind(programs: ProgramSet) -> bool:
        return CARELESS_KINDS[kind] in verify(programs.text).error

    find(program_sets(careless=True), is_kind, settings=SEARCH, random=Random(0))
