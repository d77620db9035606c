"""Products of rows in groups, each group with a matrix of its own: the experts of a layer.

x        rows of expert 0 | rows of expert 1 | ...        [m, I]
y        x0 @ w[0].T      | x1 @ w[1].T      | ...        [m, O]
received how many rows of each expert came from each rank [R, E/R]; its column sums are the
         sizes of the groups
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from piper_runtime.ops.define import differentiate, op

__all__ = ["moe_linear", "moe_linear_input", "moe_linear_weight"]

# Torch's grouped product takes rows that start at multiples of 16 bytes.
_ALIGNMENT = 16


def _fake_linear(x: Tensor, weight: Tensor, received: Tensor) -> Tensor:
    _check("moe_linear", x, received, weight, 2)
    return x.new_empty(x.shape[0], weight.shape[1])


def _fake_input(grad: Tensor, weight: Tensor, received: Tensor) -> Tensor:
    _check("moe_linear_input", grad, received, weight, 1)
    return grad.new_empty(grad.shape[0], weight.shape[2])


def _fake_weight(grad: Tensor, x: Tensor, received: Tensor) -> Tensor:
    return x.new_empty(received.shape[1], grad.shape[1], x.shape[1])


def _check(name: str, rows: Tensor, received: Tensor, weight: Tensor, dim: int) -> None:
    """Refuse what does not fit together, as the product of a plain layer would."""
    if rows.dtype != weight.dtype:
        raise TypeError(f"{name} expected rows of {weight.dtype} as the weight, got {rows.dtype}")
    if (received.shape[1], rows.shape[1]) != (weight.shape[0], weight.shape[dim]):
        raise ValueError(
            f"{name} expected a weight for {received.shape[1]} experts and rows of "
            f"{rows.shape[1]}, got shape {tuple(weight.shape)}"
        )


@op(fake=_fake_linear)
def moe_linear(x: Tensor, weight: Tensor, received: Tensor) -> Tensor:
    """Multiply the rows of each expert by its matrix: ``x[m, I]``, ``weight[E/R, O, I]`` ->
    ``[m, O]``.

    Rows lie in order of experts, ``received[:, e].sum()`` of them for expert e; there may be none.
    All of one dtype: fp64, fp32 or bf16.
    """
    _check("moe_linear", x, received, weight, 2)
    return _rows_times(x, weight.transpose(1, 2), received)


@op(fake=_fake_input)
def moe_linear_input(grad: Tensor, weight: Tensor, received: Tensor) -> Tensor:
    """Return the gradient of the rows: ``grad[m, O]``, ``weight[E/R, O, I]`` -> ``[m, I]``."""
    _check("moe_linear_input", grad, received, weight, 1)
    return _rows_times(grad, weight, received)


@op(fake=_fake_weight)
def moe_linear_weight(grad: Tensor, x: Tensor, received: Tensor) -> Tensor:
    """Return the gradient of the weight: ``grad[m, O]``, ``x[m, I]`` -> ``[E/R, O, I]``.

    It is zero for an expert without rows.
    """
    grad, x = grad.contiguous(), x.contiguous()
    if _is_one_kernel(grad.t(), x):
        return torch._grouped_mm(grad.t(), x, offs=_ends(received))
    result = x.new_empty(received.shape[1], grad.shape[1], x.shape[1])
    parts = zip(_groups(grad, received), _groups(x, received), result, strict=True)
    for rows, inputs, product in parts:
        torch.mm(rows.t(), inputs, out=product)
    return result


def _rows_times(rows: Tensor, matrices: Tensor, received: Tensor) -> Tensor:
    """Multiply the rows of group e from the right by ``matrices[e]``."""
    rows = rows.contiguous()
    if _is_one_kernel(rows, matrices):
        return torch._grouped_mm(rows, matrices, offs=_ends(received))
    result = rows.new_empty(rows.shape[0], matrices.shape[2])
    parts = zip(_groups(rows, received), matrices, _groups(result, received), strict=True)
    for group, matrix, product in parts:
        torch.mm(group, matrix, out=product)
    return result


def _is_one_kernel(first: Tensor, second: Tensor) -> bool:
    """Return whether torch has one kernel for all groups, without a look at their sizes."""
    if not first.is_cuda or first.dtype != torch.bfloat16 or second.dtype != torch.bfloat16:
        return False
    if torch.cuda.get_device_capability(first.device) < (8, 0):
        return False
    return first.numel() > 0 and _is_aligned(first) and _is_aligned(second)


def _is_aligned(value: Tensor) -> bool:
    """Return whether a matrix, or each of several, can be loaded 16 bytes at a time."""
    *outer, rows, columns = value.stride()
    steps = [*outer, max(rows, columns)]
    fits = all(step * value.element_size() % _ALIGNMENT == 0 for step in steps)
    return min(rows, columns) == 1 and fits and value.data_ptr() % _ALIGNMENT == 0


def _ends(received: Tensor) -> Tensor:
    """Return where each group ends, [E/R]."""
    return received.sum(0).cumsum(0, dtype=torch.int32)


def _groups(rows: Tensor, received: Tensor) -> Iterator[Tensor]:
    """Yield the rows of each expert; the sizes are read on the host."""
    sizes: list[Any] = received.sum(0).tolist()
    if sum(sizes) != rows.shape[0]:
        raise ValueError(f"expected counts of {rows.shape[0]} rows, got counts of {sum(sizes)}")
    yield from torch.split(rows, sizes)


def _save(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
    x, weight, received = ctx.saved_tensors
    needs_x, needs_weight, _ = ctx.needs_input_grad
    dx = moe_linear_input(grad, weight, received) if needs_x else None
    dw = moe_linear_weight(grad, x, received) if needs_weight else None
    return dx, dw, None


differentiate(moe_linear, save=_save, backward=_backward)


@register_flop_formula(torch.ops.piper.moe_linear)
def _linear_flops(x: Sequence[int], weight: Sequence[int], *_: Any, **__: Any) -> int:
    """Each row is multiplied by one matrix, whichever that is."""
    return 2 * x[0] * weight[1] * weight[2]


@register_flop_formula(torch.ops.piper.moe_linear_input)
def _input_flops(grad: Sequence[int], weight: Sequence[int], *_: Any, **__: Any) -> int:
    return 2 * grad[0] * weight[1] * weight[2]


@register_flop_formula(torch.ops.piper.moe_linear_weight)
def _weight_flops(grad: Sequence[int], x: Sequence[int], *_: Any, **__: Any) -> int:
    return 2 * grad[0] * grad[1] * x[1]
