"""Every strategy trains as plain PyTorch does on the whole batch, in fp64."""

from __future__ import annotations

import copy
import itertools

import piper
import pytest
import small_gpt
import torch
from oracle import BOUND, adamw, check_steps, piper_steps, plain_steps, sgd
from small_gpt import TAGS, token_loss
from strategies import Case

CLIP = 0.5

MATRIX = [
    (Case(schedule, pp, dp, microbatches), tied)
    for schedule, pp, dp, microbatches, tied in itertools.product(
        ("GPipe", "1F1B"), (1, 2, 4), (1, 2), (1, 4, 8), (False, True)
    )
]
QUICK = [  # with the tied head: one capture for all
    Case("1F1B", 1, 1, 1),
    Case("GPipe", 1, 2, 4),
    Case("1F1B", 2, 2, 4),
    Case("GPipe", 2, 1, 8),
    Case("1F1B", 4, 1, 1),
    Case("1F1B", 4, 2, 8),
]


@pytest.mark.parametrize(
    ("case", "tied"),
    [
        pytest.param(
            case,
            tied,
            id=f"{case}-{'tied' if tied else 'untied'}",
            marks=[] if tied and case in QUICK else pytest.mark.slow,
        )
        for case, tied in MATRIX
    ],
)
def test_training_equals_plain_pytorch(case: Case, tied: bool) -> None:
    """Loss, norm, gradients and weights of three steps, with SGD and with AdamW, clipped."""
    captures = small_gpt.captures(tied=tied)
    model, batches = captures.model, small_gpt.batches(case)
    program = captures.compile(case.strategy(TAGS, sgd, clip=CLIP), batches[0])
    for factory in (sgd, adamw):
        expected = plain_steps(model, token_loss, batches, factory, clip=CLIP)
        assert any(step.grad_norm > CLIP for step in expected if step.grad_norm is not None)
        check_steps(piper_steps(program, model, batches, factory), expected)


@pytest.mark.parametrize("seed", [0, 1])
def test_results_do_not_depend_on_who_is_first(seed: int) -> None:
    """The bits of a step are the same in any order that the program allows."""
    case, captures = Case("1F1B", 2, 2, 4), small_gpt.captures(tied=True)
    batches = small_gpt.batches(case, steps=2)
    program = captures.compile(case.strategy(TAGS, sgd, clip=CLIP), batches[0])
    expected = piper_steps(program, captures.model, batches)
    check_steps(piper_steps(program, captures.model, batches, seed=seed), expected, bound=0.0)


@pytest.mark.parametrize(
    "case",
    [Case(pp=0, dp=2, microbatches=2), Case(pp=2, dp=0, microbatches=2), Case(pp=0, dp=0)],
    ids=["dp-only", "pp-only", "one-rank"],
)
def test_meshes_without_an_axis(case: Case) -> None:
    """A mesh needs no axis of size 1, and no axis at all."""
    captures = small_gpt.captures(tied=True)
    batches = small_gpt.batches(case, steps=2)
    program = captures.compile(case.strategy(TAGS, adamw, clip=CLIP), batches[0])
    expected = plain_steps(captures.model, token_loss, batches, adamw, clip=CLIP)
    check_steps(piper_steps(program, captures.model, batches), expected)


def test_steps_without_update_leave_weights() -> None:
    """A strategy without an update computes gradients only."""
    case, captures = Case(pp=2, dp=2, microbatches=2), small_gpt.captures(tied=True)
    batches = small_gpt.batches(case, steps=2)
    program = captures.compile(case.strategy(TAGS), batches[0])
    expected = plain_steps(captures.model, token_loss, batches)
    check_steps(piper_steps(program, captures.model, batches), expected)


def test_evaluate_equals_plain_pytorch() -> None:
    """The loss of another batch after a step, without changing what the step left."""
    case, captures = Case("1F1B", 2, 2, 4), small_gpt.captures(tied=True)
    batches = small_gpt.batches(case, steps=2)
    program = captures.compile(case.strategy(TAGS, sgd, clip=CLIP), batches[0])
    trainer = piper.Trainer(program, transport="local", model=captures.model)
    trainer.step(batches[0])
    before, gradients = trainer.full_state_dict(), trainer.gradients()
    losses = [trainer.evaluate(batches[1]) for _ in range(2)]
    plain = copy.deepcopy(captures.model)
    plain.load_state_dict(before)
    expected = float(token_loss(plain, batches[1]).detach())
    assert losses == pytest.approx([expected, expected], abs=BOUND, rel=0)
    for found, kept in (
        (trainer.full_state_dict(), before),
        (trainer.gradients(), gradients),
    ):
        assert all(torch.equal(found[name], value) for name, value in kept.items())
    trainer.close()


def test_batch_without_any_label_has_loss_zero() -> None:
    """Counts are clamped at one: no label anywhere gives zeros where plain PyTorch gives NaN."""
    case, captures = Case(pp=2, dp=2, microbatches=2), small_gpt.captures(tied=True)
    (batch,) = small_gpt.batches(case, steps=1)
    batch["labels"].fill_(small_gpt.IGNORED)
    program = captures.compile(case.strategy(TAGS, sgd, clip=CLIP), batch)
    (step,) = piper_steps(program, captures.model, [batch])
    assert step.loss == 0
    assert all(int(torch.count_nonzero(value)) == 0 for value in step.gradients.values())
