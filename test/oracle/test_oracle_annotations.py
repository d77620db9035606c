"""Parameters of the model itself, functions with a backward of their own, losses of parameters
alone and smoothed labels, against plain PyTorch.
"""

# ruff: noqa: N812  (plain PyTorch style)

from __future__ import annotations

import piper
import pytest
import torch
import torch.nn.functional as F
from hand_written import Product
from oracle import LossFunction, adamw, check_steps, piper_steps, plain_steps, randomize
from piper.strategy import Directive
from torch import Tensor, nn

WIDTH, CLASSES, ROWS = 6, 4, 16
Batch = dict[str, Tensor]


class Rooted(nn.Module):
    """Two layers, and a bias of the model itself that is added before them."""

    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(WIDTH))
        self.fc = nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, CLASSES)

    def shifted(self, x: Tensor) -> Tensor:
        return x + self.bias

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(torch.tanh(self.fc(self.shifted(x))))
        return logits


class Marked(Rooted):
    """Marks what reads the bias."""

    def shifted(self, x: Tensor) -> Tensor:
        with piper.annotate("first"):
            return super().shifted(x)


class Functional(Marked):
    """Goes on by a function, so that the gradient of its weight is made by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = Multiplied()  # type: ignore[assignment]


class Multiplied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.eye(WIDTH))
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = Product.apply(self.linear(x), self.weight)  # type: ignore[no-untyped-call]
        return made


def batches() -> list[Batch]:
    generator = torch.Generator().manual_seed(3)
    return [
        {
            "x": torch.randn(ROWS, WIDTH, dtype=torch.float64, generator=generator),
            "y": torch.randint(CLASSES, (ROWS,), generator=generator),
        }
        for _ in range(2)
    ]


def smoothed(model: nn.Module, batch: Batch) -> Tensor:
    """The mean that the refusal of label smoothing recommends."""
    logits = model(batch["x"])
    return F.cross_entropy(logits, batch["y"], label_smoothing=0.1, reduction="none").mean()


def smoothed_at_once(model: nn.Module, batch: Batch) -> Tensor:
    """The same in one call, for plain PyTorch."""
    return F.cross_entropy(model(batch["x"]), batch["y"], label_smoothing=0.1)


def penalized(model: nn.Module, batch: Batch) -> Tensor:
    """Beside a cross-entropy a penalty of the parameters, the same on every rank."""
    squares = sum((p.square().sum() for p in model.parameters()), torch.zeros(()).double())
    penalty = piper.local_loss(squares, name="penalty")
    return F.cross_entropy(model(batch["x"]), batch["y"]) + 0.1 * penalty


PIPELINE = (piper.split(microbatches=4), piper.place(stages=2), piper.replicate(zero=3))
ROOT = piper.annotate({"": "model"})
PARTS = piper.annotate({"fc": "fc", "head": "head"})
CASES: dict[str, tuple[type[nn.Module], dict[str, int], tuple[Directive, ...]]] = {
    "whole": (Rooted, {"dp": 2}, (ROOT, piper.split(microbatches=2), piper.replicate())),
    "function": (Functional, {"pp": 2, "dp": 2}, (PARTS, *PIPELINE, piper.order("1F1B"))),
    "marked": (Marked, {"pp": 2, "dp": 2}, (PARTS, *PIPELINE, piper.order("ZBH1"))),
}


@pytest.mark.parametrize("loss_fn", [smoothed, penalized])
@pytest.mark.parametrize(("kind", "mesh", "given"), CASES.values(), ids=CASES)
def test_steps(
    kind: type[nn.Module],
    mesh: dict[str, int],
    given: tuple[Directive, ...],
    loss_fn: LossFunction,
) -> None:
    model = kind().double()
    randomize(model)
    plain = smoothed_at_once if loss_fn is smoothed else loss_fn
    expected = plain_steps(model, plain, batches(), adamw, clip=0.5)
    strategy = piper.Strategy(mesh=mesh, directives=[*given, piper.update(adamw, clip=0.5)])
    program = piper.compile(model, loss_fn, strategy, batches()[0])
    check_steps(piper_steps(program, model, batches(), adamw), expected)


def test_a_penalty_is_computed_where_its_parameters_are() -> None:
    """So that no rank holds a parameter for the penalty alone."""
    strategy = piper.Strategy(mesh={"pp": 2, "dp": 2}, directives=CASES["marked"][2])
    program = piper.compile(Marked().double(), penalized, strategy, batches()[0])
    first, last = (program.texts[f"program_pp{index}.py"] for index in range(2))
    assert "head_weight" not in first
    assert "fc_weight" not in last
    assert "fc_weight" in first
    assert "head_weight" in last
