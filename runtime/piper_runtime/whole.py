"""Whole tensors of buckets of which ranks hold parts: what users read between two steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from piper_runtime.home import Home
from piper_runtime.manifest import BucketSpec, Manifest
from piper_runtime.names import dtype_of
from piper_runtime.state import Bucket
from piper_runtime.transports.base import Transport

__all__ = ["gather_buckets"]


def gather_buckets(
    specs: Sequence[BucketSpec],
    slot: str,
    *,
    manifest: Manifest,
    homes: Mapping[int, Home],
    transport: Transport,
) -> dict[str, Tensor]:
    """Return the members of buckets by their every name, whole, on the CPU and on every rank.

    ``slot`` is value, or grad for the reduced gradient. A part comes from the first rank that holds
    it, at the first of the bucket's coordinates; all processes call this alike.
    """
    found: dict[str, Tensor] = {}
    for spec in specs:
        members = [manifest.state(name) for name in spec.members]
        flat = _gather(spec, slot, manifest=manifest, homes=homes, transport=transport)
        views = Bucket(spec, members, flat).views(flat).values()
        for member, view in zip(members, views, strict=True):
            found.update(dict.fromkeys(member.names, view))
    return found


def _gather(
    spec: BucketSpec,
    slot: str,
    *,
    manifest: Manifest,
    homes: Mapping[int, Home],
    transport: Transport,
) -> Tensor:
    """Return the flat tensor of a bucket with its padding."""
    mesh = manifest.mesh
    dtype = dtype_of(spec.slot_dtype(slot) or spec.dtype)
    parts = []
    for index in range(spec.shards(mesh)):
        owner = mesh.owner(spec.holders[0], spec.shard_axes, index)
        part = torch.empty(spec.slot_numel("value", mesh), dtype=dtype)
        if owner in homes:
            bucket = homes[owner].bucket(spec.name)
            part.copy_(bucket.value if slot == "value" else bucket.own_grad)
        parts.append(transport.broadcast(part, owner=owner))
    return parts[0] if len(parts) == 1 else torch.cat(parts)
