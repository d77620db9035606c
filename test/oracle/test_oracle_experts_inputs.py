"""Experts that inputs choose: what routes rows depends on no parameter.

A hash of the token chooses, as in Roller et al., 2021, "Hash Layers For Large Sparse Models", or
the batch says who is chosen. Then all that is exchanged first could be computed before any chunk.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import piper
import pytest
import sequence_models
import small_moe
import torch
from oracle import check_steps, piper_steps, plain_steps, randomize, sgd
from piper_runtime import LocalTransport
from small_moe import (
    CHOICES,
    CLIP,
    EXPERTS,
    VOCABULARY,
    WIDTH,
    Experted,
    Experts,
    Router,
    token_loss,
)
from strategies import Captures
from torch import Tensor, nn

Batch = dict[str, Tensor]
SHARED_TAGS = {"embed": "first", "router": "first", "layers.*": "layer", "head": "last"}


def hashed(ids: Tensor) -> Tensor:
    """The experts of each token, ``[T, k]``."""
    steps = torch.arange(1, CHOICES + 1, device=ids.device)
    return (ids.reshape(-1, 1) * 5 + steps * steps) % EXPERTS


class Layer(nn.Module):
    """Experts that are given, beside a residual connection; how much they weigh is learned."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.score = nn.Linear(WIDTH, EXPERTS)
        self.experts = Experts()

    def forward(self, x: Tensor, index: Tensor) -> Tensor:
        tokens = self.norm(x).flatten(0, 1)
        weights = self.score(tokens).sigmoid().gather(1, index)
        y: Tensor = piper.ops.moe_experts(tokens, index, weights, self.experts, experts=EXPERTS)
        return x + y.view_as(x)


class Model(small_moe.Model):
    """Its layers are told who is chosen."""

    def __init__(self) -> None:
        super().__init__(2, Layer)

    def forward(self, ids: Tensor, chosen: Tensor | None = None) -> Tensor:
        x: Tensor = self.embed(ids)
        for number, layer in enumerate(self.layers):
            x = layer(x, hashed(ids + number) if chosen is None else chosen.flatten(0, 1))
        logits: Tensor = self.head(x)
        return logits


def chosen_loss(model: nn.Module, batch: Batch) -> Tensor:
    """The loss of `small_moe` with the experts that the batch names."""
    logits = model(batch["ids"], batch["chosen"])
    loss: Tensor = nn.functional.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten())
    return loss


def make_model() -> nn.Module:
    """With random weights, in fp64."""
    torch.manual_seed(0)
    model = Model()
    randomize(model, scale=0.4)
    return model.double()


def check(case: Experted, loss: Any, batches: list[Batch]) -> None:
    """Two steps and an evaluation equal plain PyTorch."""
    model = make_model()
    program = piper.compile(model, loss, case.plan(), batches[0])
    found = piper_steps(program, model, batches, sgd)
    check_steps(found, plain_steps(model, loss, batches, sgd, clip=CLIP))
    trainer = piper.Trainer(program, transport=LocalTransport(), model=model, optimizer=sgd)
    expected = float(loss(model, batches[0]).detach())
    assert trainer.evaluate(batches[0]) == pytest.approx(expected, abs=1e-12)
    trainer.close()


@pytest.mark.parametrize(
    "case",
    [
        Experted("1F1B", 2, 2, 2, zero=1),
        pytest.param(Experted("DualPipeV", 2, 2, 4, zero=2), marks=pytest.mark.slow),
        pytest.param(Experted("ZBVZeroBubble", 2, 2, 4, zero=3), marks=pytest.mark.slow),
        pytest.param(
            Experted("1F1B", 2, 2, 2, remat=piper.remat("layer", policy="full")),
            marks=pytest.mark.slow,
        ),
    ],
    ids=str,
)
def test_a_hash_of_tokens_chooses(case: Experted) -> None:
    """On ranks of which pairs hold the same experts."""
    check(case, token_loss, small_moe.batches(case, steps=2))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["1F1B", "ZBVZeroBubble"])
def test_the_batch_chooses(name: str) -> None:
    """The numbers of experts are an input, and none is made of it."""
    case = Experted(name, 2, 2, 4, zero=1)
    batches = small_moe.batches(case, steps=2)
    for step, batch in enumerate(batches):
        draw = torch.Generator().manual_seed(step)
        shape = (*batch["ids"].shape, CHOICES)
        batch["chosen"] = torch.randint(EXPERTS, shape, generator=draw)
    check(case, chosen_loss, batches)


Send = Callable[[Tensor, Experts], Tensor]


