"""No slip with what ranks exchange within a microbatch changes a step without being seen."""

from __future__ import annotations

from functools import cache

import pytest
from compiled import compiled
from exchange_slips import EXCHANGE_SLIPS
from families import EXCHANGES
from oracle import check_steps
from piper.mlir import ir
from verdicts import LEVELS, Mutant, judge, mutants_at, sample

FEW, MANY = 2, 500  # families per kind; as many as `benchmarks/mutants.py --write` tries
STATES_ONLY = {"other slot"}
"""Slips of instructions that have nothing to do with exchanges."""
MISSING = {
    "programs": STATES_ONLY | {"other stream", "other coordinate", "exchanged once more"},
    "cluster": STATES_ONLY
    | {"other communicator", "wait dropped", "value kept", "value freed early"},
}
"""The kinds of slips that a level does not have."""


@cache
def mutants(family: str, level: str) -> list[Mutant]:
    return mutants_at(compiled(EXCHANGES[family]), level, exchanges=True)


def few(level: str) -> dict[str, list[Mutant]]:
    """By family; one mutant of each kind in some of the families that have such."""
    chosen: dict[str, list[Mutant]] = {family: [] for family in EXCHANGES}
    for number, slip in enumerate(EXCHANGE_SLIPS):
        some = {
            family: [mutant for mutant in mutants(family, level) if mutant.slip == slip]
            for family in EXCHANGES
        }
        having = [family for family in EXCHANGES if some[family]]
        for family in {having[(number + turn) % len(having)] for turn in range(FEW) if having}:
            chosen[family] += sample(some[family], 1)
    return chosen


def check(family: str, level: str, some: list[Mutant]) -> None:
    verdicts = list(judge(compiled(EXCHANGES[family]), level, some))
    assert not [verdict for verdict in verdicts if verdict.outcome == "survived"]
    assert any(verdict.outcome == "refused" for verdict in verdicts)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("family", EXCHANGES)
def test_a_slip_with_an_exchange_is_seen_or_harmless(family: str, level: str) -> None:
    check(family, level, few(level)[family])


@pytest.mark.slow
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("family", EXCHANGES)
def test_many_slips_with_exchanges_are_seen_or_harmless(family: str, level: str) -> None:
    check(family, level, sample(mutants(family, level), MANY))


@pytest.mark.parametrize("level", LEVELS)
def test_every_kind_of_slip_with_exchanges_is_tried(level: str) -> None:
    tried = {mutant.slip for some in few(level).values() for mutant in some}
    assert tried == EXCHANGE_SLIPS.keys() - MISSING[level]


@pytest.mark.parametrize("family", EXCHANGES)
def test_unchanged_exchanges_train_alike_in_any_order(family: str) -> None:
    base = compiled(EXCHANGES[family])
    with ir.Context():
        check_steps(base.run(ir.Module.parse(base.text), seed=1), base.steps, bound=0.0)
