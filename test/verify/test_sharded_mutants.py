"""No slip with a sharded training step changes what it computes without being seen."""

from __future__ import annotations

from functools import cache
from unittest import mock

import pytest
from compiled import compiled
from families import FAMILIES
from oracle import check_steps
from piper.mlir import ir
from slips import SLIPS
from verdicts import LEVELS, Mutant, Verdict, judge, mutants_at, mutants_of, sample

FEW, MANY = 17, 625  # one of each kind; as many as `benchmarks/mutants.py --write` tries

PROGRAMS_ONLY = {"other communicator", "wait dropped", "value kept", "value freed early"}
"""Clusters have streams only, and neither events nor frees."""


@cache
def mutants(family: str, level: str) -> list[Mutant]:
    return mutants_at(compiled(FAMILIES[family]), level)


def check(family: str, level: str, limit: int) -> None:
    base = compiled(FAMILIES[family])
    verdicts = list(judge(base, level, sample(mutants(family, level), limit)))
    assert not [verdict for verdict in verdicts if verdict.outcome == "survived"]
    assert any(verdict.outcome == "refused" for verdict in verdicts)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_slip_is_seen_or_harmless(family: str, level: str) -> None:
    check(family, level, FEW)


@pytest.mark.slow
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("family", FAMILIES)
def test_many_slips_are_seen_or_harmless(family: str, level: str) -> None:
    check(family, level, MANY)


@pytest.mark.parametrize("level", LEVELS)
def test_every_kind_of_slip_is_tried(level: str) -> None:
    tried = set()
    for family in FAMILIES:
        tried |= {mutant.slip for mutant in sample(mutants(family, level), FEW)}
    assert tried == SLIPS.keys() - (PROGRAMS_ONLY if level == "cluster" else set())


@pytest.mark.parametrize("family", FAMILIES)
def test_the_unchanged_program_trains_alike_in_any_order(family: str) -> None:
    base = compiled(FAMILIES[family])
    with ir.Context():
        module = ir.Module.parse(base.text)
        for seed in (None, 1, 2):
            check_steps(base.run(module, seed=seed), base.steps, bound=0.0)


def test_listing_mutants_changes_nothing() -> None:
    with ir.Context():
        module = ir.Module.parse(compiled(FAMILIES["HSDP 2 x 2, stage 2"]).text)
        before = str(module)
        assert mutants_of(module)
        assert str(module) == before


# What the verdicts say, without a verifier.


def unverified(slip: str) -> Verdict:
    """What becomes of the last mutant of a kind."""
    family, level = "ZeRO-2, each, reduced in fp32", "programs"
    [*_, mutant] = [mutant for mutant in mutants(family, level) if mutant.slip == slip]
    with mock.patch.dict(LEVELS, {level: ""}):
        [verdict] = judge(compiled(FAMILIES[family]), level, [mutant])
    return verdict


def test_a_lost_contribution_would_survive() -> None:
    verdict = unverified("sum begun anew")
    assert verdict.outcome == "survived"
    assert "gradient of" in verdict.reason


def test_a_value_that_is_gone_fails_at_run() -> None:
    verdict = unverified("value freed early")
    assert verdict.outcome == "failed at run"


def test_a_collective_of_another_microbatch_is_the_same() -> None:
    assert unverified("other microbatch").outcome == "equivalent"
