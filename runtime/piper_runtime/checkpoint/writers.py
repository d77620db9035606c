"""Who writes what: each piece once, by one of the ranks that hold it, evenly."""

from __future__ import annotations

from collections.abc import Sequence

from piper_runtime.manifest import BucketSpec, Manifest
from piper_runtime.names import dtype_of
from piper_runtime.sharding import Shard

__all__ = ["Writers", "choose_writers"]

Writers = dict[tuple[str, int, int], int]
"""The rank, by bucket, index of the part and index of the member."""


def choose_writers(manifest: Manifest) -> Writers:
    """Give each piece to the holder that has the fewest bytes so far, the lowest rank of these.

    Every process computes the same without asking another. Replicas along data axes and the
    coordinates of a state that is held twice share the work.
    """
    loads = [0] * manifest.mesh.world_size
    chosen: Writers = {}
    for spec in manifest.buckets:
        shapes = [manifest.state(name).shape for name in spec.members]
        for index, ranks in enumerate(_holders(manifest, spec)):
            for piece in Shard(spec.numel, index, spec.shards(manifest.mesh)).pieces(shapes):
                rank = min(ranks, key=lambda rank: loads[rank])
                loads[rank] += piece.length * dtype_of(spec.dtype).itemsize
                chosen[spec.name, index, piece.index] = rank
    return chosen


def _holders(manifest: Manifest, spec: BucketSpec) -> Sequence[Sequence[int]]:
    """Return, by index of the part, the ranks that hold it."""
    mesh = manifest.mesh
    held: list[list[int]] = [[] for _ in range(spec.shards(mesh))]
    for rank in range(mesh.world_size):
        if mesh.coordinate(rank) in spec.holders:
            held[mesh.index(rank, spec.shard_axes)].append(rank)
    return held
