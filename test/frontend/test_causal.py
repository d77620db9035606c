"""Constant causal masks become `is_causal`; any other mask stays."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from piper.frontend import capture
from piper.frontend.simplify import simplify
from torch import Tensor, nn

T, WIDTH = 6, 8


class Attention(nn.Module):
    """One head of attention under a mask that the forward builds."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.project = nn.Linear(WIDTH, 3 * WIDTH)
        self.kind = kind

    def forward(self, x: Tensor) -> Tensor:
        """Attend; x is [rows, T, WIDTH]."""
        q, k, v = self.project(x)[:, None].chunk(3, dim=-1)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=self.mask(x))

    def mask(self, x: Tensor) -> Tensor:
        """A T x T mask; the last kind depends on the input."""
        rows, columns = torch.arange(T)[:, None], torch.arange(T)[None]
        if self.kind == "bool":
            return columns <= rows
        if self.kind == "additive":
            return torch.where(columns <= rows, 0.0, float("-inf")).to(x.dtype)
        if self.kind == "window":
            return (columns <= rows) & (columns > rows - 2)
        return (columns <= rows)[None, None] & (x[:, None, None, :, 0] > -100)


def _attention_calls(kind: str) -> list[tuple[bool, bool]]:
    """Of every attention op: whether it is causal, and whether it has a mask."""
    batch = {"x": torch.randn(4, T, WIDTH, dtype=torch.float64)}
    captured = capture(
        Attention(kind).double(),
        lambda model, batch: model(batch["x"]).sum(),
        batch,
        annotations={},
        microbatches=1,
        data_shards=1,
    )
    return [
        (True in node.args, node.kwargs.get("attn_mask") is not None)
        for node in simplify(captured).graph.nodes
        if "dot_product" in str(node.target)
    ]


@pytest.mark.parametrize("kind", ["bool", "additive"])
def test_a_constant_causal_mask_is_folded(kind: str) -> None:
    """In the forward and in the backward op."""
    assert _attention_calls(kind) == [(True, False), (True, False)]


@pytest.mark.parametrize("kind", ["window", "input"])
def test_another_mask_stays(kind: str) -> None:
    """A sliding window, and a mask that only looks causal on some inputs."""
    assert _attention_calls(kind) == [(False, True), (False, True)]
