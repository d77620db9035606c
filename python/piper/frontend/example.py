"""The example batch at the shape of one microbatch of one rank."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from piper_runtime.inputs.batch import leaves
from piper_runtime.names import dtype_name
from torch import Tensor
from torch.utils import _pytree as pytree

from piper.frontend.data import CaptureError, InputSpec

__all__ = ["Example", "slice_example"]


@dataclass(frozen=True, slots=True)
class Example:
    """The tensor inputs of a program, and how to build a batch from tensors in their order.

    Leaves of the batch that are not tensors are kept as they are: they are constants of the
    program.
    """

    inputs: tuple[InputSpec, ...]
    rebuild: Callable[[tuple[Tensor, ...]], Any]


def slice_example(
    batch: Any, *, microbatches: int, data_shards: int, dims: Mapping[str, int | None] | None
) -> Example:
    """Describe ``batch`` (a pytree that holds all data shards and microbatches) at one microbatch's
    shape.

    ``dims`` declares the batch dim of inputs by name, None for a replicated one; the others have
    dim 0 if that has the size common to all. Raises CaptureError naming the input for an unknown
    name, sizes that differ and sizes that ``data_shards * microbatches`` does not divide.
    """
    named = leaves(batch)
    tensors = {name: leaf for name, leaf in named.items() if isinstance(leaf, Tensor)}
    if not tensors:
        raise CaptureError(f"batch expected at least one tensor, got leaves {sorted(named)}")
    chosen = _batch_dims(tensors, dims or {})
    count = microbatches * data_shards
    inputs = tuple(
        InputSpec(
            name,
            _local_shape(name, leaf, chosen[name], count),
            dtype_name(leaf.dtype),
            chosen[name],
        )
        for name, leaf in tensors.items()
    )
    # The same definition of a leaf as piper_runtime.inputs.batch.leaves.
    values, spec = pytree.tree_flatten(batch, is_leaf=lambda value: value is None)
    is_tensor = tuple(isinstance(value, Tensor) for value in values)
    constants = tuple(None if isinstance(value, Tensor) else value for value in values)

    def rebuild(given: tuple[Tensor, ...]) -> Any:
        feed = iter(given)
        merged = [
            next(feed) if tensor else value
            for tensor, value in zip(is_tensor, constants, strict=True)
        ]
        return pytree.tree_unflatten(merged, spec)

    return Example(inputs, rebuild)


def _batch_dims(
    tensors: Mapping[str, Tensor], dims: Mapping[str, int | None]
) -> dict[str, int | None]:
    """Return the batch dim of every input: declared, or 0 if all sizes agree."""
    for name, dim in dims.items():
        if name not in tensors:
            raise CaptureError(
                f"dims expected names of tensor inputs {sorted(tensors)}, got {name!r}"
            )
        if dim is not None and not 0 <= dim < tensors[name].dim():
            raise CaptureError(
                f"dims of input {name!r} expected a dim below {tensors[name].dim()}, got {dim}"
            )
    chosen = {name: dims.get(name, 0) for name in tensors}
    sizes = {}
    for name, dim in chosen.items():
        if dim is None:
            continue
        if tensors[name].dim() == 0:
            raise CaptureError(
                f"input {name!r} is a scalar without a batch dim: declare dims={{{name!r}: None}}"
            )
        sizes[name] = tensors[name].shape[dim]
    if len(set(sizes.values())) > 1:
        raise CaptureError(
            f"inputs expected one common batch size, got {sizes}: declare dims, with None for an "
            "input without batch dim"
        )
    return chosen


def _local_shape(name: str, leaf: Tensor, dim: int | None, count: int) -> tuple[int, ...]:
    if dim is None:
        return tuple(leaf.shape)
    size = leaf.shape[dim]
    if size % count or size == 0:
        raise CaptureError(
            f"data_shards * microbatches must divide the batch size, got {count} and {size} "
            f"(input {name!r}, dim {dim})"
        )
    return (*leaf.shape[:dim], size // count, *leaf.shape[dim + 1 :])
