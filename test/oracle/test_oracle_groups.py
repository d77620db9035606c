"""Parameter groups by name: other options for some parameters, as in plain PyTorch."""

from __future__ import annotations

import itertools
from pathlib import Path

import piper
import pytest
import small_gpt
import torch
from oracle import check_steps, distance, piper_steps, plain_steps
from piper_runtime import Program, Trainer
from piper_runtime.states.optimizer import OptimizerFactory, TakesNames
from sharded import Sharded
from sharded_gpt import CLIP, NAMES
from small_gpt import TAGS, Batch, token_loss
from strategies import Captures
from torch import nn

Named = list[tuple[str, nn.Parameter]]
DECAY = 0.5


def split(named: Named) -> list[dict[str, object]]:
    """Decay for matrices alone, another rate for the rest: biases and the weights of norms."""
    matrices = [p for name, p in named if name.endswith("weight") and "norm" not in name]
    others = [p for name, p in named if name.endswith("bias") or "norm" in name]
    assert len(matrices) + len(others) == len(named)
    return [{"params": matrices, "weight_decay": DECAY}, {"params": others, "lr": 0.03}]


@piper.takes_names
def adamw_by_name(named: Named) -> torch.optim.Optimizer:
    """AdamW of two groups."""
    return torch.optim.AdamW(split(named), lr=0.01, betas=(0.9, 0.95), weight_decay=0.0)


@piper.takes_names
def sgd_by_name(named: Named) -> torch.optim.Optimizer:
    """SGD with momentum, of two groups."""
    return torch.optim.SGD(split(named), lr=0.1, momentum=0.9)


@piper.takes_names
def adamw_of_pairs(named: Named) -> torch.optim.Optimizer:
    """One group that knows its names."""
    return torch.optim.AdamW(named, lr=0.01, weight_decay=DECAY)


@piper.takes_names
def only_norms(named: Named) -> torch.optim.Optimizer:
    """An optimizer that leaves out most parameters, and in most buckets all."""
    return torch.optim.AdamW([{"params": [p for name, p in named if "norm" in name]}], lr=0.01)


