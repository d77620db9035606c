"""Ops and losses that make of one example what depends on others, or on how many there are, are
refused with their line; what each example has for itself is not.
"""

# mypy: disable-error-code="no-any-return,no-untyped-call,arg-type"

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hand_written import Product
from piper.frontend import CaptureError, capture, capture_eval
from torch import Tensor, nn
from torch.nn import functional

ROWS, WIDTH = 8, 4
Forward = Callable[[Tensor], Tensor]
Batch = dict[str, Tensor]


class Net(nn.Module):
    """A function or module between two linear layers."""

    def __init__(self, middle: Forward) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.middle = middle
        self.last = nn.Linear(WIDTH, WIDTH)
        self.table = nn.Parameter(torch.zeros(2 * ROWS, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.last(self.middle(self.first(x)))
        return result


def square(model: Net, batch: Batch) -> Tensor:
    return model(batch["x"]).square().mean()


def taken(
    middle: Forward,
    loss: Callable[[Net, Batch], Tensor] = square,
    *,
    microbatches: int = 2,
    evaluate: bool = False,
    rows: int = ROWS,
) -> None:
    """Capture a step of two microbatches of four rows."""
    take: Any = capture_eval if evaluate else capture
    batch = {"x": torch.zeros(rows, WIDTH), "y": torch.zeros(rows, dtype=torch.int64)}
    take(
        Net(middle),
        loss,
        batch,
        annotations={"": "all"},
        microbatches=microbatches,
        data_shards=1,
    )


def refused(message: str, code: Any, **options: Any) -> None:
    """Expect an error that says so, with a line of this code."""
    with pytest.raises(CaptureError, match=message) as error:
        taken(**options)
    found = re.search(r"test_examples\.py:(\d+)", str(error.value))
    assert found is not None
    lines = {line for *_, line in code.co_lines() if line is not None}
    assert int(found[1]) in lines


def loop(x: Tensor) -> Tensor:
    for number in range(len(x)):
        x = x + number
    return x


def branch(x: Tensor) -> Tensor:
    return x * 2 if len(x) == ROWS // 2 else x * 3


def no_grad(x: Tensor) -> Tensor:
    with torch.no_grad():
        scale = x.abs().max()
    return x / scale


def halves(x: Tensor) -> Tensor:
    first, second = x.chunk(2)
    return first - second


MIXES = r"op aten\.\S+ (mixes|sums over) the examples of a batch.*declare by piper\.local_loss"
PICKS = r"op aten\.\S+ takes some of the examples of a batch"
PAIRS = r"op aten\.\S+ pairs the examples of a batch"
NUMBER = "the loss depends on how many examples there are: .* for 4 and .* for 8; .* use a mean"
VALUES = r"op aten\.\S+ makes values that depend on how many examples there are"

COUPLED: dict[str, tuple[Forward, str]] = {
    "var": (lambda x: x / x.var(0), MIXES),
    "std": (lambda x: x / x.std(0), MIXES),
    "std of all": (lambda x: x / x.std(), MIXES),
    "norm": (lambda x: x / x.norm(dim=0), MIXES),
    "normalize": (lambda x: functional.normalize(x, dim=0), MIXES),
    "max": (lambda x: x - x.max(0).values, MIXES),
    "amax": (lambda x: x - x.amax(0), MIXES),
    "max of all": (lambda x: x / x.abs().max(), MIXES),
    "without gradient": (no_grad, MIXES),
    "logsumexp": (lambda x: x - x.logsumexp(0), MIXES),
    "median": (lambda x: x - x.median(0).values, MIXES),
    "prod": (lambda x: x + x.prod(0), MIXES),
    "cumsum": (lambda x: x.cumsum(0), MIXES),
    "sort": (lambda x: x.sort(0).values, MIXES),
    "flip": (lambda x: x - x.flip(0), MIXES),
    "roll": (lambda x: x - x.roll(1, 0), MIXES),
    "pad": (lambda x: functional.pad(x, (0, 0, 1, 0))[:-1], MIXES),
    "gather": (lambda x: x.gather(0, torch.zeros_like(x, dtype=torch.int64)), PICKS),
    "cdist": (lambda x: x + torch.cdist(x, x).mean(1, keepdim=True), PAIRS),
    "outer": (lambda x: (x[:, None] - x[None]).abs().mean(1), PAIRS),
    "pairs": (lambda x: (x @ x.t()).softmax(-1) @ x, PAIRS),
    "attention": (
        lambda x: functional.scaled_dot_product_attention(*[x[None, None]] * 3)[0, 0],
        MIXES,
    ),
    "convolution": (
        lambda x: functional.conv1d(x.t()[None], x.new_ones(4, 1, 3), padding=1, groups=4)[0].t(),
        MIXES,
    ),
    "batch norm": (lambda x: functional.batch_norm(x, None, None, training=True), MIXES),
    "layer norm": (lambda x: functional.layer_norm(x.t(), (len(x),)).t(), NUMBER),
    "any": (lambda x: torch.where((x > 0).any(), x, -x), MIXES),
    "integer count": (lambda x: x * (x > 0).sum(), MIXES),
    "first row": (lambda x: x - x[:1], PICKS),
    "last row": (lambda x: x - x[-1], PICKS),
    "one row": (lambda x: x - x[0], PICKS),
    "halves": (halves, PICKS),
    "first half": (lambda x: x[: len(x) // 2], PICKS),
    "two groups": (lambda x: x.view(2, -1, WIDTH).sum(1), PICKS),
    "number": (lambda x: x / len(x), NUMBER),
    "shape": (lambda x: x * x.shape[0], NUMBER),
    "loop": (loop, NUMBER),
    "branch": (branch, NUMBER),
    "numbered": (lambda x: x + torch.arange(len(x))[:, None], VALUES),
    "lower triangle": (lambda x: torch.ones(len(x), len(x)).tril() @ x, PAIRS),
    "sum of ones": (lambda x: x / torch.ones(len(x)).sum(), MIXES),
    "table": (
        lambda x: x + torch.linspace(0, 1, 16)[: len(x), None],
        VALUES,
    ),
}


@pytest.mark.parametrize("name", COUPLED)
def test_what_couples_examples_is_refused(name: str) -> None:
    middle, message = COUPLED[name]
    refused(message, middle.__code__, middle=middle)


def test_a_norm_by_statistics_of_the_batch_is_refused() -> None:
    """In evaluation, too: it keeps no statistics."""
    norm = nn.BatchNorm1d(WIDTH, track_running_stats=False)
    for evaluate in (False, True):
        with pytest.raises(CaptureError, match=r"mixes the examples of a batch by its statistics"):
            taken(norm, evaluate=evaluate)
    with pytest.raises(CaptureError, match=r"in place, .* eval mode, .* such as GroupNorm"):
        taken(nn.BatchNorm1d(WIDTH))
    taken(nn.BatchNorm1d(WIDTH).eval())
    taken(lambda x: functional.group_norm(x, 2))


def test_a_gradient_that_counts_in_the_batch_is_refused() -> None:
    table = nn.Embedding(2, WIDTH, scale_grad_by_freq=True)
    with pytest.raises(CaptureError, match=r"mixes the examples .* scale_grad_by_freq=True"):
        taken(
            lambda x: x + table.weight.sum(),
            lambda net, b: (
                functional.embedding(b["y"], net.table, scale_grad_by_freq=True).square().mean()
            ),
        )


def each(model: Net, batch: Batch) -> Tensor:
    return functional.cross_entropy(model(batch["x"]), batch["y"], reduction="none")


def preferred(model: Net, batch: Batch) -> Tensor:
    """Direct preference optimization, with the rejected half behind the chosen one."""
    chosen, rejected = each(model, batch).chunk(2)
    return -functional.logsigmoid(chosen - rejected).mean()


def contrasted(model: Net, batch: Batch) -> Tensor:
    rows = functional.normalize(model(batch["x"]), dim=1)
    return functional.cross_entropy(rows @ rows.t(), torch.arange(len(rows)))


LOSSES: dict[str, tuple[Callable[[Net, Batch], Tensor], str]] = {
    "by len": (lambda m, b: each(m, b).sum() / len(b["x"]), NUMBER),
    "by shape": (lambda m, b: each(m, b).sum() / b["x"].shape[0], NUMBER),
    "by numel": (lambda m, b: each(m, b).sum() / b["y"].numel(), NUMBER),
    "times shape": (lambda m, b: each(m, b).mean() * b["x"].shape[0], NUMBER),
    "soft targets": (
        lambda m, b: functional.cross_entropy(m(b["x"]), b["x"].softmax(-1)),
        NUMBER,
    ),
    "batchmean": (
        lambda m, b: functional.kl_div(
            m(b["x"]).log_softmax(-1), b["x"].softmax(-1), reduction="batchmean"
        ),
        NUMBER,
    ),
    "mean and sum": (lambda m, b: m(b["x"]).mean(0).sum(), MIXES),
    "sum and mean": (lambda m, b: m(b["x"]).sum(0).mean(), MIXES),
    "without the first": (lambda m, b: each(m, b)[1:].mean(), PICKS),
    "first ones": (lambda m, b: each(m, b)[:2].mean(), PICKS),
    "differences": (lambda m, b: (each(m, b)[1:] - each(m, b)[:-1]).square().mean(), PICKS),
    "rolled": (lambda m, b: (each(m, b) - each(m, b).roll(1)).square().mean(), MIXES),
    "hardest": (lambda m, b: each(m, b).topk(2).values.mean(), MIXES),
    "preferred": (preferred, PICKS),
    "contrasted": (contrasted, PAIRS),
    "of parameters": (lambda m, b: m.table.square().sum(), "makes a loss of no example"),
}


@pytest.mark.parametrize("name", LOSSES)
def test_losses_of_several_examples_are_refused(name: str) -> None:
    loss, message = LOSSES[name]
    refused(message, loss.__code__, middle=torch.tanh, loss=loss)


def test_what_is_not_known_is_refused_with_its_cure() -> None:
    refused(
        r"op aten\.\S+ is not known to treat the examples of a batch apart, .* say by "
        r"piper\.register_rule how its dims belong together, compute it for each",
        cube.__code__,
        middle=cube,
    )


def cube(x: Tensor) -> Tensor:
    return torch.linalg.matrix_exp(x[:, :, None] * x[:, None])[:, 0]


def test_sizes_that_are_numbers_are_refused() -> None:
    with pytest.raises(
        CaptureError,
        match=r"(?s)test_examples\.py:\d+.*8 examples of the whole batch, and not for the 4 of a",
    ):
        taken(lambda x: x.view(4, 2, 2).flatten(1))


def picked(model: Net, batch: Batch) -> Tensor:
    """The entry of each row that its label names."""
    rows = model(batch["x"]).log_softmax(-1)
    return -rows[torch.arange(len(rows)), batch["y"]].mean()


def twice(model: Net, batch: Batch) -> Tensor:
    """Two versions of each example go through the model side by side."""
    first, second = model(torch.cat([batch["x"], -batch["x"]])).chunk(2)
    return (first - second).square().mean()


APART: dict[str, Forward] = {
    "rows": lambda x: x / x.std(1, keepdim=True) - x.amax(1, keepdim=True),
    "flipped": lambda x: x.flip(1).roll(1, -1).cumsum(1).sort(1).values,
    "cut": lambda x: torch.cat([x[:, 2:], x[:, :2]], 1) + x[:, -1:],
    "stacked": lambda x: torch.stack([x, 2 * x], 1).sum(1) + torch.stack([x, x]).sum(0),
    "padded": lambda x: functional.pad(x, (1, 0))[:, :-1],
    "flattened": lambda x: x.view(-1, 2, 2).flatten(0, 1).softmax(-1).view(-1, WIDTH),
    "convolution": lambda x: functional.conv1d(x[:, None], x.new_ones(1, 1, 3), padding=1)[:, 0],
    "pooled": lambda x: functional.avg_pool2d(x.view(-1, 1, 2, 2), 2).flatten(1) + x,
    "interpolated": lambda x: functional.interpolate(x[:, None], 2)[:, 0].repeat(1, 2),
    "groups": lambda x: functional.group_norm(x, 2) + functional.instance_norm(x[:, None])[:, 0],
    "lengths": lambda x: x + torch.zeros(len(x), WIDTH) + x.new_ones(len(x), 1),
    "spread": lambda x: x + x.new_ones(1, WIDTH).expand(len(x), -1),
    "attention": lambda x: functional.scaled_dot_product_attention(
        *[x.view(-1, 1, 2, 2)] * 3
    ).flatten(1),
    "distances": lambda x: torch.cdist(x.view(-1, 2, 2), x.view(-1, 2, 2)).flatten(1),
    "neighbours": lambda x: (x[0::2] - x[1::2]).repeat_interleave(2, 0),
}


@pytest.mark.parametrize("name", APART)
def test_what_each_example_has_for_itself_is_accepted(name: str) -> None:
    taken(APART[name])


@pytest.mark.parametrize("loss", [picked, twice])
def test_losses_of_each_example_are_accepted(loss: Callable[[Net, Batch], Tensor]) -> None:
    taken(torch.tanh, loss)


@pytest.mark.parametrize("rows", [2, 8])
def test_one_example_for_each_microbatch_is_enough(rows: int) -> None:
    taken(lambda x: x - x.mean(1, keepdim=True), picked, rows=rows)


def test_a_whole_batch_may_do_anything() -> None:
    taken(lambda x: x / len(x) - x[:1], microbatches=1)


class Scaled(torch.autograd.Function):
    """The backward function computes what it likes."""

    how: Callable[[Tensor, Tensor], Tensor]

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return grad * x.cos() * 2


class ByNorm(Scaled):
    """Couples the examples."""

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return grad / grad.norm()


class ByNumber(Scaled):
    """Depends on how many examples there are."""

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return grad / len(grad)


def test_functions_of_the_user_are_looked_at() -> None:
    taken(lambda x: Scaled.apply(x))
    taken(torch.tanh, lambda m, b: Product.apply(m(b["x"]), m.table[:WIDTH]).square().mean())
    refused(MIXES, ByNorm.backward.__code__, middle=lambda x: ByNorm.apply(x))
    refused(NUMBER, ByNumber.backward.__code__, middle=lambda x: ByNumber.apply(x))
