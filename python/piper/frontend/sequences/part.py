"""The example batch with the part of sequences that a rank gets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from piper_runtime.inputs.batch import SequenceSpec, leaves
from torch import Tensor
from torch.utils import _pytree as pytree

from piper.frontend.data import CaptureError

__all__ = ["part_of_batch"]


def part_of_batch(batch: Any, sequence: SequenceSpec, dims: Mapping[str, int | None]) -> Any:
    """Return the batch with the part of sequences that the first rank gets: those of all are alike.

    ``dims`` declares the batch dim of inputs by name, those of others are 0. Raises CaptureError
    for an input that the batch does not have, a dim that the input does not have or that is its
    batch dim, and a length that ranks cannot share out.
    """
    named = leaves(batch)
    for name, dim in sequence.dims.items():
        _check(named, name, dim, dims.get(name, 0))
    try:
        parts = [
            sequence.cut(name, value, 0) if isinstance(value, Tensor) else value
            for name, value in named.items()
        ]
    except ValueError as error:
        raise CaptureError(str(error)) from None
    _, spec = pytree.tree_flatten(batch, is_leaf=lambda value: value is None)
    return pytree.tree_unflatten(parts, spec)


def _check(named: Mapping[str, Any], name: str, dim: int, batch_dim: int | None) -> None:
    tensors = sorted(key for key, value in named.items() if isinstance(value, Tensor))
    if name not in tensors:
        raise CaptureError(f"sequence expected names of tensor inputs {tensors}, got {name!r}")
    rank = named[name].dim()
    if dim >= rank:
        raise CaptureError(f"sequence dim of input {name!r} expected a dim below {rank}, got {dim}")
    if dim == batch_dim:
        raise CaptureError(
            f"sequence dim of input {name!r} expected another dim than that of the batch, got {dim}"
        )