def uniform(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    """AdamW that decays everything."""
    return torch.optim.AdamW(parameters, lr=0.01, betas=(0.9, 0.95), weight_decay=DECAY)


def in_plain(factory: TakesNames, model: nn.Module) -> OptimizerFactory:
    """The factory for the parameters of a copy of the model, in its order."""
    names = [name for name, _ in model.named_parameters()]
    return lambda parameters: factory([*zip(names, parameters, strict=True)])


def compiled(case: Sharded, factory: OptimizerFactory) -> tuple[Program, Captures, list[Batch]]:
    """The program of the tied model, the model, and batches of three steps."""
    captures, batches = small_gpt.captures(tied=True), small_gpt.batches(case)
    strategy = case.strategy(TAGS, factory, clip=CLIP, stages=case.stages)
    return captures.compile(strategy, batches[0]), captures, batches


@pytest.mark.parametrize("factory", [adamw_by_name, sgd_by_name, adamw_of_pairs, only_norms])
@pytest.mark.parametrize(
    "case",
    [
        pytest.param(
            Sharded(name, 2, 2, 4, zero=zero, bucket_size=size),
            id=f"{name}-zero{zero}-{size}",
            marks=[]
            if name == "1F1B" and (zero, size) in ((0, 25_000_000), (3, 1))
            else pytest.mark.slow,
        )
        for name, zero, size in itertools.product(NAMES, range(4), (25_000_000, 1))
    ],
)
def test_groups_by_name_equal_plain_pytorch(case: Sharded, factory: TakesNames) -> None:
    """Three steps, clipped, with all of a stage in a bucket and with a bucket for each state."""
    program, captures, batches = compiled(case, factory)
    plain = in_plain(factory, captures.model)
    expected = plain_steps(captures.model, token_loss, batches, plain, clip=CLIP)
    check_steps(piper_steps(program, captures.model, batches), expected)


def test_the_groups_differ() -> None:
    """What is compared above is not what one group of all parameters would do."""
    captures = small_gpt.captures(tied=True)
    batches = small_gpt.batches(Sharded("1F1B", 2, 2, 4))
    plain = in_plain(adamw_by_name, captures.model)
    apart, alike = (
        plain_steps(captures.model, token_loss, batches, factory, clip=CLIP)[-1].states
        for factory in (plain, uniform)
    )
    for name in ("layers.0.norm1.weight", "layers.0.norm1.bias"):
        assert distance(apart[name], alike[name]) > 1e-3


@pytest.mark.parametrize("zero", range(4))
def test_names_are_those_of_the_model(zero: int) -> None:
    """A tied weight has its first name; parts have as many dims as what they are parts of."""
    seen: Named = []

    @piper.takes_names
    def recording(named: Named) -> torch.optim.Optimizer:
        seen.extend(named)
        return adamw_by_name(named)

    program, captures, _ = compiled(Sharded("1F1B", 2, 2, 4, zero=zero), adamw_by_name)
    Trainer(program, model=captures.model, optimizer=recording).close()
    expected = dict(captures.model.named_parameters())
    assert {name for name, _ in seen} == expected.keys()
    for name, parameter in seen:
        assert parameter.ndim == expected[name].ndim
        if zero == 0:
            assert parameter.shape == expected[name].shape


@pytest.mark.parametrize("factory", [adamw_by_name, adamw_of_pairs, only_norms])
@pytest.mark.parametrize(
    ("saver", "loader"),
    [
        (0, 3),
        pytest.param(3, 0, marks=pytest.mark.slow),
        pytest.param(3, 3, marks=pytest.mark.slow),
    ],
)
def test_checkpoints_of_groups(
    factory: TakesNames, saver: int, loader: int, tmp_path: Path
) -> None:
    """Saved under one stage and loaded under another, training goes on as if uninterrupted."""
    program, captures, batches = compiled(Sharded("1F1B", 2, 2, 4, zero=saver), factory)
    first = Trainer(program, model=captures.model)
    for batch in batches[:2]:
        first.step(batch)
    first.save(tmp_path / "it")
    program, _, _ = compiled(Sharded("1F1B", 2, 2, 4, zero=loader), factory)
    second = Trainer(program, model=captures.model)
    second.load(tmp_path / "it")
    for trainer in (first, second):
        trainer.step(batches[2])
    expected = first.full_state_dict()
    for name, value in second.full_state_dict().items():
        assert distance(value, expected[name]) < 1e-12, name


def test_a_saved_program_finds_the_factory(tmp_path: Path) -> None:
    """By its import path, which is that of what the decorator returned."""
    program, captures, batches = compiled(Sharded("1F1B", 2, 2, 4, zero=3), adamw_by_name)
    assert program.manifest.optimizer == f"{__name__}:adamw_by_name"
    program.save(tmp_path)
    found = piper_steps(Program.open(tmp_path), captures.model, batches)
    check_steps(found, piper_steps(program, captures.model, batches), bound=0.0)


@pytest.mark.parametrize("zero", [0, 3])
def test_check_mode_makes_the_same_groups(zero: int) -> None:
    program, captures, batches = compiled(Sharded("1F1B", 2, 2, 4, zero=zero), adamw_by_name)
    summary = piper.check(program, token_loss, batches[0], model=captures.model, steps=2)
    assert summary.compared > 0


def test_a_factory_without_the_mark_gets_parameters() -> None:
    """As before, so that one which looks at dims goes on working."""

    def by_dims(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        matrices = [p for p in parameters if p.ndim > 1]
        others = [p for p in parameters if p.ndim <= 1]
        groups: list[dict[str, object]] = [
            {"params": matrices, "weight_decay": DECAY},
            {"params": others},
        ]
        return torch.optim.AdamW(groups, lr=0.01, weight_decay=0.0)

    program, captures, batches = compiled(Sharded("1F1B", 2, 2, 4, zero=3), by_dims)
    expected = plain_steps(captures.model, token_loss, batches, by_dims, clip=CLIP)
    check_steps(piper_steps(program, captures.model, batches), expected)
