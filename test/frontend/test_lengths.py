"""What depends on the length of a sequence that ranks share out is refused, with its line."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from piper import local_loss, ops
from piper.frontend import CaptureError, capture, capture_eval
from piper.frontend.sequences.lengths import refuse_lengths
from piper.frontend.sequences.part import part_of_batch
from piper_runtime.inputs.batch import SequenceSpec
from torch import Tensor, nn
from torch.nn import functional

ROWS, LENGTH, WIDTH, PARTS = 2, 8, 6, 2
SEQUENCE = SequenceSpec("cp", {"x": 1}, PARTS)
Forward = Callable[["Model", Tensor], Tensor]
Mask = Callable[[int, Tensor], Tensor | None]


class Model(nn.Module):
    """A product before and behind what is tried."""

    def __init__(self, forward: Forward) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.bias, self.table = nn.Parameter(torch.zeros(WIDTH)), nn.Parameter(torch.zeros(32, 6))
        self.tried = forward

    def forward(self, x: Tensor) -> Tensor:
        """[rows, length, width] to the same."""
        found: Tensor = self.down(self.tried(self, self.up(x)))
        return found


def compare(
    forward: Forward, loss: Callable[..., Tensor] | None = None, take: Any = capture
) -> None:
    """Capture a part and the whole, and compare them."""
    batch = {"x": torch.zeros(ROWS, LENGTH, WIDTH)}
    given = {"annotations": {"": "all"}, "microbatches": 1, "data_shards": 1}
    part, whole = (
        take(Model(forward), loss or summed, sequences, **given)
        for sequences in (part_of_batch(batch, SEQUENCE, {}), batch)
    )
    refuse_lengths(part, whole, SEQUENCE)


def summed(model: nn.Module, batch: Any) -> Tensor:
    """A sum of what each position has."""
    found: Tensor = model(batch["x"]).square().sum()
    return found


def attend(x: Tensor, mask: Tensor | None, *, causal: bool = False) -> Tensor:
    """One head of Piper's attention, as models of transformers call it."""
    heads = x[:, None]
    found = ops.attention(heads, heads, heads, mask=mask, causal=causal)
    return found[:, 0]


def masked(build: Mask) -> Forward:
    """Attention with the mask that is built from a length."""
    return lambda model, x: attend(x, build(x.shape[1], x))


def order(length: int) -> tuple[Tensor, Tensor]:
    """Numbers of rows and of columns."""
    numbers = torch.arange(length)
    return numbers[:, None], numbers[None]


def causal_mask(length: int, x: Tensor) -> Tensor:
    rows, columns = order(length)
    return (columns <= rows)[None, None]


def additive_mask(length: int, x: Tensor) -> Tensor:
    return torch.where(causal_mask(length, x), 0.0, float("-inf"))


def open_mask(length: int, x: Tensor) -> Tensor:
    return torch.ones(length, length, dtype=torch.bool)[None, None]


def window(size: int) -> Mask:
    """Each row sees so many columns up to its own."""

    def build(length: int, x: Tensor) -> Tensor:
        rows, columns = order(length)
        return ((columns <= rows) & (columns > rows - size))[None, None]

    return build


def band(length: int, x: Tensor) -> Tensor:
    rows, columns = order(length)
    return ((rows - columns).abs() < 5)[None, None]


def branching_mask(length: int, x: Tensor) -> Tensor | None:
    """None at all for a part."""
    return causal_mask(length, x) if length > LENGTH // PARTS else None


def padding(length: int, x: Tensor) -> Tensor:
    return (x[:, :, 0] > 0)[:, None, None].expand(-1, 1, length, length)


