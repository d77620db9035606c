"""Softmax along a dim of which there are parts, and its gradient.

What all parts add to is made in two steps: one op makes an element of each part, in fp32 at least;
another one gets these of all parts, side by side, as ``stats``.

    log_sum_exp_part            ->  softmax_part, log_softmax_part
    softmax_backward_sum_part   ->  softmax_backward_part
    sum_part                    ->  log_softmax_backward_part

The other keywords are those of ``vocabulary``.
"""

from __future__ import annotations

import torch
from torch import Tensor

from piper_runtime.ops.define import op
from piper_runtime.ops.partition import fill_padding

__all__ = [
    "log_softmax_backward_part",
    "log_softmax_part",
    "log_sum_exp_part",
    "softmax_backward_part",
    "softmax_backward_sum_part",
    "softmax_part",
    "sum_part",
]


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)


def _one(x: Tensor, dim: int) -> Tensor:
    """An element for each part."""
    shape = list(x.shape)
    shape[dim] = 1
    return x.new_empty(shape, dtype=_wide(x.dtype))


def _fake_forward_stats(x: Tensor, dim: int, half_to_float: bool, **part: object) -> Tensor:
    return _one(x, dim)


@op(fake=_fake_forward_stats)
def log_sum_exp_part(
    x: Tensor, dim: int, half_to_float: bool, *, index: Tensor, parts: int, size: int
) -> Tensor:
    """Return the logarithm of the part's sum of exponentials; -inf if all of it is padding."""
    filled = fill_padding(
        x.to(_wide(x.dtype)), -torch.inf, dim, index=index, parts=parts, size=size
    )
    return filled.logsumexp(dim, keepdim=True)


def _fake_softmax(x: Tensor, dim: int, half_to_float: bool, **part: object) -> Tensor:
    return x.new_empty(x.shape, dtype=torch.float32 if half_to_float else x.dtype)


def _centred(x: Tensor, dim: int, half_to_float: bool, stats: Tensor) -> tuple[Tensor, torch.dtype]:
    return x - stats.logsumexp(dim, keepdim=True), torch.float32 if half_to_float else x.dtype


@op(fake=_fake_softmax)
def log_softmax_part(
    x: Tensor,
    dim: int,
    half_to_float: bool,
    *,
    index: Tensor,
    parts: int,
    size: int,
    stats: Tensor,
) -> Tensor:
    """Return the part of a log-softmax; ``stats`` are those of ``log_sum_exp_part``."""
    centred, dtype = _centred(x, dim, half_to_float, stats)
    return fill_padding(
        centred.to(dtype), 0.0, dim, index=index, parts=parts, size=size
    ).contiguous()


@op(fake=_fake_softmax)
def softmax_part(
    x: Tensor,
    dim: int,
    half_to_float: bool,
    *,
    index: Tensor,
    parts: int,
    size: int,
    stats: Tensor,
) -> Tensor:
    """Return the part of a softmax; ``stats`` are those of ``log_sum_exp_part``."""
    centred, dtype = _centred(x, dim, half_to_float, stats)
    return fill_padding(
        centred.exp().to(dtype), 0.0, dim, index=index, parts=parts, size=size
    ).contiguous()


def _fake_backward_stats(
    grad_output: Tensor, output: Tensor, dim: int, input_dtype: torch.dtype, **part: object
) -> Tensor:
    return _one(grad_output, dim)


@op(fake=_fake_backward_stats)
def sum_part(
    grad_output: Tensor,
    output: Tensor,
    dim: int,
    input_dtype: torch.dtype,
    *,
    index: Tensor,
    parts: int,
    size: int,
) -> Tensor:
    """Return the part's sum of a gradient."""
    filled = fill_padding(grad_output, 0.0, dim, index=index, parts=parts, size=size)
    return filled.sum(dim, keepdim=True, dtype=_wide(grad_output.dtype))


@op(fake=_fake_backward_stats)
def softmax_backward_sum_part(
    grad_output: Tensor,
    output: Tensor,
    dim: int,
    input_dtype: torch.dtype,
    *,
    index: Tensor,
    parts: int,
    size: int,
) -> Tensor:
    """Return the part's sum of a gradient times the softmax."""
    dtype = _wide(grad_output.dtype)
    filled = fill_padding(
        grad_output.to(dtype) * output, 0.0, dim, index=index, parts=parts, size=size
    )
    return filled.sum(dim, keepdim=True)


def _fake_softmax_backward(
    grad_output: Tensor, output: Tensor, dim: int, input_dtype: torch.dtype, **part: object
) -> Tensor:
    return grad_output.new_empty(grad_output.shape, dtype=input_dtype)


@op(fake=_fake_softmax_backward)
def log_softmax_backward_part(
    grad_output: Tensor,
    output: Tensor,
    dim: int,
    input_dtype: torch.dtype,
    *,
    index: Tensor,
    parts: int,
    size: int,
    stats: Tensor,
) -> Tensor:
    """Return the part of the gradient of a log-softmax; ``stats`` are those of ``sum_part``."""
    total = stats.sum(dim, keepdim=True)
    grad = (grad_output - output.to(total.dtype).exp() * total).to(input_dtype)
    return fill_padding(grad, 0.0, dim, index=index, parts=parts, size=size).contiguous()


@op(fake=_fake_softmax_backward)
def softmax_backward_part(
    grad_output: Tensor,
    output: Tensor,
    dim: int,
    input_dtype: torch.dtype,
    *,
    index: Tensor,
    parts: int,
    size: int,
    stats: Tensor,
) -> Tensor:
    """Return the part of the gradient of a softmax, by ``softmax_backward_sum_part``."""
    grad = ((grad_output - stats.sum(dim, keepdim=True)) * output).to(input_dtype)
    return fill_padding(grad, 0.0, dim, index=index, parts=parts, size=size).contiguous()
