"""Unmodified models of transformers: in a capture their attention is Piper's op, and exact."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import piper.ops
import pytest
import torch
import transformers
from capture_models import GPT2_TAGS, LLAMA_TAGS, gpt2, hf_loss
from capture_reference import difference, run_capture, run_eager
from piper.frontend import Capture, CaptureError, capture
from piper.frontend.attention import own_attention
from piper.frontend.op_facts import node_facts
from piper.frontend.simplify import simplify
from torch import Tensor, nn
from torch.nn import functional
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

own = torch.ops.piper
T, ROWS, PARTS, LAYERS, VOCABULARY = 7, 8, 4, 2, 32
BOUND = 1e-10

Batch = dict[str, Tensor]

SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 2 * T,
}
LATENT: dict[str, Any] = {
    "num_key_value_heads": 4,
    "q_lora_rank": 8,
    "kv_lora_rank": 8,
    "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 8,
    "v_head_dim": 6,
    "first_k_dense_replace": LAYERS,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
}
TAGS = LLAMA_TAGS


def decoder(name: str, **changes: Any) -> nn.Module:
    """A small decoder of a family, with a head."""
    config = getattr(transformers, f"{name}Config")(**SIZES | changes)
    model: nn.Module = getattr(transformers, f"{name}ForCausalLM")(config)
    return model


@dataclass(frozen=True)
class Family:
    make: Callable[[], nn.Module]
    tags: Mapping[str, str] = field(default_factory=lambda: TAGS)
    grouped: bool = True


FAMILIES: Mapping[str, Family] = {
    "gpt2": Family(gpt2, GPT2_TAGS, grouped=False),
    "llama": Family(lambda: decoder("Llama")),
    "qwen3": Family(lambda: decoder("Qwen3", head_dim=8)),
    # Without experts, which are not what is tested.
    "deepseek-v3": Family(lambda: decoder("DeepseekV3", **LATENT), grouped=False),
}


def make_batch(**more: Tensor) -> Batch:
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(0, VOCABULARY, (ROWS, T), generator=generator)
    labels = torch.randint(0, VOCABULARY, (ROWS, T), generator=generator)
    return {"ids": ids, "labels": labels, **more}


def loss_of_all(model: nn.Module, batch: Batch) -> Tensor:
    """The loss of a model that is given everything in the batch but the labels."""
    inputs = {name: value for name, value in batch.items() if name not in ("ids", "labels")}
    logits = model(input_ids=batch["ids"], use_cache=False, **inputs).logits
    return functional.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten())


def exact(model: nn.Module) -> nn.Module:
    """The model in fp64, with weights that make its attention matter."""
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.3)
    return model.double()


def take(
    model: nn.Module,
    loss_fn: Callable[[nn.Module, Batch], Tensor],
    batch: Batch,
    tags: Mapping[str, str] = TAGS,
) -> Capture:
    return simplify(capture(model, loss_fn, batch, annotations=tags, microbatches=2, data_shards=2))


def calls(captured: Capture, op: Any = own.attention.default) -> list[tuple[Any, ...]]:
    return [node.args for node in captured.ops() if node.target is op]


def has_torch_attention(captured: Capture) -> bool:
    return any("scaled_dot_product" in str(node.target) for node in captured.ops())


def masks(captured: Capture) -> list[str]:
    """Values of T rows and columns, which is no other size."""
    values = [node.meta["val"] for node in captured.ops()]
    found = [value for value in values if isinstance(value, Tensor)]
    return [str(value) for value in found if value.dim() >= 2 and value.shape[-2:] == (T, T)]


@pytest.mark.parametrize("name", FAMILIES)
def test_a_model_attends_by_pipers_op(name: str) -> None:
    """As often as it has layers, causal without a mask, and with the heads of keys that it has."""
    family = FAMILIES[name]
    model, batch = exact(family.make()), make_batch()
    captured = take(model, hf_loss, batch, family.tags)
    assert not has_torch_attention(captured)
    assert masks(captured) == []
    found = calls(captured)
    assert len(found) == len(calls(captured, own.attention_backward.default)) == LAYERS
    for q, k, v, mask, causal, _, offset in found:
        assert (mask, causal, offset) == (None, True, 0)
        shared = q.meta["val"].shape[1] // k.meta["val"].shape[1]
        assert shared == (2 if family.grouped else 1)
        assert k.meta["val"].shape[:3] == v.meta["val"].shape[:3]
    got = run_capture(captured, model, batch)
    assert difference(got, run_eager(model, hf_loss, batch)) <= BOUND


def _padded() -> Batch:
    """Examples with padding on the left and on the right."""
    mask = torch.ones(ROWS, T, dtype=torch.int64)
    mask[0, :3] = 0
    mask[3, 5:] = 0
    mask[5, :1] = 0
    return make_batch(attention_mask=mask)


def _packed() -> Batch:
    """Examples of several sequences, told by positions that start again."""
    positions = torch.arange(T).repeat(ROWS, 1)
    positions[0, 3:] -= 3
    positions[2, 5:] -= 5
    positions[7, 1:] -= 1
    return make_batch(position_ids=positions)


def _additive() -> Batch:
    """A mask of four dims, added to the scores."""
    generator = torch.Generator().manual_seed(2)
    mask = torch.randn(ROWS, 1, T, T, generator=generator, dtype=torch.float64)
    return make_batch(attention_mask=mask)


@pytest.mark.parametrize("make", [_padded, _packed, _additive])
def test_masks_of_the_batch_are_applied(make: Callable[[], Batch]) -> None:
    model, batch = exact(decoder("Llama")), make()
    captured = take(model, loss_of_all, batch)
    assert not has_torch_attention(captured)
    found = calls(captured)
    assert len(found) == LAYERS
    assert all(args[3] is not None and args[4] is False for args in found)
    got, plain = run_capture(captured, model, batch), run_eager(model, loss_of_all, batch)
    assert difference(got, plain) <= BOUND
    bare = {"ids": batch["ids"], "labels": batch["labels"]}
    assert difference(run_eager(model, loss_of_all, bare), plain) > 1e3 * BOUND  # the mask matters


@pytest.mark.parametrize(("window", "kept"), [(3, True), (T, False)])
def test_a_sliding_window_is_kept(window: int, kept: bool) -> None:
    """Unless it is as long as the sequence: then it hides nothing more."""
    model = exact(decoder("Mistral", sliding_window=window))
    batch = make_batch()
    captured = take(model, hf_loss, batch)
    assert [args[3] is not None for args in calls(captured)] == [kept] * LAYERS
    assert [args[4] for args in calls(captured)] == [not kept] * LAYERS
    assert bool(masks(captured)) == kept
    got = run_capture(captured, model, batch)
    assert difference(got, run_eager(model, hf_loss, batch)) <= BOUND


def test_a_model_that_looks_both_ways_has_no_mask() -> None:
    sizes = {name: value for name, value in SIZES.items() if "key_value" not in name}
    config = transformers.BertConfig(
        **sizes, hidden_dropout_prob=0, attention_probs_dropout_prob=0, is_decoder=False
    )
    model = exact(transformers.BertForMaskedLM(config))

    def loss_fn(model: nn.Module, batch: Batch) -> Tensor:
        logits = model(input_ids=batch["ids"]).logits
        return functional.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten())

    batch = make_batch()
    tags = {"bert.embeddings": "embed", "bert.encoder.layer.*": "layer", "cls": "head"}
    captured = take(model, loss_fn, batch, tags)
    assert [args[3:5] for args in calls(captured)] == [(None, False)] * LAYERS
    assert masks(captured) == []
    got = run_capture(captured, model, batch)
    assert difference(got, run_eager(model, loss_fn, batch)) <= BOUND


def test_dropout_stays_the_models_own_and_is_refused() -> None:
    model = gpt2(attn_pdrop=0.1).double()
    with pytest.raises(CaptureError, match="draws random numbers"):
        take(model, hf_loss, make_batch(), GPT2_TAGS)


def test_eager_attention_stays_the_models_own() -> None:
    """Whoever asks for it gets it: Llama's computes its softmax in fp32."""
    model = exact(decoder("Llama", attn_implementation="eager"))
    assert calls(take(model, hf_loss, make_batch())) == []