def tokenwise(model: Model, x: Tensor) -> Tensor:
    """Ops whose arguments are sizes, but whose values depend on no length."""
    rows, length, width = x.shape
    heads = x.view(rows, length, 2, width // 2).transpose(1, 2)
    x = heads.transpose(1, 2).reshape(rows * length, width).softmax(-1).view(x.shape)
    wide = model.bias.expand(rows, length, width)
    x = functional.layer_norm(x[:, :length] + wide, (width,)) + torch.full((length, 1), 2.0)
    return x + x.new_zeros(x.shape)


def mean(model: nn.Module, batch: Any) -> Tensor:
    """Whose division is no number of the step, but a count."""
    found: Tensor = model(batch["x"]).square().mean()
    return found


def attending(model: Model, x: Tensor) -> Tensor:
    """Masks that are causal, or hide nothing, for the whole."""
    for build in (causal_mask, additive_mask, open_mask, window(LENGTH), window(2 * LENGTH)):
        x = masked(build)(model, x)
    return attend(attend(x, None), None, causal=True)


@pytest.mark.parametrize("take", [capture, capture_eval])
@pytest.mark.parametrize("forward", [tokenwise, attending])
def test_what_is_the_same_at_every_length_is_accepted(forward: Forward, take: Any) -> None:
    """Sizes, counts of means, and masks."""
    compare(forward, mean, take)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (window(LENGTH // PARTS), "attention sees a window of 4 of all 8 positions where ranks"),
        (window(LENGTH - 1), "attention sees a window of 7 of all 8 positions where ranks"),
        (window(2), "attention sees a window of 2 of all 8 positions where ranks"),
        (band, "attention has a mask over all 8 positions that is not causal where ranks"),
        (branching_mask, "attention has another mask over all 8 positions than over a part where"),
        (padding, "attention has a mask that is no constant where ranks along axis 'cp' have"),
    ],
)
def test_masks_are_judged_for_the_whole(build: Mask, message: str) -> None:
    """Of which a part may see no difference."""
    with pytest.raises(CaptureError, match=f"test_lengths.py:\\d+: {message}"):
        compare(masked(build))


def scaled(model: Model, x: Tensor) -> Tensor:
    return x / x.shape[1]


def numbered(model: Model, x: Tensor) -> Tensor:
    return x + torch.arange(x.shape[1])[:, None]


def tabled(model: Model, x: Tensor) -> Tensor:
    return x + model.table[: x.shape[1]]


def constant(model: Model, x: Tensor) -> Tensor:
    return x * torch.tensor([float(x.shape[1])])


def branching(model: Model, x: Tensor) -> Tensor:
    return x.sin() if x.shape[1] > LENGTH // PARTS else x.cos()


def choosing(model: Model, x: Tensor) -> Tensor:
    halves = torch.cat([x, x], -1).chunk(2, -1)
    return halves[int(x.shape[1] > LENGTH // PARTS)]


def blocks(model: Model, x: Tensor) -> Tensor:
    """Blocks of four positions, of which a part has one."""
    return x.view(ROWS, x.shape[1] // 4, 4, WIDTH).sum(1).sum(1, keepdim=True) * 0 + x


def pairs_of_rows(model: Model, x: Tensor) -> Tensor:
    """Neighbours beside each other, in a dim of two as rows are."""
    return x.view(ROWS * x.shape[1] // 2, 2, WIDTH).softmax(1).view(x.shape)


def flattened(model: Model, x: Tensor) -> Tensor:
    longer = x.shape[1] > LENGTH // PARTS
    return (x.view(-1, WIDTH) if longer else x.view(-1, 1, WIDTH)).reshape(x.shape)


def repeated(model: Model, x: Tensor) -> Tensor:
    return x + model.bias.expand(x.shape[1], WIDTH).sum(0)


def paired(model: Model, x: Tensor) -> Tensor:
    return x * 0 + (x[:, :, None] - x[:, None]).square().sum()


def triangle(model: Model, x: Tensor) -> Tensor:
    return x * torch.ones(x.shape[1], x.shape[1]).tril().sum()


def squares(model: Model, x: Tensor) -> Tensor:
    length = x.shape[1]
    return x * torch.ones(length, length).view(length * length).amax()


def turning(model: Model, x: Tensor) -> Tensor:
    """A sum over another dim."""
    return x + x.unsqueeze(1).expand(-1, 2, -1, -1).sum(1 if x.shape[1] > 4 else -1)[:, :1, :1]


@pytest.mark.parametrize(
    ("forward", "message"),
    [
        (scaled, "argument 'other' of aten.div.Tensor is 4 for a part of 4 positions and 8 for a"),
        (numbered, "aten.arange.default numbers positions from 0 on every rank, expected them as"),
        (tabled, "argument 'end' of aten.slice.Tensor is 4 for a part of 4 positions and 8 for al"),
        (
            constant,
            "aten.mul.Tensor takes the constant [4.0] for a part of 4 positions and the constant",
        ),
        (
            branching,
            "computes aten.cos.default for a part of 4 positions, where the model computes aten.",
        ),
        (choosing, "takes another result of aten.split.Tensor for all 8"),
        (blocks, "aten.view.default cuts the sequence into pieces of which a part has fewer"),
        (pairs_of_rows, "aten.view.default cuts the sequence into pieces of which a part has"),
        (flattened, "aten.view.default makes a value of more or fewer dims"),
        (repeated, "aten.sum.dim_IntList goes over as many equal elements as there are positions"),
        (paired, "aten.sub.Tensor pairs positions with each other, of which a part has fewer pair"),
        (triangle, "aten.tril.default has no rule that says what it does with more positions"),
        (squares, "aten.view.default treats dims in another way for more positions"),
        (turning, "aten.sum.dim_IntList treats dims in another way for more positions"),
    ],
)
def test_what_follows_the_length_is_refused(forward: Forward, message: str) -> None:
    """With the line, and what it is for a part and for the whole."""
    with pytest.raises(CaptureError, match=f"test_lengths.py:\\d+: {re.escape(message)}"):
        compare(forward)


def test_evaluation_is_compared_too() -> None:
    """It may do other things."""
    with pytest.raises(CaptureError, match="ranks along axis 'cp' have parts of sequences: expect"):
        compare(scaled, take=capture_eval)
    with pytest.raises(CaptureError, match="expected a constant mask that is causal over all pos"):
        compare(masked(band), take=capture_eval)


def routed(model: Model, x: Tensor) -> Tensor:
    """Two of three experts for each token."""
    tokens = x.flatten(0, 1)
    weights, index = tokens[:, :3].topk(2)

    def experts(rows: Tensor, received: Tensor) -> Tensor:
        weight = model.table[:18].view(3, 6, 6)
        return ops.moe_linear(rows, weight, received).relu()

    return ops.moe_experts(tokens, index, weights, experts, experts=3).view(x.shape)


def test_rows_of_experts_are_followed() -> None:
    """They are as many as positions, in another order: what is behind them is compared, too."""
    compare(routed)
    with pytest.raises(CaptureError, match=r"argument 'other' of aten\.div\.Tensor is 4 for"):
        compare(lambda model, x: routed(model, x) / x.shape[1])


def averaged(model: nn.Module, batch: Any) -> Tensor:
    x = batch["x"]
    found: Tensor = model(x).square().sum() / x.shape[1]
    return found


def more_losses(model: nn.Module, batch: Any) -> Tensor:
    found: Tensor = model(batch["x"]).square().sum()
    if batch["x"].shape[1] > LENGTH // PARTS:
        found = found + local_loss(batch["x"].detach().sum(), name="more")
    return found


def local_sum(model: nn.Module, batch: Any) -> Tensor:
    found: Tensor = model(batch["x"]).square().sum()
    return found + local_loss(model(batch["x"]).sum(), name="size")


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (averaged, "argument 'other' of aten.div.Tensor is 4 for a part of 4 positions and 8 for"),
        (more_losses, r"the step makes losses and gradients .* and \['loss', 'more'.* for all 8"),
        (local_sum, "local loss 'size' is one of whole examples, and ranks along axis 'cp' have"),
    ],
)
def test_losses_that_follow_the_length_are_refused(loss: Any, message: str) -> None:
    """Numbers that scale them, and terms."""
    with pytest.raises(CaptureError, match=f"test_lengths.py:\\d+.*: {message}"):
        compare(tokenwise, loss)


def test_what_sees_several_positions_is_left_to_the_compiler() -> None:
    """As what it does behind need not be followed."""
    compare(lambda model, x: x + x.mean(1, keepdim=True) / x.shape[1])
    compare(lambda model, x: x.repeat(1, 1, 2)[:, :, :WIDTH] / x.shape[1])
    compare(lambda model, x: x.flip(1) / x.shape[1])
