"""Batches: leaf names, data-parallel shards, microbatches and the signature check of every step."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from piper_runtime.inputs.fixed import FixedLeaf, check_fixed
from piper_runtime.names import dtype_name

__all__ = [
    "InputSpec",
    "SequenceSpec",
    "check_input",
    "leaves",
    "microbatches",
    "part_of_sequence",
    "shards",
]


@dataclass(frozen=True, slots=True)
class InputSpec:
    """One tensor input of a program.

    ``shape`` is that of ONE microbatch of ONE rank, ``dtype`` a torch name without ``torch.``,
    and ``dim`` the batch dim, or None if every rank and microbatch gets the whole tensor.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    dim: int | None


@dataclass(frozen=True, slots=True)
class SequenceSpec:
    """How ranks along ``axis`` share out the sequence, dim ``dims[name]`` of inputs, in ``parts``.

    The sequence is cut into twice as many pieces, and rank i has pieces i and ``2 * parts - 1 - i``:
    of causal attention all ranks then compute equally much.
    """

    axis: str
    dims: Mapping[str, int]
    parts: int

    def cut(self, name: str, whole: Tensor, index: int) -> Tensor:
        """Return what rank ``index`` along the axis has of an input, which may be all of it."""
        if name not in self.dims:
            return whole
        return part_of_sequence(whole, self.dims[name], index, self.parts, name=name)

    def whole(self, spec: InputSpec) -> InputSpec:
        """Return the spec of an input with the whole sequence."""
        if spec.name not in self.dims:
            return spec
        shape = list(spec.shape)
        shape[self.dims[spec.name]] *= self.parts
        return replace(spec, shape=tuple(shape))


def part_of_sequence(whole: Tensor, dim: int, index: int, parts: int, *, name: str) -> Tensor:
    """Return pieces ``index`` and ``2 * parts - 1 - index`` of twice ``parts`` pieces of a dim.

    Raises ValueError for a size that is no multiple of twice ``parts``.
    """
    size = whole.shape[dim]
    if size % (2 * parts) or size == 0:
        raise ValueError(
            f"input {name!r} expected a sequence, dim {dim}, of a multiple of {2 * parts} "
            f"positions, as {parts} ranks have two pieces each, got {size}: pad it, with labels "
            "that the loss ignores"
        )
    pieces = whole.chunk(2 * parts, dim)
    return torch.cat([pieces[index], pieces[2 * parts - 1 - index]], dim)


def leaves(batch: Any) -> dict[str, Any]:
    """Return the leaves of ``batch`` by name, in pytree order.

    A name is the path to the leaf with dots between the steps: dict key ``ids``, sequence index
    ``0``, nested ``a.b``; a batch that is itself a leaf is called ``batch``. Leaves are tensors or
    anything else (None, numbers, strings). Raises ValueError if two leaves get the same name (a
    key that contains a dot, or keys ``0`` and ``"0"``).
    """
    paths, _ = pytree.tree_flatten_with_path(batch, is_leaf=lambda value: value is None)
    named: dict[str, Any] = {}
    for path, leaf in paths:
        name = ".".join(_step_name(step) for step in path) or "batch"
        if name in named:
            raise ValueError(
                f"expected leaves of the batch to have distinct names, got two {name!r}"
            )
        named[name] = leaf
    return named


def _step_name(step: Any) -> str:
    """Return one step of a pytree path (mapping key, sequence index or attribute) as text."""
    match step:
        case pytree.MappingKey():
            return str(step.key)
        case pytree.SequenceKey():
            return str(step.idx)
        case pytree.GetAttrKey():
            return str(step.name)
    return str(step)


