"""What each rank gets of a batch: its data-parallel shard, and its part of the sequence."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from piper_runtime.inputs import batch as batches
from piper_runtime.manifest import Manifest

__all__ = ["feed_all", "feed_one"]

Shard = dict[str, Tensor]


def feed_all(batch: Any, manifest: Manifest) -> list[Shard]:
    """Cut the batch of all ranks: an entry per position along the data axes.

    Raises ValueError or TypeError for a batch that does not fit the inputs; see ``batch.shards``.
    """
    mesh, axes = manifest.mesh, manifest.batch_axes
    shards = _shards(batch, manifest, mesh.size(axes))
    if manifest.sequence is None:
        return shards
    found: dict[int, Shard] = {}
    for rank in range(mesh.world_size):
        position = mesh.index(rank, manifest.data_axes)
        if position not in found:
            found[position] = _part(shards[mesh.index(rank, axes)], manifest, rank)
    return [found[position] for position in sorted(found)]


def feed_one(batch: Any, manifest: Manifest, rank: int) -> Shard:
    """Check the batch of one rank, its data-parallel shard, and take its part of the sequence.

    Raises as ``feed_all`` does.
    """
    [shard] = _shards(batch, manifest, 1)
    return _part(shard, manifest, rank)


def _shards(batch: Any, manifest: Manifest, count: int) -> list[Shard]:
    sequence, inputs = manifest.sequence, manifest.inputs
    if sequence is not None:
        inputs = tuple(sequence.whole(spec) for spec in inputs)
    return batches.shards(
        batch,
        inputs,
        num_shards=count,
        num_microbatches=manifest.microbatches,
        fixed=manifest.leaves,
    )


def _part(shard: Mapping[str, Tensor], manifest: Manifest, rank: int) -> Shard:
    sequence = manifest.sequence
    if sequence is None:
        return dict(shard)
    index = manifest.mesh.index(rank, (sequence.axis,))
    return {name: sequence.cut(name, value, index) for name, value in shard.items()}
