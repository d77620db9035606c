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
from small_moe import CHOICES, CLIP, EXPERTS, Experted, Experts, Layer, token_loss
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


def with_function(function: type[Saved]) -> type[Experts]:
    class Own(Experts):
        def forward(self, rows: Tensor, received: Tensor) -> Tensor:
            linear = piper.ops.moe_linear
            hidden: Tensor = function.apply(linear(rows, self.gate, received))  # type: ignore[no-untyped-call]
            out: Tensor = linear(hidden * linear(rows, self.up, received), self.down, received)
            return out

    return Own


class Residual(Experts):
    """Adds rows to what it makes of them, and lets gradients through there alone."""

    def forward(self, rows: Tensor, received: Tensor) -> Tensor:
        made = super().forward(rows.detach(), received)
        return rows + made


class Kept(Layer):
    """Adds tokens to what experts make of them, and lets gradients through there alone."""

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.norm(x).flatten(0, 1)
        index, weights = self.router(tokens)
        y: Tensor = piper.ops.moe_experts(
            tokens.detach(), index, weights, self.experts, experts=EXPERTS
        )
        y = y + tokens * weights.sum(-1, keepdim=True)
        return x + y.view_as(x)


class Sorting(Layer):
    """Sorts rows, for layers that send and join them in ways of their own."""

    def sort(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Return the order, counts sent and received, weights of choices, and rows in order."""
        tokens, ops = self.norm(x).flatten(0, 1), piper.ops
        index, weights = self.router(tokens)
        order, counts = ops.moe_sort(index, EXPERTS, 1)
        rows = ops.moe_permute(tokens, order, CHOICES)
        return order, counts, ops.moe_exchange_counts(counts), weights, rows


class KeptRows(Sorting):
    """Does as `Kept` row by row, by what came back for each."""

    def forward(self, x: Tensor) -> Tensor:
        ops, (order, counts, received, weights, rows) = piper.ops, self.sort(x)
        sent = ops.moe_group(ops.moe_dispatch(rows.detach(), counts, received), received)
        made = ops.moe_ungroup(self.experts(sent, received), received)
        back = ops.moe_collect(made, counts, received) + rows
        y: Tensor = ops.moe_unpermute(back, order, weights)
        return x + y.view_as(x)


class Returned(Sorting):
    """Lets rows back beside what experts make of them, by the same counts."""

    def forward(self, x: Tensor) -> Tensor:
        ops, (order, counts, received, weights, rows) = piper.ops, self.sort(x)
        sent = ops.moe_group(ops.moe_dispatch(rows, counts, received), received)
        back = [
            ops.moe_collect(ops.moe_ungroup(made, received), counts, received)
            for made in (self.experts(sent, received), sent.tanh())
        ]
        y: Tensor = ops.moe_unpermute(back[0] + back[1], order, weights)
        return x + y.view_as(x)


class Joined(Sorting):
    """Joins tokens from rows that it sends, beside those that come back."""

    def forward(self, x: Tensor) -> Tensor:
        ops, (order, counts, received, weights, rows) = piper.ops, self.sort(x)
        sent = ops.moe_group(ops.moe_dispatch(rows, counts, received), received)
        made = ops.moe_ungroup(self.experts(sent, received), received)
        back = ops.moe_collect(made, counts, received)
        y: Tensor = ops.moe_unpermute(back, order, weights)
        y = y + ops.moe_unpermute(rows, order, weights)
        return x + y.view_as(x)


class Twice(Layer):
    """Sends rows to experts, and then to a function that no rank has a part of."""

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.norm(x).flatten(0, 1)
        index, weights = self.router(tokens)
        for compute in (self.experts, lambda rows, _: rows.tanh()):
            y = piper.ops.moe_experts(tokens, index, weights, compute, experts=EXPERTS)
            x = x + y.view_as(x)
        return x


class Beside(Layer):
    """Adds a function of each token, once for each of its choices, to what experts make."""

    @staticmethod
    def bend(tokens: Tensor) -> Tensor:
        return tokens.tanh()

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.norm(x).flatten(0, 1)
        index, weights = self.router(tokens)
        y: Tensor = piper.ops.moe_experts(tokens, index, weights, self.experts, experts=EXPERTS)
        y = y + self.bend(tokens) * weights.sum(-1, keepdim=True)
        return x + y.view_as(x)


class BesideTokens(Beside):
    @staticmethod
    def bend(tokens: Tensor) -> Tensor:
        return tokens


def make_model(experts: type[Experts], layer: type[Layer] = Layer) -> small_moe.Model:
    def make_layer() -> Layer:
        made = layer()
        made.experts = experts()
        return made

    torch.manual_seed(0)
    model = small_moe.Model(1, make_layer)
    randomize(model, scale=0.4)
    return model.double()


@pytest.mark.slow
@pytest.mark.parametrize("again", [False, True], ids=["kept", "computed again"])
@pytest.mark.parametrize("function", FUNCTIONS)
def test_training_equals_plain_pytorch(function: type[Saved], *, again: bool) -> None:
    check(with_function(function), again=again)


@pytest.mark.slow
@pytest.mark.parametrize("again", [False, True], ids=["kept", "computed again"])
def test_gradients_go_back_as_they_came(*, again: bool) -> None:
    check(Residual, again=again)


@pytest.mark.slow
@pytest.mark.parametrize("again", [False, True], ids=["kept", "computed again"])
def test_gradients_stay(*, again: bool) -> None:
    check(Experts, layer=KeptRows, plain=Kept, again=again)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("layer", "plain"), [(Returned, Beside), (Joined, BesideTokens)], ids=["back", "joined"]
)
def test_rows_go_beside_what_experts_make(layer: type[Layer], plain: type[Layer]) -> None:
    check(Experts, layer=layer, plain=plain, again=True)


@pytest.mark.slow
def test_what_is_sorted_twice_is_sorted_again_as_it_was() -> None:
    check(Experts, layer=Twice, plain=Beside, again=True)


def check(
    experts: type[Experts],
    *,
    layer: type[Layer] = Layer,
    plain: type[Layer] = Layer,
    again: bool,
) -> None:
    """Two steps equal plain PyTorch, with other layers that compute the same."""
    remat = piper.remat("layer", policy="full") if again else None
    case = Experted("1F1B", 0, 2, 2, ep=2, zero=1, remat=remat)
    model, batches = make_model(experts, layer), small_moe.batches(case, steps=2)
    program = piper.compile(model, token_loss, case.plan(), batches[0])
    found = piper_steps(program, model, batches, sgd)
    model = make_model(experts, plain)
    check_steps(found, plain_steps(model, token_loss, batches, sgd, clip=CLIP))
