"""Training goes on from a checkpoint of another strategy as if it had never been interrupted."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import hf_models
import piper
import pytest
import small_gpt
import torch
from hf_models import FAMILIES
from oracle import Step, adamw, check_steps, plain_steps, sgd
from piper.strategy import Update
from piper_runtime import Program, Trainer
from piper_runtime.states.optimizer import OptimizerFactory
from sharded import Sharded
from small_gpt import TAGS, Batch, token_loss
from strategies import Case
from torch import nn
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
from torch.distributed.checkpoint.state_dict import get_model_state_dict, get_optimizer_state_dict
from torch.distributed.checkpoint.state_dict_saver import save as torch_save

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


# An unmodified model of transformers, with buffers that its state dict does not have.


LLAMA = {"dp2-zero3": Sharded("1F1B", 1, 2, 2, zero=3), "pp2-1F1B": Sharded("1F1B", 2, 1, 4)}
LLAMA_BATCH = Case("1F1B", 1, 1, 4)


def llama(name: str, factory: OptimizerFactory = adamw) -> Trainer:
    """A trainer of its own model, and so of its own buffers."""
    case, captures = LLAMA[name], hf_models.captures("llama", layers=2)
    strategy = case.strategy(FAMILIES["llama"].tags, factory, stages=case.stages)
    program = captures.compile(strategy, hf_models.make_batch(LLAMA_BATCH))
    return Trainer(program, transport="local", model=copy.deepcopy(captures.model))


def llama_model() -> nn.Module:
    return copy.deepcopy(hf_models.captures("llama", layers=2).model)


def dumped(tree: dict[str, Any], path: Path) -> Path:
    """Write a checkpoint as plain PyTorch does."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        torch_save(tree, checkpoint_id=path, no_dist=True)
    return path


def tree_of(path: Path) -> dict[str, Any]:
    """Read a checkpoint as plain PyTorch does."""
    dcp_to_torch_save(path, path.with_suffix(".pt"))
    return dict(torch.load(path.with_suffix(".pt")))


def test_a_state_dict_is_that_of_the_model() -> None:
    """It loads strictly, and what is not in it is still there to compute with."""
    trainer, model, batch = llama("dp2-zero3"), llama_model(), hf_models.make_batch(LLAMA_BATCH)
    trainer.step(batch)
    state = trainer.full_state_dict()
    assert [*state] == [*model.state_dict()]
    assert not any("inv_freq" in name for name in state)
    assert any("inv_freq" in name for name, _ in model.named_buffers())
    assert dict(trainer.stream_state_dict()).keys() == state.keys()
    model.load_state_dict(state)
    expected = float(hf_models.next_token_loss(model, batch).detach())
    assert trainer.evaluate(batch) == pytest.approx(expected, abs=1e-12)


def test_a_checkpoint_has_the_keys_of_torch(tmp_path: Path) -> None:
    """Another strategy goes on from it."""
    first, second, batch = llama("dp2-zero3"), llama("pp2-1F1B"), hf_models.make_batch(LLAMA_BATCH)
    first.step(batch)
    first.save(tmp_path / "it")
    found = FileSystemReader(tmp_path / "it").read_metadata().state_dict_metadata
    names = {f"model.{name}" for name in get_model_state_dict(llama_model())}
    assert {key for key in found if key.startswith("model.")} == names
    second.load(tmp_path / "it")
    assert second.step(batch).loss == pytest.approx(first.step(batch).loss, abs=1e-12)


def test_a_checkpoint_of_plain_torch_is_all_that_is_needed(tmp_path: Path) -> None:
    """Model and optimizer as torch's own functions name them, and the step."""
    model, batch = llama_model(), hf_models.make_batch(LLAMA_BATCH)
    optimizer = adamw([*model.parameters()])
    hf_models.next_token_loss(model, batch).backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    tree = {
        "model": get_model_state_dict(model),
        "optimizer": get_optimizer_state_dict(model, optimizer),
        "train_state": {"step": torch.tensor(1)},
    }
    trainer = llama("pp2-1F1B")
    trainer.load(dumped(tree, tmp_path / "it"))
    expected = float(hf_models.next_token_loss(model, batch).detach())
    assert trainer.step(batch).loss == pytest.approx(expected, abs=1e-12)
    assert trainer.steps == 2


def test_a_checkpoint_with_buffers_that_are_not_persistent_loads(tmp_path: Path) -> None:
    """As older ones have them; the trainer keeps its own."""
    first, second, batch = llama("dp2-zero3"), llama("pp2-1F1B"), hf_models.make_batch(LLAMA_BATCH)
    first.step(batch)
    first.save(tmp_path / "it")
    tree = tree_of(tmp_path / "it")
    [name] = [name for name, _ in llama_model().named_buffers() if name.endswith(".inv_freq")]
    tree["model"][name] = torch.zeros(2)
    second.load(dumped(tree, tmp_path / "older"))
    assert second.step(batch).loss == pytest.approx(first.step(batch).loss, abs=1e-12)
