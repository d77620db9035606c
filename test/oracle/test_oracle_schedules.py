"""Every schedule trains as plain PyTorch does, with stages of uneven sizes, in fp64."""

from __future__ import annotations

from dataclasses import dataclass

import piper
import pytest
import small_gpt
from oracle import adamw, check_steps, piper_steps, plain_steps, sgd
from piper.mlir import ir
from piper.mlir.passmanager import PassManager
from piper.schedules import SCHEDULES
from piper_runtime import Program
from small_gpt import TAGS, token_loss
from strategies import Case

CLIP = 0.5
LAYERS = 10  # with embedding and head 12 chunks, on at most 8 stages


def uneven(stages: int, chunks: int = LAYERS + 2) -> tuple[int, ...]:
    """How many chunks each stage has: later stages more, and no two neighbours alike if possible."""
    sizes = [1] * stages
    order = [*range(1, stages, 2), *range(0, stages, 2)]
    for extra in range(chunks - stages):
        sizes[order[extra % stages]] += 1
    return tuple(sizes)


@dataclass(frozen=True)
class Scheduled(Case):
    """A case whose stages are as many as its schedule places on `pp` ranks."""

    chunks: int = 1

    def __str__(self) -> str:
        """As a test id."""
        return f"{super().__str__()}-v{self.chunks}"

    @property
    def sizes(self) -> tuple[int, ...]:
        """Chunks per stage."""
        return uneven(SCHEDULES[self.schedule].stages(self.pp, self.chunks))


def _case(name: str, pp: int, dp: int) -> Scheduled:
    """A schedule at 8 microbatches, or 12 where it is not defined for 8."""
    schedule = SCHEDULES[name]
    chunks = schedule.chunks or 2
    for microbatches in (8, 12):
        try:
            schedule.check(pp, microbatches, chunks)
        except ValueError:
            continue
        return Scheduled(name, pp, dp, microbatches, chunks=chunks)
    raise AssertionError(f"{name} is defined for neither 8 nor 12 microbatches on {pp} ranks")


MATRIX = [_case(name, pp, dp) for name in SCHEDULES for pp in (2, 4) for dp in (1, 2)]
QUICK = [case for case in MATRIX if (case.pp, case.dp) == (2, 2)]


def _compiled(case: Scheduled) -> tuple[Program, piper.Strategy]:
    captures = small_gpt.captures(tied=True, layers=LAYERS)
    strategy = case.strategy(TAGS, sgd, clip=CLIP, stages=case.sizes)
    return captures.compile(strategy, small_gpt.batches(case, steps=1)[0]), strategy


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=str(case), marks=[] if case in QUICK else pytest.mark.slow)
        for case in MATRIX
    ],
)
def test_training_equals_plain_pytorch(case: Scheduled) -> None:
    """Loss, norm, gradients and weights of two steps each of SGD and AdamW, clipped; and again
    with instructions in a random order and one queue for all messages of a rank.
    """
    model = small_gpt.captures(tied=True, layers=LAYERS).model
    batches = small_gpt.batches(case, steps=2)
    program, _ = _compiled(case)
    for factory in (sgd, adamw):
        expected = plain_steps(model, token_loss, batches, factory, clip=CLIP)
        found = piper_steps(program, model, batches, factory)
        check_steps(found, expected)
        check_steps(piper_steps(program, model, batches, factory, seed=3), found, bound=0.0)


REDUCED = [
    *("record", "assign-kinds", "form-buckets", "split-backward", "unroll-microbatches"),
    *("insert-transfers", "insert-reductions"),
]


@pytest.mark.parametrize("name", ["ZBH1", "DualPipe"])
def test_weight_gradients_do_not_wait_for_each_other(name: str) -> None:
    """Before ordering, no W run depends on a W run of another microbatch, or on any other."""
    program, _ = _compiled(_case(name, 2, 2))
    with ir.Context():
        module = ir.Module.parse(program.texts["ir/chunks.mlir"])
        passes = ",".join(f"piper-{name}" for name in REDUCED)
        PassManager.parse(f"builtin.module({passes})").run(module.operation)
        clusters = [op for op in module.body.operations if op.operation.name == "piper.cluster"]
        counts = [_check_independence(cluster.operation) for cluster in clusters]
    assert max(counts) > 8  # the training step has W runs; the evaluation has none


def _check_independence(cluster: ir.Operation) -> int:
    """Check every W run; how many there are."""
    behind: dict[ir.Operation, bool] = {}
    count = 0
    for op in cluster.regions[0].blocks[0].operations:
        makers = [operand.owner.operation for operand in op.operands]
        waits = any(behind[maker] for maker in makers)
        is_weight = op.operation.name == "piper.run" and "$W" in str(op.attributes["chunk"])
        assert not (is_weight and waits), op
        count += is_weight
        behind[op.operation] = waits or is_weight
    return count
