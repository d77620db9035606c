"""Losses whose gradient is the same on all ranks, cut in halves, and complex values."""

from __future__ import annotations

import pytest
import torch
from oracle import adamw, check_steps, piper_steps, plain_steps, randomize
from strategies import Captures, Case
from torch import Tensor, nn

WIDTH, ROWS = 6, 2
Batch = dict[str, Tensor]


class Layers(nn.Module):
    """A chain of layers; the gradient of the sum of its results is all ones."""

    def __init__(self) -> None:
        """Four layers."""
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        """Return values of the shape of `x`."""
        for layer in self.layers:
            x = x + layer(x)
        return x


class Rotated(Layers):
    """Layers behind a rotation of pairs by complex numbers, as rotary embeddings do it."""

    def forward(self, x: Tensor) -> Tensor:
        """Return values of the shape of `x`."""
        for layer in self.layers:
            turn = torch.polar(torch.ones(WIDTH // 2), torch.arange(WIDTH // 2) * 0.1)
            pairs = torch.view_as_complex(layer(x).unflatten(-1, (-1, 2)))
            x = x + torch.view_as_real(pairs * turn.to(pairs.dtype)).flatten(-2)
        return x


def total(model: nn.Module, batch: Batch) -> Tensor:
    """The sum of all results."""
    result: Tensor = model(batch["x"]).sum()
    return result


@pytest.mark.parametrize("schedule", ["1F1B", "ZBH1"])
@pytest.mark.parametrize("build", [Layers, Rotated])
def test_sums_train_as_plain_pytorch(schedule: str, build: type[nn.Module]) -> None:
    """On two stages and two copies."""
    case = Case(schedule, 2, 2, 4)
    model = build().double()
    randomize(model)
    generator = torch.Generator().manual_seed(0)
    shape = (case.parts * ROWS, WIDTH)
    batches = [
        {"x": torch.randn(shape, generator=generator, dtype=torch.float64)} for _ in range(2)
    ]
    strategy = case.strategy({"layers.*": "layer"}, adamw, clip=0.5)
    program = Captures(model, total).compile(strategy, batches[0])
    expected = plain_steps(model, total, batches, adamw, clip=0.5)
    check_steps(piper_steps(program, model, batches), expected)
