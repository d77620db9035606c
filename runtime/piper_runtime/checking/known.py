"""What check mode knows of a value: what it must be, of what it is the sum, and a part."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from piper_runtime import compute
from piper_runtime.checking.gaps import BOUNDS
from piper_runtime.checking.oracle import Value
from piper_runtime.manifest import BucketSpec
from piper_runtime.names import dtype_of
from piper_runtime.states.sharding import Shard, pad

__all__ = ["Known", "Term", "add_squares", "flat_value", "known_part", "narrowest"]

Term = tuple[str, int, int]
"""A result of a chunk, or of an exchange: its function, the index of the result, the microbatch."""


@dataclass(frozen=True, slots=True)
class Known:
    """What a handle must hold; ``value`` is None where nothing is known.

    It is the sum of ``terms`` over the ranks that differ from its own along ``axes`` alone, at its
    own coordinate and at ``coordinates``. Where the rank holds a part, one of those over the axes
    ``cut``, ``whole`` is what all have together. ``bucket`` is the one whose gradient it is, and
    ``squares`` says that it adds up squares of gradients: of those buckets. ``narrow`` is the
    narrowest dtype that it went through, if that is not its own.
    """

    value: Value | None
    terms: tuple[Term, ...] = ()
    axes: frozenset[str] = field(default_factory=frozenset)
    coordinates: frozenset[int] = field(default_factory=frozenset)
    whole: Tensor | None = None
    cut: tuple[str, ...] = ()
    bucket: str = ""
    squares: tuple[str, ...] | None = None
    narrow: torch.dtype | None = None

    def convert(self, dtype: torch.dtype) -> Known:
        """Return the same in another dtype."""
        value = self.value.to(dtype) if isinstance(self.value, Tensor) else None
        before = None if value is None or not isinstance(self.value, Tensor) else self.value.dtype
        return replace(
            self,
            value=value,
            whole=None if self.whole is None else self.whole.to(dtype),
            narrow=narrowest(self.narrow, before),
        )


def narrowest(*dtypes: torch.dtype | None) -> torch.dtype | None:
    """Return the dtype of numbers that may be furthest apart; None if there is none."""
    given = [dtype for dtype in dtypes if dtype in BOUNDS]
    return max(given, key=BOUNDS.__getitem__, default=None)


def known_part(spec: BucketSpec, slot: str, shard: Shard, flat: Tensor | None) -> Known:
    """Return what a rank holds of a slot of a bucket with the elements ``flat``, not padded."""
    if flat is None:
        return Known(None)
    whole = pad(flat, shard.padded).to(dtype_of(spec.slot_dtype(slot) or spec.dtype))
    narrow = None if spec.grad_dtype is None else narrowest(dtype_of(spec.grad_dtype))
    if slot == "value" or spec.compute_sharded:
        cut = spec.shard_axes
        return Known(shard.of(whole), whole=whole if cut else None, cut=cut, narrow=narrow)
    return Known(whole, narrow=narrow)


def flat_value(value: Value, dtype: torch.dtype, numel: int) -> Tensor:
    """Return a pack, or a flat tensor, in a dtype and with zeros to ``numel``; a copy."""
    if isinstance(value, tuple):
        value = torch.cat([part.reshape(-1) for part in value])
    value = value.to(dtype, copy=True)
    return pad(value, numel) if value.dim() == 1 and value.numel() < numel else value


def add_squares(known: Sequence[Known], like: Any) -> Known:
    """Return the sum of the squares of gradients, or parts of them, that are known."""
    values = [one.value for one in known if isinstance(one.value, Tensor)]
    wholes = [one.whole for one in known if one.whole is not None]
    buckets = tuple(one.bucket for one in known)
    cuts = {one.cut for one in known}
    if len(values) < len(known) or len(cuts) > 1:
        return Known(None, squares=buckets)
    [cut] = cuts or [()]
    total, whole = compute.sumsq(like.dtype, like.device, *values), None
    if cut and len(wholes) == len(known):
        whole = compute.sumsq(like.dtype, like.device, *wholes)
    narrow = narrowest(*[one.narrow for one in known])
    return Known(total, whole=whole, cut=cut, squares=buckets, narrow=narrow)