class Block(nn.Module):
    """A layer that sends its tokens where others say, beside a residual connection."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.experts = Experts()

    def forward(self, x: Tensor, send: Send) -> Tensor:
        return x + send(self.norm(x).flatten(0, 1), self.experts).view_as(x)


class Plain(nn.Module):
    """One router for all layers, which send tokens to the same experts."""

    def __init__(self, *, by_hash: bool) -> None:
        super().__init__()
        self.by_hash = by_hash
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.router = Router()
        self.layers = nn.ModuleList(Block() for _ in range(2))
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, ids: Tensor) -> Tensor:
        x: Tensor = self.embed(ids)
        index, weights = self.router(x.flatten(0, 1))
        send = self.choose(hashed(ids) if self.by_hash else index, weights)
        for layer in self.layers:
            x = layer(x, send)
        logits: Tensor = self.head(x)
        return logits

    def choose(self, index: Tensor, weights: Tensor) -> Send:
        def send(tokens: Tensor, experts: Experts) -> Tensor:
            y: Tensor = piper.ops.moe_experts(tokens, index, weights, experts, experts=EXPERTS)
            return y

        return send


class Shared(Plain):
    """The same with one sort."""

    def choose(self, index: Tensor, weights: Tensor) -> Send:
        ops = piper.ops
        order, counts = ops.moe_sort(index, EXPERTS, 1)
        received = ops.moe_exchange_counts(counts)

        def send(tokens: Tensor, experts: Experts) -> Tensor:
            rows = ops.moe_permute(tokens, order, CHOICES)
            rows = ops.moe_group(ops.moe_dispatch(rows, counts, received), received)
            rows = ops.moe_ungroup(experts(rows, received), received)
            rows = ops.moe_collect(rows, counts, received)
            y: Tensor = ops.moe_unpermute(rows, order, weights)
            return y

        return send


@pytest.mark.parametrize(
    ("case", "by_hash"),
    [
        (Experted("1F1B", 2, 2, 2, zero=1), True),
        pytest.param(Experted("1F1B", 2, 2, 2, zero=1), False, marks=pytest.mark.slow),
        pytest.param(Experted("ZBVZeroBubble", 2, 2, 4, zero=3), True, marks=pytest.mark.slow),
        pytest.param(Experted("DualPipeV", 2, 2, 4, zero=2), False, marks=pytest.mark.slow),
        pytest.param(
            Experted("1F1B", 2, 2, 2, remat=piper.remat("layer", policy="full")),
            False,
            marks=pytest.mark.slow,
        ),
    ],
    ids=str,
)
def test_stages_share_one_sort(case: Experted, *, by_hash: bool) -> None:
    """Counts are sent from the first to the second, sizes are not."""
    torch.manual_seed(0)
    model = Shared(by_hash=by_hash)
    randomize(model, scale=0.4)
    model = model.double()
    plain = Plain(by_hash=by_hash).double()
    plain.load_state_dict(model.state_dict())
    batches = small_moe.batches(case, steps=2)
    program = piper.compile(model, token_loss, case.plan(tags=SHARED_TAGS), batches[0])
    found = piper_steps(program, model, batches, sgd)
    check_steps(found, plain_steps(plain, token_loss, batches, sgd, clip=CLIP))


class Raw(nn.Module):
    """Rows are inputs, too: all that is before the experts is."""

    def __init__(self) -> None:
        super().__init__()
        self.experts = Experts()
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, x: Tensor, index: Tensor) -> Tensor:
        weights = torch.ones(index.shape, dtype=x.dtype)
        y = piper.ops.moe_experts(x, index, weights, self.experts, experts=EXPERTS)
        logits: Tensor = self.head(y)
        return logits


def raw_loss(model: nn.Module, batch: Batch) -> Tensor:
    loss: Tensor = nn.functional.cross_entropy(model(batch["x"], batch["index"]), batch["labels"])
    return loss


def test_rows_that_are_inputs_are_sent() -> None:
    """Without a chunk before the experts, and with a microbatch each."""
    torch.manual_seed(0)
    model = Raw()
    for parameter in model.parameters():
        nn.init.normal_(parameter)
    model = model.double()
    batch = {
        "x": torch.randn(16, WIDTH, dtype=torch.float64),
        "index": torch.randint(EXPERTS, (16, CHOICES)),
        "labels": torch.randint(VOCABULARY, (16,)),
    }
    strategy = piper.Strategy(
        mesh={"dp": 2, "ep": 2},
        directives=[
            piper.split(microbatches=2),
            piper.replicate(axis=("dp", "ep"), zero=1),
            piper.shard("experts.*", axis="ep"),
            piper.update(sgd),
        ],
    )
    program = piper.compile(model, raw_loss, strategy, batch)
    found = piper_steps(program, model, [batch] * 2, sgd)
    check_steps(found, plain_steps(model, raw_loss, [batch] * 2, sgd))


def test_rows_that_were_sent_stay_on_a_stage() -> None:
    """How many came only the run knows: the next stage could make no room for them."""
    case = Experted("1F1B", 2, 2, 2)
    parts = ("norm", "router", "experts", "shared")
    tags = {"embed": "first", **{f"layers.*.{part}": part for part in parts}, "head": "last"}
    with pytest.raises(piper.CompileError) as raised:
        piper.compile(
            small_moe.Model(2), token_loss, case.plan(tags=tags), small_moe.batches(case)[0]
        )
    assert "small_moe.py" in str(raised.value)
    assert (
        "of which only the run knows the size, to arise at its coordinate 1, got one of "
        "coordinate 0; annotate what sends rows to experts and what takes them as one chunk, or "
        "place both on one stage" in str(raised.value)
    )


@pytest.mark.slow
def test_inputs_choose_beside_parts_of_sequences() -> None:
    """Ranks along `cp` hash the tokens that they have."""
    case = sequence_models.Sequences("1F1B", 2, 0, 2, zero=1, cp=2, ep=2)
    model = make_model()
    made = sequence_models.batches(case)
    given = [{name: batch[name] for name in ("ids", "labels")} for batch in made]
    plan = case.strategy(
        small_moe.TAGS,
        sgd,
        clip=CLIP,
        stages=case.stages,
        more=[
            piper.sequence("cp", {"ids": 1, "labels": 1}),
            piper.shard(small_moe.EXPERT_STATES, axis="ep"),
        ],
    )
    program = Captures(model, token_loss).compile(plan, given[0])
    expected = plain_steps(model, token_loss, given, sgd, clip=CLIP)
    check_steps(piper_steps(program, model, given, sgd), expected)
