"""From tokens to rows in order of experts, and back.

Token t has k choices; choice j of token t is slot t * k + j. ``order`` lists the slots expert by
expert, so ``rows[i]`` belongs to token ``order[i] // k``.

    tokens    a        b        c
    experts   2 0      0 1      2 0
    slots     0 1      2 3      4 5
    order     1 2 5 | 3 | 0 4          counts  3 1 2
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from piper_runtime.movement import movement_for
from piper_runtime.ops.define import differentiate, op

__all__ = [
    "moe_permute",
    "moe_permute_backward",
    "moe_sort",
    "moe_unpermute",
    "moe_unpermute_rows",
    "moe_unpermute_weights",
]


def _share(experts: int, ranks: int) -> int:
    """Return the number of experts of each rank."""
    if experts % ranks != 0:
        raise ValueError(f"ranks expected to divide the number of experts {experts}, got {ranks}")
    return experts // ranks


def _fake_sort(index: Tensor, experts: int, ranks: int) -> tuple[Tensor, Tensor]:
    counts = index.new_empty(ranks, _share(experts, ranks), dtype=torch.int64)
    return index.new_empty(index.numel(), dtype=torch.int64), counts


@op(fake=_fake_sort)
def moe_sort(index: Tensor, experts: int, ranks: int) -> tuple[Tensor, Tensor]:
    """Sort slots by expert: ``index[T, k]`` -> ``order[T * k]``, ``counts[R, E/R]``.

    ``index`` holds the numbers of the experts that each token chose, each in [0, experts). Slots of
    one expert keep their order. Rank r holds experts r * E/R and following, ``counts[r, j]`` is the
    number of slots of its j-th.
    """
    ordered, order = torch.sort(index.reshape(-1), stable=True)
    firsts = torch.arange(experts + 1, device=index.device, dtype=index.dtype)
    starts = torch.searchsorted(ordered, firsts)
    return order, torch.diff(starts).view(ranks, _share(experts, ranks))


def _fake_permute(x: Tensor, order: Tensor, choices: int) -> Tensor:
    return x.new_empty(order.shape[0], x.shape[1])


@op(fake=_fake_permute)
def moe_permute(x: Tensor, order: Tensor, choices: int) -> Tensor:
    """Give each slot the row of its token: ``x[T, D]``, ``order[n]`` -> ``[n, D]``."""
    return movement_for(x.device).permute_rows(x, order=order, choices=choices)


def _fake_permute_backward(grad: Tensor, order: Tensor, choices: int) -> Tensor:
    return grad.new_empty(grad.shape[0] // choices, grad.shape[1])


@op(fake=_fake_permute_backward)
def moe_permute_backward(grad: Tensor, order: Tensor, choices: int) -> Tensor:
    """Sum the rows of each token, 16 bits in fp32: ``grad[n, D]`` -> ``[T, D]``."""
    return movement_for(grad.device).unpermute_rows(grad, order=order, choices=choices)


def _fake_unpermute(rows: Tensor, order: Tensor, weights: Tensor) -> Tensor:
    return rows.new_empty(weights.shape[0], rows.shape[1])


@op(fake=_fake_unpermute)
def moe_unpermute(rows: Tensor, order: Tensor, weights: Tensor) -> Tensor:
    """Sum the rows of each token by weight: ``rows[n, D]``, ``weights[T, k]`` -> ``[T, D]``.

    Products and sums of 16 bit rows are computed in fp32. The result has the dtype of the rows.
    """
    move, choices = movement_for(rows.device), weights.shape[1]
    return move.unpermute_rows(rows, order=order, choices=choices, weights=weights)


def _fake_unpermute_rows(grad: Tensor, order: Tensor, weights: Tensor) -> Tensor:
    return grad.new_empty(order.shape[0], grad.shape[1])


@op(fake=_fake_unpermute_rows)
def moe_unpermute_rows(grad: Tensor, order: Tensor, weights: Tensor) -> Tensor:
    """Return the gradient of the rows: ``grad[T, D]``, ``weights[T, k]`` -> ``[n, D]``."""
    move, choices = movement_for(grad.device), weights.shape[1]
    return move.permute_rows(grad, order=order, choices=choices, weights=weights)


def _fake_unpermute_weights(
    grad: Tensor, rows: Tensor, order: Tensor, choices: int, dtype: torch.dtype
) -> Tensor:
    return grad.new_empty(order.shape[0] // choices, choices, dtype=dtype)


@op(fake=_fake_unpermute_weights)
def moe_unpermute_weights(
    grad: Tensor, rows: Tensor, order: Tensor, choices: int, dtype: torch.dtype
) -> Tensor:
    """Return the gradient of the weights: ``grad[T, D]``, ``rows[n, D]`` -> ``[T, k]`` of
    ``dtype``.
    """
    move = movement_for(grad.device)
    return move.dot_rows(grad, rows, order=order, choices=choices, dtype=dtype)


def _save_order(ctx: Any, inputs: tuple[Tensor, Tensor, int], output: Tensor) -> None:
    _, order, ctx.choices = inputs
    ctx.save_for_backward(order)


def _permute_backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
    (order,) = ctx.saved_tensors
    return moe_permute_backward(grad, order, ctx.choices), None, None


def _save_all(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _unpermute_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, None, Tensor | None]:
    rows, order, weights = ctx.saved_tensors
    needs_rows, _, needs_weights = ctx.needs_input_grad
    drows = moe_unpermute_rows(grad, order, weights) if needs_rows else None
    if not needs_weights:
        return drows, None, None
    return (
        drows,
        None,
        moe_unpermute_weights(grad, rows, order, weights.shape[1], weights.dtype),
    )


differentiate(moe_permute, save=_save_order, backward=_permute_backward)
differentiate(moe_unpermute, save=_save_all, backward=_unpermute_backward)
