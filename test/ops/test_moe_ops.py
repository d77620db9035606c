"""Ops of experts: values, gradients, and what they are to torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from piper.ops import (
    moe_collect,
    moe_dispatch,
    moe_exchange_counts,
    moe_experts,
    moe_group,
    moe_linear,
    moe_permute,
    moe_sort,
    moe_ungroup,
    moe_unpermute,
)
from piper_runtime.ops import moe_linear_input, moe_linear_weight
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

EXPERTS, CHOICES, WIDTH, HIDDEN = 4, 3, 5, 6
FP64 = torch.float64
own = torch.ops.piper


def normal(*shape: int, dtype: torch.dtype = FP64) -> Tensor:
    return torch.randn(shape, dtype=dtype, requires_grad=True)


def make_index(kind: str, tokens: int = 7) -> Tensor:
    """Which experts tokens choose."""
    if kind == "even":
        return torch.stack([torch.randperm(EXPERTS)[:CHOICES] for _ in range(tokens)])
    if kind == "skewed":  # expert 1 gets nearly all, expert 3 nothing; choices may be equal
        return torch.where(torch.rand(tokens, CHOICES) < 0.8, 1, torch.randint(3, (1,)))
    if kind == "one expert":
        return torch.full((tokens, CHOICES), 2)
    assert kind == "no token"
    return torch.zeros(0, CHOICES, dtype=torch.int64)


KINDS = ("even", "skewed", "one expert", "no token")


def parameters() -> tuple[Tensor, Tensor]:
    return normal(EXPERTS, HIDDEN, WIDTH), normal(EXPERTS, WIDTH, HIDDEN)


def with_ops(x: Tensor, index: Tensor, weights: Tensor, up: Tensor, down: Tensor) -> Tensor:
    def compute(rows: Tensor, received: Tensor) -> Tensor:
        return moe_linear(torch.tanh(moe_linear(rows, up, received)), down, received)

    return moe_experts(x, index, weights, compute, experts=len(up))


def by_token(x: Tensor, index: Tensor, weights: Tensor, up: Tensor, down: Tensor) -> Tensor:
    """The same, token by token and choice by choice."""
    y = 0 * x
    for token in range(len(x)):
        for choice in range(index.shape[1]):
            expert = int(index[token, choice])
            out = down[expert] @ torch.tanh(up[expert] @ x[token])
            y = y.index_add(0, torch.tensor([token]), (weights[token, choice] * out)[None])
    return y


@pytest.mark.parametrize("kind", KINDS)
def test_values_and_gradients_are_those_of_a_loop(kind: str) -> None:
    torch.manual_seed(0)
    index = make_index(kind)
    x, weights = normal(len(index), WIDTH), normal(len(index), CHOICES)
    inputs = (x, weights, *parameters())
    grad = torch.randn_like(x)

    def run(layer: Callable[..., Tensor]) -> tuple[Tensor, ...]:
        y = layer(x, index, weights, *inputs[2:])
        # Without tokens, the loop has no path to the weights.
        return (y, *torch.autograd.grad(y, inputs, grad, allow_unused=True, materialize_grads=True))

    for found, wanted in zip(run(with_ops), run(by_token), strict=True):
        torch.testing.assert_close(found, wanted, rtol=0, atol=1e-13)


@pytest.mark.parametrize("kind", KINDS[:-1])
def test_gradients_are_derivatives(kind: str) -> None:
    torch.manual_seed(1)
    index = make_index(kind, tokens=3)
    inputs = normal(3, WIDTH), normal(3, CHOICES), *parameters()
    assert torch.autograd.gradcheck(
        lambda x, weights, up, down: with_ops(x, index, weights, up, down), inputs
    )


def test_sort_is_stable_and_counts_by_rank() -> None:
    """The picture at the top of `routing`, on one rank and on three."""
    index = torch.tensor([[2, 0], [0, 1], [2, 0]])
    order, counts = moe_sort(index, 3, 1)
    assert order.tolist() == [1, 2, 5, 3, 0, 4]
    assert counts.tolist() == [[3, 1, 2]]
    assert moe_sort(index, 3, 3)[1].tolist() == [[3], [1], [2]]
    assert moe_sort(index, 6, 2)[1].tolist() == [[3, 1, 2], [0, 0, 0]]


def test_group_sorts_by_expert_then_rank() -> None:
    received = torch.tensor([[1, 2], [0, 3], [2, 0]])
    rows = torch.arange(8.0)[:, None]
    grouped = moe_group(rows, received)
    assert grouped[:, 0].tolist() == [0, 6, 7, 1, 2, 3, 4, 5]
    assert torch.equal(moe_ungroup(grouped, received), rows)
    assert torch.equal(moe_group(moe_ungroup(rows, received), received), rows)


def exchange(parts: list[list[Tensor]]) -> list[Tensor]:
    """Give rank r the parts [q][r] of all ranks q."""
    return [torch.cat([sent[rank] for sent in parts]) for rank in range(len(parts))]


@pytest.mark.parametrize("ranks", [2, 4])
def test_ranks_that_share_experts_out_compute_the_same(ranks: int) -> None:
    """With all_to_all in place of dispatch and collect, also for ranks without tokens or rows.

    Every rank has as many experts as the others, and rows of its own: sizes are as the rules say.
    """
    torch.manual_seed(2)
    tokens = [5, 0, 3, 1][:ranks]
    xs = [normal(count, WIDTH) for count in tokens]
    weights = [normal(count, CHOICES) for count in tokens]
    indices = [torch.randint(EXPERTS - 1, (count, CHOICES)) for count in tokens]
    up, down = parameters()
    ups, downs = up.chunk(ranks), down.chunk(ranks)
    sorts = [moe_sort(index, EXPERTS, ranks) for index in indices]
    received = list(torch.stack([counts for _, counts in sorts], 1))

    def shares(rows: Tensor, counts: Tensor) -> list[Tensor]:
        return list(torch.split(rows, counts.sum(1).tolist()))

    sent = [
        shares(moe_permute(x, order, CHOICES), counts)
        for x, (order, counts) in zip(xs, sorts, strict=True)
    ]
    back = []
    for rank, rows in enumerate(exchange(sent)):
        rows = moe_group(rows, received[rank])
        rows = torch.tanh(moe_linear(rows, ups[rank], received[rank]))
        rows = moe_ungroup(moe_linear(rows, downs[rank], received[rank]), received[rank])
        back.append(shares(rows, received[rank]))
    ys = [
        moe_unpermute(rows, order, weight)
        for rows, (order, _), weight in zip(exchange(back), sorts, weights, strict=True)
    ]
    inputs = (*xs, *weights, up, down)
    wanted = [
        with_ops(x, index, weight, up, down)
        for x, index, weight in zip(xs, indices, weights, strict=True)
    ]
    torch.testing.assert_close(ys, wanted, rtol=0, atol=1e-13)
    total, total_wanted = (sum(y.pow(2).sum() for y in side) for side in (ys, wanted))
    assert isinstance(total, Tensor)
    assert isinstance(total_wanted, Tensor)
    torch.testing.assert_close(
        torch.autograd.grad(total, inputs),
        torch.autograd.grad(total_wanted, inputs),
        rtol=0,
        atol=1e-12,
    )


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 1e-5), (torch.bfloat16, 0.1)])
def test_other_dtypes(dtype: torch.dtype, bound: float) -> None:
    """bf16 has 8 bits; 5 to 6 of them are left after two products and a sum of choices."""
    torch.manual_seed(3)
    index = make_index("even")
    inputs = [normal(7, WIDTH), normal(7, CHOICES), *parameters()]
    rounded = [value.detach().to(dtype).requires_grad_() for value in inputs]
    exact = [value.detach().double().requires_grad_() for value in rounded]

    def run(x: Tensor, weights: Tensor, up: Tensor, down: Tensor) -> tuple[Tensor, ...]:
        y = with_ops(x, index, weights, up, down)
        return (y, *torch.autograd.grad(y.sum(), (x, weights, up, down)))

    for found, wanted in zip(run(*rounded), run(*exact), strict=True):
        assert found.dtype == dtype
        assert (found - wanted).abs().max() <= bound * max(1, wanted.abs().max().item())


def test_weights_may_be_more_precise_than_rows() -> None:
    """As those of a router in fp32 are: their gradient is fp32, the result has the rows' dtype."""
    index = make_index("even")
    order, _ = moe_sort(index, EXPERTS, 1)
    rows = normal(7 * CHOICES, WIDTH, dtype=torch.bfloat16)
    weights = normal(7, CHOICES, dtype=torch.float32)
    y = moe_unpermute(rows, order, weights)
    assert y.dtype == torch.bfloat16
    drows, dweights = torch.autograd.grad(y.sum(), (rows, weights))
    assert (drows.dtype, dweights.dtype) == (torch.bfloat16, torch.float32)


