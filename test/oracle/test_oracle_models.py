"""Models that other pipelines refuse or get wrong: frozen parts, ties, skips, odd batches."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import pytest
import torch
from oracle import adamw, check_steps, piper_steps, plain_steps, randomize
from strategies import Captures, Case
from torch import Tensor, nn

WIDTH, ROWS = 6, 2
TAGS = {"blocks.*": "block"}
CASES = (Case("1F1B", 2, 2, 2), Case("GPipe", 4, 1, 4))
HALVES = Case("ZBH1", 2, 2, 2)


class Net(nn.Module):
    """Four blocks, one after the other."""

    def __init__(self, block: Callable[[], nn.Module] = lambda: nn.Linear(WIDTH, WIDTH)) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(block() for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = torch.tanh(block(x))
        return x


class Adapter(nn.Module):
    """LoRA: a frozen matrix plus a trained one of low rank."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(WIDTH, WIDTH).requires_grad_(False)
        self.down = nn.Linear(WIDTH, 2, bias=False)
        self.up = nn.Linear(2, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.base(x) + self.up(self.down(x))
        return y


class Skip(Net):
    """The output of the first block goes to the second and to the last."""

    def forward(self, x: Tensor) -> Tensor:
        first = torch.tanh(self.blocks[0](x))
        x = self.blocks[2](torch.tanh(self.blocks[1](first)))
        y: Tensor = self.blocks[3](x * first)
        return y


class TwoValues(nn.Module):
    """Passes a pair on, of which the second is a mask without a gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(WIDTH, WIDTH)

    def forward(self, pair: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        x, mask = pair
        y = torch.tanh(self.inner(x))
        return torch.where(mask, y, x), y > 0


class Masked(Net):
    """A boolean that depends on parameters crosses every boundary."""

    def __init__(self) -> None:
        super().__init__(TwoValues)

    def forward(self, x: Tensor) -> Tensor:
        pair = (x, x > 0)
        for block in self.blocks:
            pair = block(pair)
        return pair[0]


class Positions(nn.Module):
    """Uses what is the same for every example in the first and in the last block."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        x = self.blocks[1](torch.tanh(self.blocks[0](x + positions)))
        y: Tensor = self.blocks[3](self.blocks[2](x) * positions)
        return y


class Row(nn.Module):
    """Makes the same row for every example, and says it once for each of them if asked to."""

    def __init__(self, *, spread: bool) -> None:
        super().__init__()
        self.row = nn.Parameter(torch.empty(WIDTH))
        self.spread = spread

    def forward(self, x: Tensor) -> Tensor:
        row = torch.tanh(self.row)
        return row.expand(len(x), -1) if self.spread else row


class Sum(nn.Linear):
    """A linear layer of a sum."""

    def forward(self, x: Tensor, shift: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(x + shift)


class Shifted(nn.Module):
    """The third block adds what the first makes of parameters alone to what the second makes."""

    def __init__(self, *, spread: bool) -> None:
        super().__init__()
        blocks = (nn.Linear(WIDTH, WIDTH), Sum(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH))
        self.blocks = nn.ModuleList([Row(spread=spread), *blocks])

    def forward(self, x: Tensor) -> Tensor:
        row = self.blocks[0](x)
        x = torch.tanh(self.blocks[1](x))
        y: Tensor = self.blocks[3](torch.tanh(self.blocks[2](x, row)))
        return y


def _tied() -> Net:
    net = Net()
    net.blocks[3].weight = net.blocks[0].weight
    net.blocks[2].bias = net.blocks[1].bias
    return net


def _frozen(*blocks: int) -> Callable[[], Net]:
    def make() -> Net:
        net = Net()
        for block in blocks:
            net.blocks[block].requires_grad_(False)
        return net

    return make


def squares(model: nn.Module, batch: Mapping[str, Any]) -> Tensor:
    """Mean squared error."""
    return nn.functional.mse_loss(model(batch["x"]), batch["y"])


def scaled_squares(model: nn.Module, batch: Mapping[str, Any]) -> Tensor:
    """Squared error times what the batch says, to a target that it names."""
    assert batch["nothing"] is None
    error = model(batch["x"]) - batch[batch["target"]]
    loss: Tensor = (error**2).mean() * batch["factor"]
    return loss if batch["keep"] else -loss


def positioned(model: nn.Module, batch: Mapping[str, Any]) -> Tensor:
    """Mean squared error of a model that takes positions."""
    return nn.functional.mse_loss(model(batch["x"], batch["positions"]), batch["y"])


@dataclass(frozen=True)
class Scenario:
    """A model, its loss, and what its batch holds besides x and y."""

    make: Callable[[], nn.Module]
    loss_fn: Callable[[nn.Module, Mapping[str, Any]], Tensor] = squares
    extra: Mapping[str, Any] = field(default_factory=dict)
    dims: Mapping[str, int | None] | None = None
    cases: tuple[Case, ...] = CASES
    slow: bool = False

    def batch(self, case: Case, seed: int) -> dict[str, Any]:
        """All ranks' rows."""
        generator = torch.Generator().manual_seed(seed)
        shape = (case.parts * ROWS, WIDTH)
        x, y = torch.randn((2, *shape), generator=generator, dtype=torch.float64)
        return {"x": x, "y": y, **self.extra}


ROW = torch.linspace(-1, 1, WIDTH, dtype=torch.float64)
SCENARIOS = {
    "lora": Scenario(lambda: Net(Adapter)),
    "part-of-first-stage-frozen": Scenario(_frozen(0), cases=CASES[:1], slow=True),
    "first-stages-frozen": Scenario(_frozen(0, 1)),
    "middle-stages-frozen": Scenario(_frozen(1, 2), slow=True),
    "last-stages-frozen": Scenario(_frozen(2, 3)),
    "tied-across-stages": Scenario(_tied),
    "skip-from-first-to-last": Scenario(Skip),
    "boolean-between-stages": Scenario(Masked),
    "row-between-stages": Scenario(lambda: Shifted(spread=False), cases=(CASES[0], HALVES)),
    "spread-row-between-stages": Scenario(lambda: Shifted(spread=True), cases=(HALVES,)),
    "leaves-that-are-no-tensors": Scenario(
        Net,
        scaled_squares,
        {"factor": 3, "target": "y", "nothing": None, "keep": False},
    ),
    "input-without-batch-dim": Scenario(
        Positions, positioned, {"positions": ROW}, {"positions": None}
    ),
}


@cache
def _captures(name: str) -> Captures:
    torch.manual_seed(0)
    model = SCENARIOS[name].make().double()
    randomize(model)
    return Captures(model, SCENARIOS[name].loss_fn)


@pytest.mark.parametrize(
    ("name", "case"),
    [
        pytest.param(
            name,
            case,
            id=f"{name}-{case}",
            marks=pytest.mark.slow if scenario.slow or case.pp == 4 else [],
        )
        for name, scenario in SCENARIOS.items()
        for case in scenario.cases
    ],
)
def test_training_equals_plain_pytorch(name: str, case: Case) -> None:
    """Two clipped steps of AdamW; parameters that are frozen have no gradient and stay."""
    scenario, captures = SCENARIOS[name], _captures(name)
    batches = [scenario.batch(case, seed) for seed in range(2)]
    stages = (4 // case.pp,) * case.pp
    strategy = case.strategy(TAGS, adamw, clip=0.1, dims=scenario.dims, stages=stages)
    program = captures.compile(strategy, batches[0])
    expected = plain_steps(captures.model, scenario.loss_fn, batches, adamw, clip=0.1)
    check_steps(piper_steps(program, captures.model, batches), expected)
