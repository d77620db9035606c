"""A copy of the user's model whose parameters and buffers are fake: shapes on `cpu`, no data, no
device memory.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator

import torch
from piper_runtime.names import dtype_of
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from piper.frontend.data import CaptureError, InputSpec

__all__ = ["fake_inputs", "fake_model"]


def _fake(mode: FakeTensorMode, like: Tensor) -> Tensor:
    """Return a fake CPU tensor; fake tensors on meta would silently lose the backward of
    cross-entropy.
    """
    with mode:
        return torch.empty_strided(like.shape, like.stride(), dtype=like.dtype, device="cpu")


def fake_inputs(mode: FakeTensorMode, inputs: Iterable[InputSpec]) -> tuple[Tensor, ...]:
    """Return one contiguous fake tensor per input."""
    with mode:
        return tuple(
            torch.empty(spec.shape, dtype=dtype_of(spec.dtype), device="cpu") for spec in inputs
        )


def fake_model(mode: FakeTensorMode, model: nn.Module) -> nn.Module:
    """Return a copy of ``model`` with fake parameters and buffers; tied ones stay tied, ``model``
    is not touched.

    Other tensors the modules hold keep their values: they become constants of the program.
    """
    memo: dict[int, object] = {}
    for tensor in _owned(model):
        fake = _fake(mode, tensor)
        if isinstance(tensor, nn.Parameter):
            fake = nn.Parameter(fake, requires_grad=tensor.requires_grad)
        memo[id(tensor)] = fake
    try:
        twin = copy.deepcopy(model, memo)
    except Exception as error:
        raise CaptureError(f"model {type(model).__name__} cannot be copied: {error}") from error
    return twin


def _owned(model: nn.Module) -> Iterator[Tensor]:
    yield from model.parameters()
    yield from model.buffers()