FORWARD = """
    sort exchange_counts permute dispatch group linear linear ungroup collect unpermute
"""
BACKWARD = """
    unpermute_rows unpermute_weights dispatch group linear_input linear_weight
    linear_input linear_weight ungroup collect permute_backward
"""
BACKWARD_TO_DOWN = "unpermute_rows dispatch group linear_weight"


class Calls(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """The names of Piper's ops that are called."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "piper":
            self.names.append(func._opname.removeprefix("moe_"))
        return func(*args, **(kwargs or {}))


def test_each_gradient_is_an_op_of_its_own() -> None:
    """Those of inputs and weights can be computed at different times; what is not needed is not."""
    index = make_index("even")
    x, weights, (up, down) = normal(7, WIDTH), normal(7, CHOICES), parameters()
    with Calls() as calls:
        y = with_ops(x, index, weights, up, down)
    assert sorted(calls.names) == sorted(FORWARD.split())
    with Calls() as calls:
        y.sum().backward()  # type: ignore[no-untyped-call]
    assert sorted(calls.names) == sorted(BACKWARD.split())
    y = with_ops(x.detach(), index, weights.detach(), up.detach(), down)
    with Calls() as calls:
        y.sum().backward()  # type: ignore[no-untyped-call]
    assert sorted(calls.names) == sorted(BACKWARD_TO_DOWN.split())


def samples() -> Iterator[tuple[Any, tuple[Any, ...]]]:
    """Arguments of every op that has a gradient, then of those that are gradients."""
    torch.manual_seed(4)
    index = make_index("even")
    order, counts = moe_sort(index, EXPERTS, 1)
    rows, weights = normal(7 * CHOICES, WIDTH), normal(7, CHOICES)
    grad, hidden = normal(7, WIDTH).detach(), normal(7 * CHOICES, HIDDEN).detach()
    up = parameters()[0]
    yield own.moe_permute, (normal(7, WIDTH), order, CHOICES)
    yield own.moe_dispatch, (rows, counts, counts)
    yield own.moe_collect, (rows, counts, counts)
    yield own.moe_group, (rows, counts.view(2, 2))
    yield own.moe_ungroup, (rows, counts.view(2, 2))
    yield own.moe_linear, (rows, up, counts)
    yield own.moe_unpermute, (rows, order, weights)
    yield own.moe_sort, (index, EXPERTS, 2)
    yield own.moe_exchange_counts, (counts,)
    yield own.moe_permute_backward, (rows.detach(), order, CHOICES)
    yield own.moe_linear_input, (hidden, up.detach(), counts)
    yield own.moe_linear_weight, (hidden, rows.detach(), counts)
    yield own.moe_unpermute_rows, (grad, order, weights.detach())
    yield own.moe_unpermute_weights, (grad, rows.detach(), order, CHOICES, torch.float32)


@pytest.mark.parametrize(("op", "args"), list(samples()), ids=str)
def test_torch_agrees_with_the_registration(op: Any, args: tuple[Any, ...]) -> None:
    """Schema, shapes without data, and gradients through AOTAutograd; nothing is an alias."""
    torch.library.opcheck(op.default, args)
    results = op(*args)
    for result in results if isinstance(results, tuple) else (results,):
        assert result.is_contiguous()


def test_strided_arguments() -> None:
    index = make_index("even")
    order, counts = moe_sort(index, EXPERTS, 1)
    rows = normal(WIDTH, 7 * CHOICES).detach().t()
    grads = normal(HIDDEN, 7 * CHOICES).detach().t()
    weight = normal(EXPERTS, WIDTH, HIDDEN).detach().transpose(1, 2)
    cases: list[tuple[Callable[..., Tensor], tuple[Any, ...]]] = [
        (moe_linear, (rows, weight, counts)),
        (moe_linear_input, (grads, weight, counts)),
        (moe_linear_weight, (grads, rows, counts)),
        (moe_permute, (normal(WIDTH, 7).detach().t(), order, CHOICES)),
        (moe_dispatch, (rows, counts, counts)),
        (moe_collect, (rows, counts, counts)),
        (moe_group, (rows, counts)),
        (moe_unpermute, (rows, order, normal(CHOICES, 7).detach().t())),
    ]
    for op, args in cases:
        plain = [arg.contiguous() if isinstance(arg, Tensor) else arg for arg in args]
        found, wanted = op(*args), op(*plain)
        torch.testing.assert_close(found, wanted)
        assert found.is_contiguous()


def test_flops_are_those_of_the_rows() -> None:
    """2 m I O each, however rows are spread over experts, as torch's counter has it."""
    index = make_index("skewed")
    x, weights, (up, down) = normal(7, WIDTH), normal(7, CHOICES), parameters()
    with FlopCounterMode(display=False) as counter:
        with_ops(x, index, weights, up, down).sum().backward()  # type: ignore[no-untyped-call]
    assert counter.get_total_flops() == 3 * 2 * (2 * 7 * CHOICES * WIDTH * HIDDEN)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: moe_linear(torch.zeros(2, 3), torch.zeros(1, 4, 3, dtype=FP64), _counts(2)),
            "moe_linear expected rows of torch.float64 as the weight, got torch.float32",
        ),
        (
            lambda: moe_linear(torch.zeros(2, 3), torch.zeros(1, 4, 5), _counts(2)),
            r"moe_linear expected a weight for 1 experts and rows of 3, got shape \(1, 4, 5\)",
        ),
        (
            lambda: moe_linear_input(torch.zeros(2, 3), torch.zeros(2, 3, 5), _counts(2)),
            r"moe_linear_input expected a weight for 1 experts and rows of 3, got shape \(2, 3, 5\)",
        ),
        (
            lambda: moe_linear(torch.zeros(2, 3), torch.zeros(1, 4, 3), _counts(1)),
            "expected counts of 2 rows, got counts of 1",
        ),
        (
            lambda: moe_sort(torch.zeros(2, 1, dtype=torch.int64), 4, 3),
            "ranks expected to divide the number of experts 4, got 3",
        ),
    ],
)
def test_what_does_not_fit_is_refused(call: Callable[[], Tensor], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        call()


def _counts(*rows: int) -> Tensor:
    return moe_exchange_counts(torch.tensor([rows]))
