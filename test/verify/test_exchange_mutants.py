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

FEW, MANY = 10, 500  # as many as `benchmarks/mutants.py --exchanges --write` tries
STATES_ONLY = {"other slot", "value kept"}
"""Slips of instructions that have nothing to do with exchanges."""
PROGRAMS_ONLY = {"other communicator", "wait dropped", "value freed early"}
CLUSTERS_ONLY = {"other stream", "other coordinate", "exchanged once more"}


@cache
def mutants(family: str, level: str) -> list[Mutant]:
    return mutants_at(compiled(EXCHANGES[family]), level, exchanges=True)


def few(family: str, level: str) -> list[Mutant]:
    """Families in turn try other kinds, so that together they try all."""
    start, step = [*EXCHANGES].index(family), len(EXCHANGES)
    return sample(mutants(family, level), FEW * step)[start::step]


def check(family: str, level: str, some: list[Mutant]) -> None:
    verdicts = list(judge(compiled(EXCHANGES[family]), level, some))
    assert not [verdict for verdict in verdicts if verdict.outcome == "survived"]
    assert any(verdict.outcome == "refused" for verdict in verdicts)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("family", EXCHANGES)
def test_a_slip_with_an_exchange_is_seen_or_harmless(family: str, level: str) -> None:
    check(family, level, few(family, level))


@pytest.mark.slow
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("family", EXCHANGES)
def test_many_slips_with_exchanges_are_seen_or_harmless(family: str, level: str) -> None:
    check(family, level, sample(mutants(family, level), MANY))


@pytest.mark.parametrize(
    ("level", "missing"), [("programs", CLUSTERS_ONLY), ("cluster", PROGRAMS_ONLY)]
)
def test_every_kind_of_slip_with_exchanges_is_tried(level: str, missing: set[str]) -> None:
    tried = {mutant.slip for family in EXCHANGES for mutant in few(family, level)}
    print(EXCHANGE_SLIPS.keys()-tried)
    assert tried == EXCHANGE_SLIPS.keys() - missing - STATES_ONLY


@pytest.mark.parametrize("family", EXCHANGES)
def test_unchanged_exchanges_train_alike_in_any_order(family: str) -> None:
    base = compiled(EXCHANGES[family])
    with ir.Context():
        check_steps(base.run(ir.Module.parse(base.text), seed=1), base.steps, bound=0.0)
