"""A term of a loss that is one of a microbatch on a rank, and not of the whole batch.

    loss = cross_entropy(logits, labels) + 0.01 * local_loss(balance, name="balance")

Both ops return what they are given. A captured step has neither: they say where the term is.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from piper_runtime.ops.define import differentiate, op

__all__ = ["local_loss"]


def _fake(value: Tensor, name: str) -> Tensor:
    if value.dim() != 0 or not value.is_floating_point():
        raise ValueError(
            f"local loss {name!r} expected a floating scalar, got {value.dtype} of shape "
            f"{list(value.shape)}"
        )
    return torch.empty_like(value)


@op(fake=_fake)
def local_term(value: Tensor, name: str) -> Tensor:
    """Return ``value``, declared as a local loss."""
    return _fake(value, name).copy_(value)


@op(fake=_fake)
def local_term_backward(grad: Tensor, name: str) -> Tensor:
    """Return the gradient of ``value``, which is that of the result."""
    return grad.clone()


def _save(ctx: Any, inputs: tuple[Tensor, str], output: Tensor) -> None:
    ctx.name = inputs[1]


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
    return local_term_backward(grad, ctx.name), None


differentiate(local_term, save=_save, backward=_backward)


def local_loss(value: Tensor, *, name: str = "local") -> Tensor:
    """Declare a term of the loss to be local: that of each microbatch on each data-parallel rank.

    What couples examples, such as how evenly a batch uses experts, is another number in every
    microbatch, so Piper refuses it. Declared by this function it means: the mean, over microbatches
    and data-parallel ranks, of the value that each computes of the examples that it has. Plain
    PyTorch, which has one batch, goes on with ``value`` itself.

    ``value`` is a scalar. Behind it only numbers may scale it and other terms be added. Terms have
    different names, under which they are reported beside ``loss``.

    Raises ValueError for what is no floating scalar.
    """
    return local_term(value, name)
