"""Uses of experts that would train wrong if ranks shared them out are refused, with both lines."""

from __future__ import annotations

import piper
import pytest
import small_moe
import torch
from oracle import randomize, sgd
from small_moe import CHOICES, EXPERT_STATES, EXPERTS, Layer, Model, token_loss
from torch import Tensor, nn

PARTS = "computes with what ranks along axis 'ep' hold parts of, but"
HERE = r"\w+.py:\d+ \(layers.0(.experts)?\)"


class Undispatched(Layer):
    """Rows stay where they are, which only a single process may do."""

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.norm(x).flatten(0, 1)
        index, weights = self.router(tokens)
        order, counts = piper.ops.moe_sort(index, EXPERTS, 1)
        rows = self.experts(piper.ops.moe_permute(tokens, order, CHOICES), counts)
        y: Tensor = piper.ops.moe_unpermute(rows, order, weights)
        return x + y.view_as(x)


class Ungrouped(Layer):
    """Rows keep the order in which they came, which is that of experts in a single process only."""

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.norm(x).flatten(0, 1)
        index, weights = self.router(tokens)
        order, counts = piper.ops.moe_sort(index, EXPERTS, 1)
        received = piper.ops.moe_exchange_counts(counts)
        rows = piper.ops.moe_permute(tokens, order, CHOICES)
        rows = self.experts(piper.ops.moe_dispatch(rows, counts, received), received)
        rows = piper.ops.moe_collect(rows, counts, received)
        y: Tensor = piper.ops.moe_unpermute(rows, order, weights)
        return x + y.view_as(x)


class Indexed(Layer):
    """The first expert is used by all tokens."""

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.norm(x).flatten(0, 1)
        y: Tensor = tokens @ self.experts.up[0].t() @ self.experts.down[0].t()
        return x + y.view_as(x)


class Mean(Layer):
    """The mean of all experts is used by all tokens."""

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.norm(x).flatten(0, 1)
        y: Tensor = tokens @ self.experts.up.sum(0).t() @ self.experts.down.sum(0).t()
        return x + y.view_as(x)


@pytest.mark.parametrize(
    ("layer", "states", "message"),
    [
        (Layer, "*.expert.*", r"selects no state with .*layers.0.experts.up"),
        (Layer, "*.experts.up", r"expected a shard directive to select @layers.0.experts.\w+, too"),
        (
            Layer,
            "*.score.weight",
            r"expected a shard directive to select @layers.0.router.bias, too",
        ),
        (Layer, "*.norm.weight", rf"\(layers.0.norm\): aten.native_layer_norm.default {PARTS}"),
        (Undispatched, EXPERT_STATES, rf"{HERE}: piper.moe_linear.default {PARTS}.*moe_dispatch"),
        (
            Ungrouped,
            EXPERT_STATES,
            r"\w+.py:\d+: piper.moe_linear.default expected rows grouped by expert, got rows as",
        ),
        (Indexed, EXPERT_STATES, rf"{HERE}: aten.select.int {PARTS}.*dim 0 of operand"),
        (
            Mean,
            EXPERT_STATES,
            rf"{HERE}: aten.sum.dim_IntList {PARTS} needs the whole of dim 0 of operand",
        ),
    ],
    ids=["nothing", "some", "router", "norm", "undispatched", "ungrouped", "indexed", "mean"],
)
def test_what_would_be_wrong(layer: type[Layer], states: str, message: str) -> None:
    """The line that uses experts, and the directive that shares them out."""
    model = Model(1)
    model.layers = nn.ModuleList([layer()])
    randomize(model)
    strategy = piper.Strategy(
        mesh={"ep": 2},
        directives=[
            piper.split(microbatches=2),
            piper.replicate(axis="ep"),
            piper.shard(states, axis="ep"),
            piper.update(sgd),
        ],
    )
    ids, labels = torch.randint(small_moe.VOCABULARY, (2, 4, small_moe.LENGTH))
    with pytest.raises(piper.CompileError, match=rf"(?s){message}"):
        piper.compile(model, token_loss, strategy, {"ids": ids, "labels": labels})
