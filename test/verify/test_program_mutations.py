"""Programs and clusters that were changed are refused, or still compute the same."""

from __future__ import annotations

import re
from itertools import pairwise
from random import Random

import pytest
from compiled import DUAL_PIPE_V, ONE_F_ONE_B, ZBV, Strategy, compiled, refusal
from mutations import MUTATIONS, OF_CLUSTERS, body_of, mutate, programs_of, reorder
from oracle import BOUND
from piper.mlir import ir

STRATEGIES = [ONE_F_ONE_B, DUAL_PIPE_V, ZBV]
FEW, MANY = 3, 50


def check_kind(strategy: Strategy, level: str, kind: str, seeds: range) -> None:
    """Assert that a kind of mutation does no harm that is not seen.

    In a cluster contributions may come in another order, which changes the last bits of sums.
    """
    base = compiled(strategy)
    pipeline, bound = LEVELS[level]
    with ir.Context():
        for seed in seeds:
            module = ir.Module.parse(base.level(level))
            what = mutate(module, kind, Random(seed))
            if what and refusal(module.operation, pipeline) is None:
                try:
                    base.check(module, bound=bound)
                except Exception as error:
                    raise AssertionError(f"{strategy}, seed {seed}, accepted: {what}") from error


LEVELS = {"programs": ("piper-verify", 0.0), "cluster": ("piper-verify,piper-lower", BOUND)}


@pytest.mark.parametrize("kind", MUTATIONS)
@pytest.mark.parametrize("strategy", STRATEGIES[:2], ids=str)
def test_a_mutation_is_refused_or_harmless(strategy: Strategy, kind: str) -> None:
    check_kind(strategy, "programs", kind, range(FEW))


@pytest.mark.parametrize("kind", OF_CLUSTERS)
def test_a_mutation_of_the_cluster_is_refused_or_harmless(kind: str) -> None:
    check_kind(ZBV, "cluster", kind, range(FEW))


@pytest.mark.slow
@pytest.mark.parametrize("kind", MUTATIONS)
@pytest.mark.parametrize("strategy", STRATEGIES, ids=str)
def test_many_mutations_are_refused_or_harmless(strategy: Strategy, kind: str) -> None:
    check_kind(strategy, "programs", kind, range(FEW, MANY))


@pytest.mark.slow
@pytest.mark.parametrize("kind", OF_CLUSTERS)
@pytest.mark.parametrize("strategy", STRATEGIES, ids=str)
def test_many_mutations_of_the_cluster_are_refused_or_harmless(
    strategy: Strategy, kind: str
) -> None:
    check_kind(strategy, "cluster", kind, range(FEW, MANY))


@pytest.mark.slow
@pytest.mark.parametrize("strategy", STRATEGIES, ids=str)
def test_two_mutations_at_once_are_refused_or_harmless(strategy: Strategy) -> None:
    """A second one may hide the first, as at the other end of a message."""
    base = compiled(strategy)
    with ir.Context():
        for seed in range(4 * MANY):
            choice = Random(seed)
            module = ir.Module.parse(base.text)
            kinds = choice.choices(list(MUTATIONS), k=2)
            what = [mutate(module, kind, choice) for kind in kinds]
            if refusal(module.operation) is None:
                try:
                    base.check(module, bound=0.0)
                except Exception as error:
                    raise AssertionError(f"{strategy}, seed {seed}, accepted: {what}") from error


def test_every_kind_suits_some_instruction() -> None:
    with ir.Context():
        for kind in MUTATIONS:
            assert mutate(ir.Module.parse(compiled(DUAL_PIPE_V).text), kind, Random(0)), kind


def test_the_unchanged_program_is_accepted_and_compared() -> None:
    base = compiled(ONE_F_ONE_B)
    with ir.Context():
        module = ir.Module.parse(base.text)
        assert refusal(module.operation) is None
        base.check(module, bound=0.0)


# Equal messages.


def test_a_swap_of_equal_messages_is_caught() -> None:
    """In a V of three ranks activations and gradients leave for one neighbour. Only labels tell
    them apart once they are of one microbatch, and there is no cluster to compare with.
    """
    with ir.Context():
        errors = []
        for index in range(_num_twins()):
            module = ir.Module.parse(compiled(DUAL_PIPE_V).text)
            _leave_labels_only(module)
            assert refusal(module.operation) is None
            if reorder(*_twins(module)[index]):
                errors.append(refusal(module.operation))
    assert len(errors) > 2
    for error in errors:
        assert error is not None
        assert re.search(r'has value "[^"]*", got "', error)


def _leave_labels_only(module: ir.Module) -> None:
    for view in list(module.body.operations):
        if view.operation.name == "piper.cluster":
            view.operation.erase()
    zero = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), 0)
    for program in programs_of(module):
        for op in body_of(program):
            if op.name in ("piper.send", "piper.recv"):
                op.attributes["mb"] = zero


def _num_twins() -> int:
    return len(_twins(ir.Module.parse(compiled(DUAL_PIPE_V).text)))


def _twins(module: ir.Module) -> list[tuple[ir.Operation, ir.Operation]]:
    """Pairs of messages, one behind the other, of one type, that carry different values."""
    found = []
    for program in programs_of(module):
        sends = [op for op in body_of(program) if op.name == "piper.send"]
        for stream in sorted({str(op.attributes["stream"]) for op in sends}):
            lane = [op for op in sends if str(op.attributes["stream"]) == stream]
            for first, second in pairwise(lane):
                is_like = first.operands[0].type == second.operands[0].type
                if is_like and first.attributes["label"] != second.attributes["label"]:
                    found.append((first, second))
    return found
