"""Who writes what: each piece once, by one of the ranks that hold it, evenly."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from piper_runtime.manifest import BucketSpec, Manifest
from piper_runtime.names import dtype_of
from piper_runtime.states.sharding import Local, Shard

__all__ = ["Writers", "choose_writers"]

Writers = dict[tuple[str, int, int, int], int]
"""The rank, by bucket, index of the local part, index of the part of that, index of the member."""


def choose_writers(manifest: Manifest) -> Writers:
    """Give each piece to the holder that has the fewest bytes so far, the lowest rank of these.

    Every process computes the same without asking another. Replicas along data axes and the
    coordinates of a state that is held twice share the work.
    """
    loads = [0] * manifest.mesh.world_size
    chosen: Writers = {}
    mesh = manifest.mesh
    for spec in manifest.buckets:
        states = [manifest.state(name) for name in spec.members]
        for (local, index), ranks in _holders(manifest, spec).items():
            cut = Local(local, mesh.size(spec.varying_axes), spec.varying_dim)
            shapes = [cut.shape(state.shape) for state in states]
            for piece in Shard(spec.numel, index, spec.shards(mesh)).pieces(shapes):
                rank = min(ranks, key=lambda rank: loads[rank])
                loads[rank] += piece.length * dtype_of(spec.dtype).itemsize
                chosen[spec.name, local, index, piece.index] = rank
    return chosen


def _holders(manifest: Manifest, spec: BucketSpec) -> Mapping[tuple[int, int], Sequence[int]]:
    """Return, by index of the local part and of the part of that, the ranks that hold it."""
    mesh = manifest.mesh
    held: dict[tuple[int, int], list[int]] = {}
    for rank in range(mesh.world_size):
        if mesh.coordinate(rank) in spec.holders:
            place = spec.local(mesh, rank).index, spec.shard(mesh, rank).index
            held.setdefault(place, []).append(rank)
    return dict(sorted(held.items()))