def test_the_registry_is_as_before() -> None:
    """After a capture, and after one that failed."""
    before = ALL_ATTENTION_FUNCTIONS["sdpa"]
    model = exact(decoder("Llama"))
    take(model, hf_loss, make_batch())
    assert ALL_ATTENTION_FUNCTIONS["sdpa"] is before
    config: Any = model.config
    assert config._attn_implementation == "sdpa"

    def fails(model: nn.Module, batch: Batch) -> Tensor:
        assert ALL_ATTENTION_FUNCTIONS["sdpa"] is before, "replaced inside"
        return hf_loss(model, batch)

    with pytest.raises(CaptureError, match="replaced inside"):
        take(model, fails, make_batch())
    assert ALL_ATTENTION_FUNCTIONS["sdpa"] is before


def test_a_function_of_the_user_stays() -> None:
    before = ALL_ATTENTION_FUNCTIONS["sdpa"]

    def mean(module: Any, q: Tensor, k: Tensor, v: Tensor, *args: Any, **options: Any) -> Any:
        return v.mean(2, keepdim=True).expand_as(v).transpose(1, 2), None

    ALL_ATTENTION_FUNCTIONS.register("sdpa", mean)
    try:
        captured = take(exact(gpt2()), hf_loss, make_batch(), GPT2_TAGS)
        assert ALL_ATTENTION_FUNCTIONS["sdpa"] is mean
    finally:
        ALL_ATTENTION_FUNCTIONS.register("sdpa", before)
    assert calls(captured) == []


