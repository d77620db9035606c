"""Ops of Piper's own, for models written by hand; models of transformers reach them unedited.

    y = piper.ops.moe_experts(x, index, weights, self.mlp, experts=8)

They are ordinary differentiable functions of tensors, on any device, with or without a compiler.
In a captured step the compiler knows what they do: it shares experts out over ranks, and computes
gradients of inputs and of weights at different times.
"""

from piper_runtime.ops import (
    attention,
    attention_with_lse,
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

__all__ = [
    "attention",
    "attention_with_lse",
    "moe_collect",
    "moe_dispatch",
    "moe_exchange_counts",
    "moe_experts",
    "moe_group",
    "moe_linear",
    "moe_permute",
    "moe_sort",
    "moe_ungroup",
    "moe_unpermute",
]
