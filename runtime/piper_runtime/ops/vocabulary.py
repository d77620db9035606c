"""Ops on a part of a vocabulary: rows are looked up in a part of a table, and losses are those of
labels in a part of the classes.

Each takes the arguments of the op that it stands for, of which some are parts of a dim, and behind
them which part it has:

    index    its number, ``[1]`` of int64, which the device reads
    parts    how many there are, of equally many elements
    size     how many elements there are in all; the last parts may hold padding behind these

What operands hold as padding does not matter; results have zeros there.
"""

from __future__ import annotations

import torch
from torch import Tensor

from piper_runtime.ops.define import op

__all__ = [
    "embedding_backward_part",
    "embedding_part",
    "nll_loss_backward_part",
    "nll_loss_part",
]

aten = torch.ops.aten

_NONE, _SUM = 0, 2  # `reduction` of a loss: a loss of each label, and their sum


def _places(numbers: Tensor, index: Tensor, rows: int, size: int) -> tuple[Tensor, Tensor]:
    """Return which numbers of all are in the part, and where; those of other parts are at 0.

    What is no number at all is at ``rows``, which is refused by whoever looks it up.
    """
    local = numbers - index * rows
    known = (numbers >= 0) & (numbers < size)
    own = known & (local >= 0) & (local < rows)
    return own, torch.where(own, local, torch.where(known, 0, rows))


# Rows of a table.


def _fake_embedding(weight: Tensor, indices: Tensor, *others: object, **part: object) -> Tensor:
    return weight.new_empty(*indices.shape, weight.shape[1])


@op(fake=_fake_embedding)
def embedding_part(
    weight: Tensor,
    indices: Tensor,
    padding_idx: int = -1,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
    *,
    index: Tensor,
    parts: int,
    size: int,
) -> Tensor:
    """Return the rows of a table whose first dim is a part, and zeros for those of other parts."""
    own, rows = _places(indices, index, weight.shape[0], size)
    found: Tensor = aten.embedding.default(weight, rows)
    return found.masked_fill(~own.unsqueeze(-1), 0)


def _fake_embedding_backward(
    grad_output: Tensor, indices: Tensor, num_weights: int, *others: object, **part: object
) -> Tensor:
    return grad_output.new_empty(num_weights, grad_output.shape[-1])


@op(fake=_fake_embedding_backward)
def embedding_backward_part(
    grad_output: Tensor,
    indices: Tensor,
    num_weights: int,
    padding_idx: int,
    scale_grad_by_freq: bool,
    *,
    index: Tensor,
    parts: int,
    size: int,
) -> Tensor:
    """Return the gradient of the part's ``num_weights`` rows."""
    own, rows = _places(indices, index, num_weights, size)
    # One row more, which torch leaves out, is that of all numbers that count for nothing here.
    rows = torch.where(own & (indices != padding_idx), rows, num_weights)
    grad: Tensor = aten.embedding_dense_backward.default(
        grad_output, rows, num_weights + 1, num_weights, scale_grad_by_freq
    )
    return grad[:num_weights]


# The loss of labels, of which the logarithms of probabilities are parts of the classes.


def _own_labels(
    classes: Tensor, target: Tensor, ignore_index: int, index: Tensor, size: int
) -> tuple[Tensor, Tensor]:
    """Return which labels count and are in the part, and where, as an index of classes' dim 1."""
    counted = torch.where(target == ignore_index, 0, target)
    own, places = _places(counted, index, classes.shape[1], size)
    return (own & (target != ignore_index)).unsqueeze(1), places.unsqueeze(1)


def _fake_loss(
    x: Tensor, target: Tensor, weight: object, reduction: int, *others: object, **part: object
) -> tuple[Tensor, Tensor]:
    return x.new_empty(() if reduction else target.shape), x.new_empty(())


@op(fake=_fake_loss)
def nll_loss_part(
    x: Tensor,
    target: Tensor,
    weight: Tensor | None,
    reduction: int,
    ignore_index: int,
    *,
    index: Tensor,
    parts: int,
    size: int,
) -> tuple[Tensor, Tensor]:
    """Return the sum of the losses of labels that are in the part, and how many labels count.

    Without a reduction: the losses, 0 for other labels, and 0, as torch does. Classes are dim 1 of
    ``x``. There is no weight.
    """
    assert weight is None
    assert reduction in (_NONE, _SUM)
    own, places = _own_labels(x, target, ignore_index, index, size)
    losses = -x.gather(1, places).masked_fill(~own, 0)
    if not reduction:
        return losses.squeeze(1), x.new_zeros(())
    return losses.sum(), (target != ignore_index).sum().to(x.dtype)


def _fake_loss_backward(grad_output: Tensor, x: Tensor, *others: object, **part: object) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


@op(fake=_fake_loss_backward)
def nll_loss_backward_part(
    grad_output: Tensor,
    x: Tensor,
    target: Tensor,
    weight: Tensor | None,
    reduction: int,
    ignore_index: int,
    total_weight: Tensor,
    *,
    index: Tensor,
    parts: int,
    size: int,
) -> Tensor:
    """Return the part of the gradient: of one class for each label that is in it."""
    assert weight is None
    assert reduction in (_NONE, _SUM)
    own, places = _own_labels(x, target, ignore_index, index, size)
    grad = torch.zeros_like(x, memory_format=torch.contiguous_format)
    of_label = grad_output if reduction else grad_output.unsqueeze(1)
    return grad.scatter_(1, places, torch.where(own, -of_label, 0).to(x.dtype))
