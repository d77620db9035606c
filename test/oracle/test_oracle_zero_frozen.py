"""Frozen parameters under ZeRO-3: ranks share them out and gather them, and that is all."""

from __future__ import annotations

from functools import cache
from typing import Literal

import pytest
import torch
from oracle import adamw, check_steps, piper_steps, plain_steps
from piper_runtime import Program, Trainer
from piper_runtime.states.state import Bucket
from sharded import Sharded
from strategies import Captures
from torch import Tensor, nn
from weighing import Weighing

CLIP, WIDTH, LAYERS = 0.1, 6, 4
KEPT = ("exp_avg", "exp_avg_sq")
Batch = dict[str, Tensor]


class Net(nn.Module):
    """Layers, of which those of one of two stages are frozen."""

    def __init__(self, *frozen: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(
            nn.Linear(WIDTH, WIDTH, dtype=torch.float64) for _ in range(LAYERS)
        )
        for index in frozen:
            self.layers[index].requires_grad_(requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x


def squares(model: nn.Module, batch: Batch) -> Tensor:
    """The mean of the outputs' squares."""
    loss: Tensor = (model(batch["x"]) ** 2).mean()
    return loss


@cache
def net(*frozen: int) -> Captures:
    return Captures(Net(*frozen), squares)


def compiled(frozen: tuple[int, ...], case: Sharded) -> tuple[Program, nn.Module, list[Batch]]:
    """The program, the model and the batches of three steps."""
    generator = torch.Generator().manual_seed(1)
    shape = (3, case.parts, WIDTH)
    rows = torch.randn(shape, generator=generator, dtype=torch.float64)
    batches = [{"x": part} for part in rows]
    strategy = case.strategy({"layers.*": "layer"}, adamw, clip=CLIP, stages=case.stages)
    return net(*frozen).compile(strategy, batches[0]), net(*frozen).model, batches


@pytest.mark.parametrize("reduce", ["each", pytest.param("last", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "frozen",
    [
        pytest.param((0, 1), id="first stage"),
        pytest.param((2, 3), id="last stage", marks=pytest.mark.slow),
        pytest.param((1, 2), id="half of each", marks=pytest.mark.slow),
    ],
)
def test_frozen_layers_are_gathered_only(
    frozen: tuple[int, ...], reduce: Literal["last", "each"]
) -> None:
    """No gradient, no reduction, no state of an optimizer; the rest trains as plain PyTorch."""
    case = Sharded("1F1B", 2, 2, 4, zero=3, reduce=reduce)
    program, model, batches = compiled(frozen, case)
    expected = plain_steps(model, squares, batches, adamw, clip=CLIP)
    check_steps(piper_steps(program, model, batches), expected)

    transport = Weighing()
    trainer = Trainer(program, model=model, optimizer=adamw, transport=transport)
    for batch in batches:
        trainer.step(batch)
    names = {f"layers.{index}.{name}" for index in frozen for name in ("weight", "bias")}
    assert trainer.gradients().keys() == dict(model.named_parameters()).keys() - names
    whole = trainer.full_state_dict()
    assert all(torch.equal(whole[name], model.state_dict()[name]) for name in names)
    seen: set[str] = set()
    for rank, home in trainer._homes.items():
        kinds = {"all_gather"}
        for bucket in home.buckets.values():
            seen.update(bucket.spec.members)
            if names.issuperset(bucket.spec.members):
                check_frozen(bucket, case)
            else:
                assert names.isdisjoint(bucket.spec.members)
                check_trained(bucket, case)
                kinds = kinds | {"reduce_scatter"}
        assert {kind for at, kind in transport.operands if at == rank} == kinds
    assert seen == dict(model.named_parameters()).keys()
    trainer.close()


def check_frozen(bucket: Bucket, case: Sharded) -> None:
    """It has a part of the value, and nothing else."""
    assert bucket.spec.shard_axes == ("dp",)
    assert bucket.value.numel() == sum(member.numel for member in bucket.members) // case.dp
    assert bucket.compute is None
    assert bucket.spec.grad_dtype is None
    assert bucket._grad is None
    assert bucket.optimizer is None
    assert not bucket.parameters


def check_trained(bucket: Bucket, case: Sharded) -> None:
    """It is shared out, and so are the moments of AdamW."""
    part = sum(member.numel for member in bucket.members) // case.dp
    assert bucket.spec.shard_axes == ("dp",)
    assert bucket.value.numel() == part
    assert bucket.optimizer is not None
    kept = [state[name] for state in bucket.optimizer.state.values() for name in KEPT]
    assert sum(value.numel() for value in kept) == len(KEPT) * part
