"""The oracle: training steps of plain PyTorch, and the same steps compiled by Piper.

    plain   one process, eager autograd, clip_grad_norm_, torch.optim, the whole batch at once;
            what a model calls as piper.ops is torch's ops, see `plain_ops`
    piper   the rank programs of a strategy on the local transport

`plain_steps` and `piper_steps` report the same things, and `check_steps` compares them.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import piper
import torch
from piper_runtime import LocalTransport, Program
from piper_runtime.states.optimizer import OptimizerFactory
from plain_ops import plain_ops
from torch import Tensor, nn

BOUND = 1e-10

LossFunction = Callable[[Any, Any], Tensor]


@dataclass(frozen=True)
class Step:
    """What one training step did; gradients are those before clipping."""

    loss: float
    grad_norm: float | None
    gradients: Mapping[str, Tensor]
    states: Mapping[str, Tensor]

    def values(self) -> Iterator[tuple[str, Tensor]]:
        """Yield everything with a name that tells what it is."""
        yield "loss", torch.tensor(self.loss, dtype=torch.float64)
        if self.grad_norm is not None:
            yield "grad_norm", torch.tensor(self.grad_norm, dtype=torch.float64)
        for kind, tensors in (("gradient", self.gradients), ("state", self.states)):
            for name, tensor in tensors.items():
                yield f"{kind} of {name}", tensor


def plain_steps(
    model: nn.Module,
    loss_fn: LossFunction,
    batches: Sequence[Any],
    factory: OptimizerFactory | None = None,
    *,
    clip: float | None = None,
) -> list[Step]:
    """Train a copy of `model` in plain PyTorch, one step per batch."""
    model = copy.deepcopy(model)
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = None if factory is None else factory(trained)
    with plain_ops():
        return [
            _plain_step(model, loss_fn(model, batch), trained, optimizer, clip) for batch in batches
        ]


def _plain_step(
    model: nn.Module,
    loss: Tensor,
    trained: list[nn.Parameter],
    optimizer: torch.optim.Optimizer | None,
    clip: float | None,
) -> Step:
    model.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    gradients = gradients_of(model)
    norm = None if clip is None else float(nn.utils.clip_grad_norm_(trained, clip))
    if optimizer is not None:
        optimizer.step()
    states = {name: value.clone() for name, value in model.state_dict().items()}
    return Step(float(loss.detach()), norm, gradients, states)


def gradients_of(model: nn.Module) -> dict[str, Tensor]:
    """Copies of all gradients, by every name of their parameters."""
    named = model.named_parameters(remove_duplicate=False)
    return {name: p.grad.clone() for name, p in named if p.grad is not None}


def piper_steps(
    program: Program,
    model: nn.Module,
    batches: Sequence[Any],
    factory: OptimizerFactory | None = None,
    *,
    seed: int | None = None,
) -> list[Step]:
    """Run a program from the weights of `model`, one step per batch; `model` does not change.

    With `seed`, ready instructions run in a random order and messages of a rank share one queue.
    """
    transport = LocalTransport(single_queue=seed is not None, seed=seed)
    trainer = piper.Trainer(program, transport=transport, model=model, optimizer=factory)
    steps = []
    for batch in batches:
        result = trainer.step(batch)
        steps.append(
            Step(result.loss, result.grad_norm, trainer.gradients(), trainer.full_state_dict())
        )
    trainer.close()
    return steps


def check_steps(found: Sequence[Step], expected: Sequence[Step], *, bound: float = BOUND) -> None:
    """Assert that two runs agree in loss, norm, gradients and states of every step."""
    assert len(found) == len(expected)
    far = {}
    for index, (ours, plain) in enumerate(zip(found, expected, strict=True), start=1):
        known, wanted = dict(ours.values()), dict(plain.values())
        assert known.keys() == wanted.keys(), known.keys() ^ wanted.keys()
        for name, value in wanted.items():
            gap = distance(known[name], value)
            if gap > bound:
                far[f"step {index}: {name}"] = gap
    assert not far, f"differences above {bound}: {far}"


def distance(found: Tensor, expected: Tensor) -> float:
    """max|d| / max(1, max|expected|); NaN and other shapes are infinitely far."""
    if found.shape != expected.shape:
        return math.inf
    scale = max(1.0, float(expected.abs().max()))
    gap = float((found - expected).abs().max()) / scale
    return math.inf if math.isnan(gap) else gap


def randomize(model: nn.Module, *, seed: int = 0, scale: float = 0.2) -> None:
    """Give every parameter, biases and norms too, values that no symmetry of the model hides."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.add_(scale * noise)


def sgd(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    """SGD with momentum."""
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def adamw(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    """AdamW with decay."""
    return torch.optim.AdamW(parameters, lr=0.01, betas=(0.9, 0.95), weight_decay=0.1)
