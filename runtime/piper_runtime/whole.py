"""Whole tensors of buckets of which ranks hold parts: what users read between two steps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from piper_runtime.home import Home
from piper_runtime.manifest import BucketSpec, Manifest, StateSpec
from piper_runtime.names import dtype_of
from piper_runtime.program import Program
from piper_runtime.state import Bucket, Weights
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
        flat = _gather(spec, slot, manifest=manifest, homes=homes, transport=transport)
        views = [*Bucket(spec, members, flat).views(flat).values()]
        del flat
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


def _gather(
    spec: BucketSpec,
    slot: str,
    *,
    manifest: Manifest,
    homes: Mapping[int, Home],
    transport: Transport,
) -> Tensor:
    """Return the flat tensor of a bucket with its padding, put together part by part."""
    mesh = manifest.mesh
    dtype = dtype_of(spec.slot_dtype(slot) or spec.dtype)
    part = torch.empty(spec.slot_numel("value", mesh), dtype=dtype)
    whole = part.new_empty(len(part) * spec.shards(mesh))
    for index, place in enumerate(whole.tensor_split(spec.shards(mesh))):
        owner = mesh.owner(spec.holders[0], spec.shard_axes, index)
        if owner in homes:
            bucket = homes[owner].bucket(spec.name)
            part.copy_(bucket.value if slot == "value" else bucket.own_grad)
        place.copy_(transport.broadcast(part, owner=owner))
    return whole
