"""Facts of ops: effects from schemas, FLOPs and layout from fake tensors."""

from __future__ import annotations

import pytest
import torch
from capture_models import GPT_TAGS, WIDTH, Gpt, token_batch, token_loss
from piper.frontend import capture
from piper.frontend.op_facts import Effects, effects, node_facts
from torch._ops import OpOverload

aten = torch.ops.aten


@pytest.mark.parametrize(
    ("op", "expected"),
    [
        (aten.mm.default, "pure"),
        (aten.clone.default, "pure"),
        (aten.index.Tensor, "pure"),
        (aten.view.default, "view"),
        (aten.t.default, "view"),
        (aten.expand.default, "view"),
        (aten.detach.default, "view"),
        (aten._unsafe_view.default, "view"),
        (aten.native_dropout.default, "random"),
        (aten.rand.default, "random"),
        (aten.add_.Tensor, "mutating"),
        (aten.copy_.default, "mutating"),
        (aten._local_scalar_dense.default, "host_sync"),
        (aten.nonzero.default, "host_sync"),
    ],
)
def test_effects(op: OpOverload, expected: Effects) -> None:
    assert effects(op) == expected


def test_facts_of_a_captured_graph() -> None:
    captured = capture(
        Gpt(fused=True, layers=1),
        token_loss,
        token_batch(),
        annotations=GPT_TAGS,
        microbatches=2,
        data_shards=2,
    )
    facts = [(node.target, node, node_facts(node)) for node in captured.ops()]
    rows = 4 * 8
    products = [fact.flops for op, _, fact in facts if op is aten.addmm.default]
    assert 2 * rows * WIDTH * 3 * WIDTH in products
    attention = [fact for op, _, fact in facts if "scaled_dot_product" in str(op)]
    assert attention
    assert all(fact.effects == "pure" and fact.flops > 0 and fact.heavy for fact in attention)
    assert all(fact.heavy for op, _, fact in facts if op is aten.addmm.default)
    masks = {op: fact.mask for op, _, fact in facts if fact.mask is not None}
    assert masks == {aten.native_layer_norm_backward.default: 7}
    assert not any(fact.heavy for op, _, fact in facts if op in masks)
    transposed = [fact for op, _, fact in facts if op is aten.t.default]
    assert all(fact.effects == "view" and fact.flops == 0 for fact in transposed)
    assert any(fact.strided for fact in transposed)
    assert not any(fact.strided for op, _, fact in facts if op is aten.addmm.default)
    assert {fact.effects for _, _, fact in facts} == {"pure", "view"}