def shards(
    batch: Any,
    inputs: Iterable[InputSpec],
    *,
    num_shards: int,
    num_microbatches: int,
    fixed: Mapping[str, FixedLeaf] | None = None,
) -> list[dict[str, Tensor]]:
    """Check ``batch`` against the signature and cut it into data-parallel shards.

    The batch holds ``num_shards * num_microbatches`` microbatches along each input's batch dim,
    shard by shard; a replicated input holds exactly one. Returns, per shard, views of the tensors
    by input name. Raises ValueError or TypeError naming the input, what was expected and what came.
    A leaf that is not an input of the program must be one of ``fixed``, and have its value. If it
    is not known (None) which those are, leaves that are no tensors are ignored.
    """
    named = leaves(batch)
    specs = list(inputs)
    if fixed is not None:
        check_fixed(named, fixed)
    _check_names(named, specs, fixed)
    parts: list[dict[str, Tensor]] = [{} for _ in range(num_shards)]
    for spec in specs:
        tensor = check_input(named[spec.name], spec, count=num_shards * num_microbatches)
        for part, piece in zip(parts, _cut(tensor, spec, num_shards), strict=True):
            part[spec.name] = piece
    return parts


def microbatches(
    shard: Mapping[str, Tensor], inputs: Iterable[InputSpec], *, num_microbatches: int
) -> list[dict[str, Tensor]]:
    """Cut one shard (tensors by input name) into microbatches of ``InputSpec.shape``.

    They are contiguous, as kernels take them: views, unless the batch or its batch dim forbids it.
    """
    parts: list[dict[str, Tensor]] = [{} for _ in range(num_microbatches)]
    for spec in inputs:
        for part, piece in zip(parts, _cut(shard[spec.name], spec, num_microbatches), strict=True):
            part[spec.name] = piece.contiguous()
    return parts


def check_input(value: Any, spec: InputSpec, *, count: int) -> Tensor:
    """Return ``value`` if it is ``count`` microbatches of ``spec``, else raise an error.

    Raises TypeError if it is no tensor, ValueError for another dtype or shape.
    """
    if not isinstance(value, Tensor):
        raise TypeError(f"input {spec.name!r} expected a tensor, got {type(value).__name__}")
    if dtype_name(value.dtype) != spec.dtype:
        got = dtype_name(value.dtype)
        raise ValueError(f"input {spec.name!r} expected dtype {spec.dtype}, got {got}")
    expected, got_shape = _whole_shape(spec, count), tuple(value.shape)
    if got_shape != expected:
        why = _explain(spec, count)
        raise ValueError(f"input {spec.name!r} expected shape {expected} ({why}), got {got_shape}")
    return value


def _whole_shape(spec: InputSpec, count: int) -> tuple[int, ...]:
    if spec.dim is None:
        return spec.shape
    head, size, tail = spec.shape[: spec.dim], spec.shape[spec.dim], spec.shape[spec.dim + 1 :]
    return (*head, size * count, *tail)


def _explain(spec: InputSpec, count: int) -> str:
    if spec.dim is None:
        return "replicated"
    return f"{count} microbatches of {spec.shape[spec.dim]} along dim {spec.dim}"


def _cut(tensor: Tensor, spec: InputSpec, count: int) -> Sequence[Tensor]:
    if spec.dim is None or count == 1:
        return [tensor] * count
    return torch.tensor_split(tensor, count, dim=spec.dim)


def _check_names(
    named: Mapping[str, Any], specs: Sequence[InputSpec], fixed: Mapping[str, FixedLeaf] | None
) -> None:
    known = {spec.name for spec in specs} | (fixed or {}).keys()
    missing = [spec.name for spec in specs if spec.name not in named]
    if missing:
        raise ValueError(f"batch expected input {missing[0]!r}, got {sorted(named)}")
    extra = [name for name in named if name not in known]
    tensors = [name for name in extra if isinstance(named[name], Tensor)]
    if tensors:
        raise ValueError(f"batch expected only inputs {sorted(known)}, got tensor {tensors[0]!r}")
    if extra and fixed is not None:
        raise ValueError(
            f"batch expected only leaves {sorted(known)}, which the program was compiled with, got "
            f"also {extra[0]!r}: leave it out, or compile with it"
        )
