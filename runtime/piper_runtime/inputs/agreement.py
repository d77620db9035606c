"""What processes must agree on before they train together: first values and batches."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

from torch import Tensor

from piper_runtime.manifest import Manifest
from piper_runtime.tensorfile import tensor_bytes
from piper_runtime.transports.base import Transport

__all__ = ["check_batch", "check_replicas", "digest_of"]


def check_replicas(transport: Transport, digests: Mapping[str, str]) -> None:
    """Raise ValueError if ranks that hold one bucket, or parts of it, start from different whole
    values, of which ``digests`` has those of this process.
    """
    first: dict[str, tuple[int, str]] = {}
    for rank, theirs in enumerate(transport.gather(digests)):
        for name, digest in theirs.items():
            owner, expected = first.setdefault(name, (rank, digest))
            if digest != expected:
                raise ValueError(
                    f"bucket {name!r} expected one first value on all ranks, got different "
                    f"ones on ranks {owner} and {rank}: build the model from one seed"
                )


def check_batch(transport: Transport, manifest: Manifest, shard: Mapping[str, Tensor]) -> None:
    """Raise ValueError if ranks of one data-parallel shard feed different batches."""
    first: dict[int, tuple[int, str]] = {}
    digests = transport.gather(digest_of(list(shard.values())))
    for rank, digest in enumerate(digests):
        index = manifest.mesh.index(rank, manifest.data_axes)
        owner, expected = first.setdefault(index, (rank, digest))
        if digest != expected:
            raise ValueError(
                f"batch expected to be the same on ranks {owner} and {rank}, "
                f"both of data-parallel shard {index}, got different ones"
            )


def digest_of(tensors: Sequence[Tensor]) -> str:
    """Return the sha256 of the elements of tensors."""
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(tensor_bytes(tensor))
    return digest.hexdigest()
