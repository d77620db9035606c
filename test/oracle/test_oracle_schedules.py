"""Every schedule trains as plain PyTorch does, with stages of uneven sizes, in fp64."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass

import piper
import pytest
import small_gpt
from oracle import adamw, check_steps, piper_steps, plain_steps, sgd
from piper.mlir import ir
from piper.mlir.passmanager import PassManager
from piper.schedules import SCHEDULES, generate
from piper_runtime import Program
from small_gpt import TAGS, token_loss
from strategies import Case

CLIP = 0.5
LAYERS = 10  # with embedding and head 12 chunks, on at most 8 stages


def uneven(stages: int, chunks: int = LAYERS + 2) -> tuple[int, ...]:
    """How many chunks each stage has: odd stages twice as many as even ones, such as (2, 4, 2, 4)."""
    sizes = [1] * stages
    order = [*range(1, stages, 2)] * 2 + [*range(0, stages, 2)]
    for extra in range(chunks - stages):
        sizes[order[extra % len(order)]] += 1
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
        sizes = uneven(SCHEDULES[self.schedule].stages(self.pp, self.chunks))
        assert len(set(sizes)) > 1
        return sizes


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


def _compiled(case: Scheduled) -> Program:
    captures = small_gpt.captures(tied=True, layers=LAYERS)
    strategy = case.strategy(TAGS, sgd, clip=CLIP, stages=case.sizes)
    return captures.compile(strategy, small_gpt.batches(case, steps=1)[0])


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
    _check_training(_compiled(case), small_gpt.batches(case, steps=2))


def test_stages_of_a_layout_train() -> None:
    """1, 3, 3 and 5 chunks, spelled out by letters."""
    case = Case("ZBVZeroBubble", pp=2, dp=2, microbatches=4)
    batches = small_gpt.batches(case, steps=2)
    tags = {"E": "first", "t": "layer", "L": "last"}
    strategy = piper.Strategy(
        mesh={"pp": case.pp, "dp": case.dp},
        directives=[
            piper.annotate(TAGS),
            piper.split(microbatches=case.microbatches),
            piper.place(layout="E|(t*3|)*2t*4L", letters=tags),
            piper.replicate(axis="dp"),
            piper.order(case.schedule),
            piper.update(sgd, clip=CLIP),
        ],
    )
    program = small_gpt.captures(tied=True, layers=LAYERS).compile(strategy, batches[0])
    stages = re.findall(r"chunk @\S+\$F pass = F stage = (\d)", program.texts["ir/cluster.mlir"])
    assert Counter(stages) == {"0": 1, "1": 3, "2": 3, "3": 5}
    _check_training(program, batches)


def _check_training(program: Program, batches: list[small_gpt.Batch]) -> None:
    model = small_gpt.captures(tied=True, layers=LAYERS).model
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
    case = _case(name, 2, 2)
    program = _compiled(case)
    with ir.Context():
        module = ir.Module.parse(program.texts["ir/chunks.mlir"])
        passes = ",".join(f"piper-{name}" for name in REDUCED)
        PassManager.parse(f"builtin.module({passes})").run(module.operation)
        clusters = [op for op in module.body.operations if op.operation.name == "piper.cluster"]
        counts = [_check_independence(cluster.operation) for cluster in clusters]
    table = generate(name, ranks=case.pp, microbatches=case.microbatches)
    cells = [action.stage for _, _, action in table.actions() if action.pass_ == "W"]
    assert cells
    # Of the training step; the evaluation has none.
    assert counts == [sum(case.sizes[stage] for stage in cells), 0]


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