@pytest.fixture
def original(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[dict[str, Any]]]:
    """The options of calls of transformers' own function."""
    seen: list[dict[str, Any]] = []

    def sdpa_attention_forward(*args: Any, **options: Any) -> tuple[Tensor, None]:
        seen.append(options)
        return torch.zeros(()), None

    sdpa_attention_forward.__module__ = ALL_ATTENTION_FUNCTIONS["sdpa"].__module__
    monkeypatch.setitem(
        transformers.AttentionInterface._global_mapping, "sdpa", sdpa_attention_forward
    )
    with own_attention():
        yield seen


HEAD = torch.zeros(2, 4, T, 8)
OTHERS: Mapping[str, dict[str, Any]] = {
    "dropout": {"dropout": 0.1},
    "position bias": {"position_bias": torch.zeros(1, 4, T, T)},
    "softcap": {"softcap": 30.0},
    "learned mask": {"attention_mask": torch.zeros(1, 1, T, T, requires_grad=True)},
    "mask dtype": {"attention_mask": torch.zeros(1, 1, T, T, dtype=torch.float64)},
    "mask dims": {"attention_mask": torch.zeros(T, T)},
    "mask length": {"attention_mask": torch.zeros(1, 1, T, T + 1)},
    "learned queries": {"query": HEAD[:1]},
    "heads": {"key": HEAD[:, :2], "value": HEAD[:, :2]},
    "dtype": {"query": HEAD.double()},
    "dims": {"query": HEAD[0], "key": HEAD[0], "value": HEAD[0]},
}


@pytest.mark.parametrize("case", OTHERS)
def test_other_calls_are_left_alone(case: str, original: list[dict[str, Any]]) -> None:
    """With all that they were given."""
    given = {"query": HEAD, "key": HEAD, "value": HEAD, "attention_mask": None} | OTHERS[case]
    ALL_ATTENTION_FUNCTIONS["sdpa"](nn.Module(), **given, scaling=0.5, is_causal=False)
    assert len(original) == 1
    operands = ("query", "key", "value", "attention_mask")
    for name, value in given.items():
        assert name in operands or original[0][name] is value
    assert original[0]["scaling"] == 0.5
    assert original[0]["is_causal"] is False


def test_autocast_stays_torchs(original: list[dict[str, Any]]) -> None:
    """Which changes the dtypes of what torch's own attention is given."""
    with torch.autocast("cpu", torch.bfloat16):
        ALL_ATTENTION_FUNCTIONS["sdpa"](nn.Module(), HEAD, HEAD, HEAD, None)
    assert len(original) == 1


