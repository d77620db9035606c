"""Captured steps of distinct models, made once for all tests that need some."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch
from capture_models import (
    GPT2_TAGS,
    GPT_TAGS,
    LLAMA_TAGS,
    Gpt,
    gpt2,
    hf_loss,
    llama,
    token_batch,
    token_loss,
)
from piper.frontend import Capture, Role, capture, capture_eval
from torch import Tensor, nn

MODELS: dict[str, tuple[Callable[[], nn.Module], Any, Mapping[str, str]]] = {
    "gpt": (Gpt, token_loss, GPT_TAGS),
    "gpt-sdpa-tied": (lambda: Gpt(fused=True, tied=True), token_loss, GPT_TAGS),
    "hf-gpt2": (gpt2, hf_loss, GPT2_TAGS),
    "hf-llama": (llama, hf_loss, LLAMA_TAGS),
}


@functools.cache
def model_of(name: str) -> nn.Module:
    torch.manual_seed(0)
    return MODELS[name][0]()


@functools.cache
def step_of(name: str, entry: str = "train") -> Capture:
    _, loss_fn, tags = MODELS[name]
    take = capture if entry == "train" else capture_eval
    batch = token_batch()
    return take(model_of(name), loss_fn, batch, annotations=tags, microbatches=2, data_shards=2)


def feed_of(name: str) -> dict[Role, Tensor]:
    """Return a value for every state, input (the first microbatch) and tangent of a step."""
    model, captured = model_of(name), step_of(name)
    states = dict(model.named_parameters()) | dict(model.named_buffers())
    states |= {spec.name: spec.value for spec in captured.states if spec.value is not None}
    feed = {Role("state", name): value.detach() for name, value in states.items()}
    feed |= {Role("input", name): value[:4] for name, value in token_batch().items()}
    return feed | {Role("tangent", "loss"): torch.tensor(0.03)}
