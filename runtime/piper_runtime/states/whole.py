"""Whole tensors of buckets of which ranks hold parts: what users read between two steps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from piper_runtime.home import Home
from piper_runtime.manifest import BucketSpec, Manifest, StateSpec
from piper_runtime.movement import Packing
from piper_runtime.names import dtype_of
from piper_runtime.program import Program
from piper_runtime.states.sharding import Local
from piper_runtime.states.state import Bucket, Weights
from piper_runtime.transports.base import Transport

__all__ = ["gather_buckets", "loose_states"]


def gather_buckets(
    specs: Sequence[BucketSpec],
    slot: str,
    *,
    manifest: Manifest,
    homes: Mapping[int, Home],
    transport: Transport,
) -> Iterator[tuple[StateSpec, Tensor]]:
    """Yield the members of buckets, whole, on the CPU and on every rank, one bucket at a time.

    ``slot`` is value, or grad for the reduced gradient. A part comes from the first rank that holds
    it, at the first of the bucket's coordinates; all processes call this alike.
    """
    for spec in specs:
        members = [manifest.state(name) for name in spec.members]
        views = _whole_members(
            spec, members, slot, manifest=manifest, homes=homes, transport=transport
        )
        while members:  # whoever takes the last one holds all that is left of the bucket
            yield members.pop(0), views.pop(0)


def loose_states(program: Program, weights: Weights) -> dict[str, Tensor]:
    """Return states that no bucket holds, by every name: the step does not use them."""
    manifest = program.manifest
    held = {name for bucket in manifest.buckets for name in bucket.members}
    loose = [state for state in manifest.states if state.name not in held]
    return {
        name: value
        for state in loose
        for value in [weights.value(state).cpu().clone(memory_format=torch.contiguous_format)]
        for name in state.names
    }


def _whole_members(
    spec: BucketSpec, members: Sequence[StateSpec], slot: str, **where: Any
) -> list[Tensor]:
    """Return the whole members of a bucket, as views of one flat tensor."""
    count = where["manifest"].mesh.size(spec.varying_axes)
    if count == 1:
        return _local_members(spec, members, slot, Local(), **where)
    whole: list[Tensor] = []
    for local in (Local(index, count, spec.varying_dim) for index in range(count)):
        parts = _local_members(spec, members, slot, local, **where)
        if not whole:
            flat = parts[0].new_empty(sum(member.numel for member in members))
            whole = [*Packing(flat, [member.shape for member in members]).parts]
        for view, part in zip(whole, parts, strict=True):
            local.put(part, view)
    return whole


def _local_members(
    spec: BucketSpec, members: Sequence[StateSpec], slot: str, local: Local, **where: Any
) -> list[Tensor]:
    """Return the local parts of members that some ranks have, all together."""
    flat = _gather(spec, slot, local, **where)
    return [*Bucket(spec, members, flat, local=local).views(flat).values()]


def _gather(
    spec: BucketSpec,
    slot: str,
    local: Local,
    *,
    manifest: Manifest,
    homes: Mapping[int, Home],
    transport: Transport,
) -> Tensor:
    """Return the flat tensor of local members, with its padding, put together part by part."""
    mesh = manifest.mesh
    dtype = dtype_of(spec.slot_dtype(slot) or spec.dtype)
    part = torch.empty(spec.slot_numel("value", mesh), dtype=dtype)
    whole = part.new_empty(len(part) * spec.shards(mesh))
    for index, place in enumerate(whole.tensor_split(spec.shards(mesh))):
        where = (spec.varying_axes, local.index), (spec.shard_axes, index)
        owner = mesh.owner(spec.holders[0], *where)
        if owner in homes:
            bucket = homes[owner].bucket(spec.name)
            part.copy_(bucket.value if slot == "value" else bucket.own_grad)
        place.copy_(transport.broadcast(part, owner=owner))
    return whole