@pytest.mark.usefixtures("original")
@pytest.mark.parametrize(("queries", "given"), [(T, None), (T, True), (T, False), (1, None)])
def test_causality_is_what_transformers_means(queries: int, given: bool | None) -> None:
    """The call says it, or else the module; one query alone sees all keys."""
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(2, 4, queries, 8, generator=generator)
    k, v = torch.randn(2, 2, 2, T, 8, generator=generator)
    module: Any = nn.Module()
    module.num_key_value_groups = 2
    found, weights = ALL_ATTENTION_FUNCTIONS["sdpa"](module, q, k, v, None, is_causal=given)
    causal = given is not False and queries > 1
    expected = functional.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True)
    assert weights is None
    assert torch.allclose(found, expected.transpose(1, 2), atol=1e-6)


def test_facts_of_the_op() -> None:
    """FLOPs by torch's formula for attention, too costly to compute twice, one op backward."""
    batch = make_batch()
    captured = take(exact(decoder("Llama")), hf_loss, batch)
    facts = {node.target: node_facts(node) for node in captured.ops()}
    forward, backward = facts[own.attention.default], facts[own.attention_backward.default]
    scores = ROWS // PARTS * 4 * T * T
    assert (forward.effects, forward.flops, forward.heavy) == ("pure", scores * 2 * 8, True)
    assert (backward.effects, backward.flops, backward.heavy) == ("pure", scores * 5 * 8, True)
    assert forward.mask is None
    assert backward.mask is None


class ByHand(nn.Module):
    """Attention that a model calls itself, under a mask that it makes."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.project = nn.Linear(8, 24)
        self.bias = nn.Parameter(torch.zeros(1, 1, T, T))
        self.kind = kind

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.project(x)[:, None].chunk(3, dim=-1)
        causal = torch.ones(T, T, dtype=torch.bool).tril()[None, None]
        if self.kind == "causal":
            return piper.ops.attention(q, k, v, causal=False, offset=2, mask=causal)
        if self.kind == "twice":
            return piper.ops.attention(q, k, v, causal=True, offset=-1, mask=causal)
        return piper.ops.attention(q, k, v, causal=False, mask=self.bias)


def by_hand(kind: str) -> tuple[nn.Module, Batch, Callable[[Any, Batch], Tensor]]:
    model = exact(ByHand(kind))
    batch = {"x": torch.randn(ROWS, T, 8, dtype=torch.float64)}
    return model, batch, lambda model, batch: (model(batch["x"]) ** 2).sum()


@pytest.mark.parametrize(("kind", "folded"), [("causal", True), ("twice", False)])
def test_a_model_may_call_the_op(kind: str, folded: bool) -> None:
    """Its constant mask is folded, unless the call hides keys by itself."""
    model, batch, loss_fn = by_hand(kind)
    model.bias.requires_grad_(False)
    captured = take(model, loss_fn, batch, {})
    [args] = calls(captured)
    assert (args[3] is None) == folded
    assert (args[4], args[6]) == (True, 0 if folded else -1)
    [site] = {node.meta["site"] for node in captured.ops() if node.target is own.attention.default}
    assert site.file == __file__
    got = run_capture(captured, model, batch)
    assert difference(got, run_eager(model, loss_fn, batch)) <= BOUND


def test_a_mask_that_learns_is_refused_in_a_capture() -> None:
    model, batch, loss_fn = by_hand("learned")
    with pytest.raises(CaptureError, match="expected a mask that needs no gradient"):
        take(model, loss_fn, batch, {})


def test_sizes_are_numbers_whatever_was_captured_before() -> None:
    """So that what depends on them is decided as in a fresh process."""

    def loss_fn(model: nn.Module, batch: Batch) -> Tensor:
        assert length in (0, batch["x"].shape[1]), "a size that is no number"
        loss: Tensor = (model(batch["x"]) ** 2).sum()
        return loss

    for length in (5, 6, 7):
        take(nn.Linear(8, 8), loss_fn, {"x": torch.randn(ROWS, length, 8)}, {})
