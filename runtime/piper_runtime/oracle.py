"""What check mode compares with: a single process that has run the same call."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from torch import Tensor

__all__ = ["Expected", "Oracle", "Shards", "Value"]

Value = Tensor | tuple[Tensor, ...]
Shards = Sequence[Mapping[str, Tensor]]


class Expected(Protocol):
    """What a single process computes in one call; values that it does not have are None.

    A chunk is named as in rank programs (``layer_1_B``), a shard is data-parallel.
    """

    def result(self, chunk: str, index: int, *, microbatch: int, shard: int) -> Value | None:
        """Return one result of a chunk: a tensor, or a pack of gradients in bucket order."""

    def operands(self, chunk: str, *, microbatch: int, shard: int) -> Sequence[Value] | None:
        """Return what a chunk is run on."""

    def contributions(self, bucket: str) -> Iterable[tuple[str, int]]:
        """Return chunk and index of every result that adds to the gradient of a bucket."""

    def bucket(self, name: str, *, updated: bool) -> Tensor | None:
        """Return the flat value of a bucket before or after the update."""

    def gradient(self, bucket: str) -> Tensor | None:
        """Return the flat sum of all gradients of a bucket."""

    def tangent(self, loss: str) -> Tensor | None:
        """Return the number that the backward of a loss starts with."""

    def output(self, name: str) -> Tensor | None:
        """Return an output, a scalar, such as the loss."""


class Oracle(Protocol):
    """Runs a call in a single process.

    ``bound`` is how far a value may be off, as a fraction of its largest element; by default that
    of its dtype in ``gaps.BOUNDS``, which integers must meet exactly.
    """

    bound: float | None

    def expect(self, entry_point: str, *, states: Mapping[str, Tensor], shards: Shards) -> Expected:
        """Run an entry point from ``states``, by name, on the batch of all data-parallel shards."""
