"""Rows of tokens on their way to the ranks that hold the experts, and back.

In one process these are copies: it holds all experts. A compiler that shares experts out over R
ranks replaces the first three by exchanges between the ranks; then a rank gets m rows, as many as
``received`` says, from all of them:

    counts[r, j]     rows that this rank sends to rank r for the j-th expert there
    received[r, j]   rows that this rank gets from rank r for the j-th expert here
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from piper_runtime.ops.define import differentiate, op

__all__ = ["moe_collect", "moe_dispatch", "moe_exchange_counts", "moe_group", "moe_ungroup"]


def _like(value: Tensor, *counts: Tensor) -> Tensor:
    return value.new_empty(value.shape)


@op(fake=_like)
def moe_exchange_counts(counts: Tensor) -> Tensor:
    """Tell each rank how many rows it gets: ``counts[R, E/R]`` -> ``received[R, E/R]``."""
    return counts.clone(memory_format=torch.contiguous_format)


@op(fake=_like)
def moe_dispatch(rows: Tensor, counts: Tensor, received: Tensor) -> Tensor:
    """Send the rows to the ranks that hold their experts: ``rows[n, D]`` -> ``[m, D]``."""
    return rows.clone(memory_format=torch.contiguous_format)


@op(fake=_like)
def moe_collect(rows: Tensor, counts: Tensor, received: Tensor) -> Tensor:
    """Send the rows back to where ``moe_dispatch`` got them from: ``rows[m, D]`` -> ``[n, D]``."""
    return rows.clone(memory_format=torch.contiguous_format)


@op(fake=_like)
def moe_group(rows: Tensor, received: Tensor) -> Tensor:
    """Bring rows from the order (source rank, expert) to (expert, source rank): ``[m, D]``."""
    if received.shape[0] == 1:
        return rows.clone(memory_format=torch.contiguous_format)
    return rows.index_select(0, _by_expert(rows, received))


@op(fake=_like)
def moe_ungroup(rows: Tensor, received: Tensor) -> Tensor:
    """Bring rows back to the order that they had before ``moe_group``: ``[m, D]``."""
    if received.shape[0] == 1:
        return rows.clone(memory_format=torch.contiguous_format)
    return torch.empty_like(rows).index_copy_(0, _by_expert(rows, received), rows)


def _by_expert(rows: Tensor, received: Tensor) -> Tensor:
    """Return the rows by number in order of (expert, source rank)."""
    ranks, experts = received.shape
    expert = torch.arange(experts, device=received.device).repeat(ranks)
    sizes = received.reshape(-1)
    of_row = torch.repeat_interleave(expert, sizes, output_size=rows.shape[0])
    return torch.argsort(of_row, stable=True)


def _save_counts(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[1:])


def _dispatch_backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
    return moe_collect(grad, *ctx.saved_tensors), None, None


def _collect_backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
    return moe_dispatch(grad, *ctx.saved_tensors), None, None


def _group_backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
    return moe_ungroup(grad, *ctx.saved_tensors), None


def _ungroup_backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
    return moe_group(grad, *ctx.saved_tensors), None


differentiate(moe_dispatch, save=_save_counts, backward=_dispatch_backward)
differentiate(moe_collect, save=_save_counts, backward=_collect_backward)
differentiate(moe_group, save=_save_counts, backward=_group_backward)
differentiate(moe_ungroup, save=_save_counts, backward=_ungroup_backward)
