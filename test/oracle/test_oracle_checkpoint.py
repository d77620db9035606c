"""Training goes on from a checkpoint of another strategy as if it had never been interrupted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import piper
import pytest
import small_gpt
from oracle import Step, adamw, check_steps, plain_steps, sgd
from piper.strategy import Update
from piper_runtime import Program, Trainer
from piper_runtime.optimizer import OptimizerFactory
from sharded import Sharded
from small_gpt import TAGS, Batch, token_loss
from torch import nn

CLIP = 0.5
LAYERS = 6  # with embedding and head 8 chunks, two for each of 4 stages
BEFORE, AFTER = 2, 3

STRATEGIES = {  # of one batch size
    "single": Sharded("1F1B", 1, 1, 8),
    "dp2-zero1": Sharded("1F1B", 1, 2, 4, zero=1),
    "dp4-zero3": Sharded("1F1B", 1, 4, 2, zero=3),
    "pp2-1F1B": Sharded("1F1B", 2, 1, 8),
    "pp4-DualPipeV": Sharded("DualPipeV", 4, 1, 8),
}
FACTORIES = {"sgd": sgd, "adamw": adamw}
NAMES = list(STRATEGIES)
QUICK = {  # each of them saves once and loads once
    ("single", "dp4-zero3"),
    ("dp4-zero3", "pp2-1F1B"),
    ("pp2-1F1B", "dp2-zero1"),
    ("dp2-zero1", "pp4-DualPipeV"),
    ("pp4-DualPipeV", "single"),
}
Save = Callable[[str, str], Path]


@cache
def batches() -> list[Batch]:
    return small_gpt.batches(STRATEGIES["single"], steps=BEFORE + AFTER)


@cache
def model() -> nn.Module:
    return small_gpt.captures(tied=True, layers=LAYERS).model


@cache
def program(name: str) -> Program:
    case, captures = STRATEGIES[name], small_gpt.captures(tied=True, layers=LAYERS)
    strategy = case.strategy(TAGS, sgd, clip=CLIP, stages=case.stages)
    return captures.compile(strategy, batches()[0])


@cache
def scaled() -> Program:
    """A program whose loss scale grows in every step."""
    case, captures = STRATEGIES["dp2-zero1"], small_gpt.captures(tied=True, layers=LAYERS)
    scale = piper.LossScale(initial=4.0, interval=1)
    directives = [
        replace(one, loss_scale=scale) if isinstance(one, Update) else one
        for one in case.strategy(TAGS, sgd, stages=case.stages).directives
    ]
    strategy = piper.Strategy(mesh=case.mesh, directives=directives)
    return captures.compile(strategy, batches()[0])


@cache
def uninterrupted(optimizer: str) -> list[Step]:
    """All steps in plain PyTorch, one process and one optimizer."""
    return plain_steps(model(), token_loss, batches(), FACTORIES[optimizer], clip=CLIP)


def start(name: str, factory: OptimizerFactory) -> Trainer:
    return Trainer(program(name), transport="local", model=model(), optimizer=factory)


@pytest.fixture(scope="module")
def save(tmp_path_factory: pytest.TempPathFactory) -> Save:
    """Train under a strategy and save: once for all that load it."""
    folder = tmp_path_factory.mktemp("checkpoints")

    @cache
    def saved(name: str, optimizer: str) -> Path:
        trainer, path = start(name, FACTORIES[optimizer]), folder / f"{name}-{optimizer}"
        for batch in batches()[:BEFORE]:
            trainer.step(batch)
        trainer.save(path)
        return path

    return saved


@pytest.mark.parametrize("optimizer", list(FACTORIES))
@pytest.mark.parametrize(
    ("saver", "loader"),
    [
        pytest.param(a, b, id=f"{a}-to-{b}", marks=[] if (a, b) in QUICK else pytest.mark.slow)
        for a in NAMES
        for b in NAMES
    ],
)
def test_training_goes_on_as_if_uninterrupted(
    saver: str, loader: str, optimizer: str, save: Save
) -> None:
    """Three more steps: loss, norm, gradients and weights equal those of plain PyTorch."""
    trainer = start(loader, FACTORIES[optimizer])
    trainer.load(save(saver, optimizer))
    steps = []
    for batch in batches()[BEFORE:]:
        result = trainer.step(batch)
        states = trainer.full_state_dict()
        steps.append(Step(result.loss, result.grad_norm, trainer.gradients(), states))
    assert trainer.steps == BEFORE + AFTER
    check_steps(steps, uninterrupted(optimizer)[BEFORE:])


def test_a_loss_scale_goes_on(tmp_path: Path) -> None:
    """Its value, for how long it has been right, and how many steps were skipped."""
    first, second = (
        Trainer(scaled(), transport="local", model=model(), optimizer=sgd) for _ in range(2)
    )
    for batch in batches()[:BEFORE]:
        first.step(batch)
    first.num_skipped = 1
    first.save(tmp_path / "it")
    second.load(tmp_path / "it")
    assert first.loss_scale is not None
    assert second.loss_scale is not None
    assert second.loss_scale.state_dict() == first.loss_scale.state_dict()
    assert second.loss_scale.value == 4.0 * 2**BEFORE
    found, expected = (trainer.step(batches()[BEFORE]) for trainer in (second, first))
    assert found.loss == expected.loss
    assert (found.loss_scale, found.num_skipped) == (expected.loss_scale, 1)


def test_a_loss_scale_is_not_needed(tmp_path: Path) -> None:
    """A program that changes it begins with its own, one that does not has no use for it."""
    plain = start("dp2-zero1", sgd)
    plain.save(tmp_path / "plain")
    trainer = Trainer(scaled(), transport="local", model=model(), optimizer=sgd)
    trainer.load(tmp_path / "plain")
    assert trainer.loss_scale is not None
    assert trainer.loss_scale.value == 4.0
    trainer.step(batches()[0])
    trainer.save(tmp_path / "scaled")
    plain.load(tmp_path / "scaled")
    assert plain.steps == 1
    assert plain.loss_scale is None
