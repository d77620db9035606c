"""A layer of experts, made of the ops."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from piper_runtime.ops.exchange import (
    moe_collect,
    moe_dispatch,
    moe_exchange_counts,
    moe_group,
    moe_ungroup,
)
from piper_runtime.ops.routing import moe_permute, moe_sort, moe_unpermute

__all__ = ["moe_experts"]


def moe_experts(
    x: Tensor,
    index: Tensor,
    weights: Tensor,
    compute: Callable[[Tensor, Tensor], Tensor],
    *,
    experts: int,
) -> Tensor:
    """Send each token through the experts that it chose, and sum what they return by weight.

        def mlp(rows, received):
            hidden = torch.relu(moe_linear(rows, self.up, received))
            return moe_linear(hidden, self.down, received)

        y = moe_experts(x, index, weights, mlp, experts=len(self.up))

    Args:
        x: the tokens, ``[T, D]``.
        index: the experts that each token chose, ``[T, k]`` of int64, each in [0, experts).
        weights: the weight of each choice, ``[T, k]``.
        compute: takes rows in order of experts, ``[m, D]``, and how many there are of each; works
            on every row for itself but for ``moe_linear``; returns ``[m, D]``.
        experts: how many there are in all.

    Returns ``[T, D]``. No token is dropped.
    """
    order, counts = moe_sort(index, experts, 1)
    received = moe_exchange_counts(counts)
    rows = moe_dispatch(moe_permute(x, order, index.shape[1]), counts, received)
    rows = moe_ungroup(compute(moe_group(rows, received), received), received)
    return moe_unpermute(moe_collect(rows, counts, received), order, weights)
