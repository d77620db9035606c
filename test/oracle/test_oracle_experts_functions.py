"""Backward functions of the user's between products of experts: as plain PyTorch.

The compiler tells gradients of rows from rows. What such a function makes of both is its own
business: it may add them, make neither of them, or be nonlinear.
"""

from __future__ import annotations

from typing import Any

import piper
import pytest
import small_moe
import torch
from oracle import check_steps, piper_steps, plain_steps, randomize, sgd
from small_moe import CLIP, Experted, Experts, Layer, token_loss
from torch import Tensor


class Saved(torch.autograd.Function):
    """Squares rows, and adds some of them to their gradients."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor) -> Tensor:
        ctx.save_for_backward(rows)
        return rows * rows

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        (rows,) = ctx.saved_tensors
        decayed: Tensor = Saved.gradient(grads[0], rows) + 0.1 * rows
        return decayed

    @staticmethod
    def gradient(grad: Tensor, rows: Tensor) -> Tensor:
        return 2 * grad * rows


class Rounded(Saved):
    """Rounds the rows that it kept."""

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        (rows,) = ctx.saved_tensors
        return Saved.gradient(grads[0], (rows * 16).round() / 16)


class Stopped(Saved):
    """Lets nothing through."""

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return torch.zeros_like(ctx.saved_tensors[0])


class Bent(Saved):
    """Is not linear."""

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        (rows,) = ctx.saved_tensors
        return Saved.gradient(grads[0] * grads[0].abs().sqrt(), rows)


class Derived(Saved):
    """Uses the gradient of another op for its derivative."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor) -> Tensor:
        ctx.save_for_backward(rows)
        return rows * rows.sigmoid()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        (rows,) = ctx.saved_tensors
        slopes: Tensor = torch.ops.aten.silu_backward(torch.ones_like(rows), rows)
        return grads[0] * slopes


FUNCTIONS = [Saved, Rounded, Stopped, Bent, Derived]


def make_model(function: type[Saved]) -> small_moe.Model:
    class Own(Experts):
        def forward(self, rows: Tensor, received: Tensor) -> Tensor:
            linear = piper.ops.moe_linear
            hidden: Tensor = function.apply(linear(rows, self.gate, received))  # type: ignore[no-untyped-call]
            out: Tensor = linear(hidden * linear(rows, self.up, received), self.down, received)
            return out

    def make_layer() -> Layer:
        layer = Layer()
        layer.experts = Own()
        return layer

    torch.manual_seed(0)
    model = small_moe.Model(1, make_layer)
    randomize(model, scale=0.4)
    return model.double()


@pytest.mark.slow
@pytest.mark.parametrize("again", [False, True], ids=["kept", "computed again"])
@pytest.mark.parametrize("function", FUNCTIONS)
def test_training_equals_plain_pytorch(function: type[Saved], *, again: bool) -> None:
    remat = piper.remat("layer", policy="full") if again else None
    case = Experted("1F1B", 0, 2, 2, ep=2, zero=1, remat=remat)
    model, batches = make_model(function), small_moe.batches(case, steps=2)
    program = piper.compile(model, token_loss, case.plan(), batches[0])
    found = piper_steps(program, model, batches, sgd)
    check_steps(found, plain_steps(model, token_loss, batches, sgd, clip=CLIP))
