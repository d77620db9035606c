"""Unmodified models of transformers at test size, their module paths, and their own floors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from oracle import distance, gradients_of, randomize
from strategies import Captures, Case
from torch import Tensor, nn

VOCABULARY, WIDTH, LENGTH, ROWS = 32, 16, 6, 2
IGNORED = -100

Batch = dict[str, Tensor]


def next_token_loss(model: nn.Module, batch: Batch) -> Tensor:
    """Mean cross-entropy of the next token."""
    logits = model(input_ids=batch["ids"], use_cache=False).logits
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), batch["labels"][:, 1:].flatten())


def gpt2(layers: int) -> nn.Module:
    """GPT-2 with a tied head."""
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes: dict[str, Any] = {
        "vocab_size": VOCABULARY,
        "n_positions": LENGTH,
        "n_embd": WIDTH,
        "n_head": 2,
    }
    sizes |= {"n_layer": layers, "resid_pdrop": 0, "embd_pdrop": 0, "attn_pdrop": 0}
    model: nn.Module = GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=0, eos_token_id=0))
    return model


def llama(layers: int) -> nn.Module:
    """Llama with grouped key and value heads, and a head of its own."""
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes: dict[str, Any] = {
        "vocab_size": VOCABULARY,
        "hidden_size": WIDTH,
        "intermediate_size": 2 * WIDTH,
    }
    sizes |= {"num_hidden_layers": layers, "num_attention_heads": 4, "num_key_value_heads": 2}
    sizes |= {"max_position_embeddings": 2 * LENGTH}
    model: nn.Module = LlamaForCausalLM(LlamaConfig(**sizes))
    return model


@dataclass(frozen=True)
class Family:
    """A model and its annotations."""

    make: Callable[[int], nn.Module]
    tags: Mapping[str, str]


FAMILIES: Mapping[str, Family] = {
    "gpt2": Family(
        gpt2,
        {
            "transformer.wte": "embed",
            "transformer.wpe": "embed",
            "transformer.h.*": "layer",
            "transformer.ln_f": "head",
            "lm_head": "head",
        },
    ),
    "llama": Family(
        llama,
        {
            "model.embed_tokens": "embed",
            "model.layers.*": "layer",
            "model.norm": "head",
            "lm_head": "head",
        },
    ),
}


LLAMA_DIMS: Mapping[str, int] = {
    "self_attn.q_proj": 0,
    "self_attn.k_proj": 0,
    "self_attn.v_proj": 0,
    "self_attn.o_proj": 1,
    "mlp.gate_proj": 0,
    "mlp.up_proj": 0,
    "mlp.down_proj": 1,
}
"""Which dim of the weight of each product of a layer of Llama ranks along `tp` share out."""


@cache
def captures(name: str, *, layers: int) -> Captures:
    """The model in fp64 with random biases, and its captures."""
    torch.manual_seed(0)
    model = FAMILIES[name].make(layers).double()
    randomize(model)
    return Captures(model, next_token_loss)


def make_batch(case: Case) -> Batch:
    """Ids and labels of all ranks, a third of the labels ignored, one microbatch without any."""
    generator = torch.Generator().manual_seed(1)
    shape = (case.parts * ROWS, LENGTH)
    ids = torch.randint(VOCABULARY, shape, generator=generator)
    labels = ids.clone()
    labels[torch.rand(shape, generator=generator) < 0.3] = IGNORED
    if case.parts > 1:
        labels[-ROWS:] = IGNORED
    return {"ids": ids, "labels": labels}


def floor(model: nn.Module, batch: Batch) -> float:
    """How far plain PyTorch is from itself: the whole batch against its microbatches, summed."""
    count = int((batch["labels"][:, 1:] != IGNORED).sum())
    whole = _gradients(model, batch, count)
    parts = [
        _gradients(model, {name: value[row : row + ROWS] for name, value in batch.items()}, count)
        for row in range(0, len(batch["ids"]), ROWS)
    ]
    return max(
        distance(sum((part[name] for part in parts), torch.zeros(())), value)
        for name, value in whole.items()
    )


def _gradients(model: nn.Module, batch: Batch, count: int) -> dict[str, Tensor]:
    """Gradients of the summed loss over `count`."""
    model.zero_grad()
    logits = model(input_ids=batch["ids"], use_cache=False).logits[:, :-1].flatten(0, 1)
    labels = batch["labels"][:, 1:].flatten()
    loss = F.cross_entropy(logits, labels, reduction="sum") / count
    loss.backward()  # type: ignore[no-untyped-call]
    return gradients_of(model)
