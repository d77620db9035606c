"""What check mode compares with: a single process that has run the same call."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from torch import Tensor

__all__ = ["Expected", "Oracle", "Shards", "Value", "exchange_name"]

Value = Tensor | tuple[Tensor, ...]
Shards = Sequence[Mapping[str, Tensor]]


def exchange_name(kind: str, chunk: str, index: int) -> str:
    """Return what an exchange is called as if it were a chunk, which has one result.

    ``kind`` is that of its instruction, and what ranks exchange is result ``index`` of a chunk.
    """
    return f"{kind} {chunk}#{index}"


class Expected(Protocol):
    """What a single process computes in one call; values that it does not have are None.

    It computes in turn for each place (see ``places``) what the ranks there have: local parts and
    terms of sums, if ranks share states or sequences out. A chunk is named as in rank programs
    (``layer_1_B``), or is an exchange between places (``exchange_name``).
    """

    def result(self, chunk: str, index: int, *, microbatch: int, place: int) -> Value | None:
        """Return one result of a chunk: a tensor, or a pack of gradients in bucket order."""

    def operands(self, chunk: str, *, microbatch: int, place: int) -> Sequence[Value] | None:
        """Return what a chunk is run on."""

    def contributions(self, bucket: str) -> Iterable[tuple[str, int]]:
        """Return chunk and index of every result that adds to the gradient of a bucket."""

    def bucket(self, name: str, *, updated: bool, place: int) -> Tensor | None:
        """Return the flat value of a bucket before or after the update."""

    def gradient(self, bucket: str, *, place: int) -> Tensor | None:
        """Return the flat sum of all gradients of a bucket, times the loss scale."""

    def tangent(self, loss: str) -> Tensor | None:
        """Return the number that the backward of a loss starts with, times the loss scale."""

    def output(self, name: str) -> Tensor | None:
        """Return an output, a scalar, such as the loss."""


class Oracle(Protocol):
    """Runs a call in a single process.

    ``bound`` is how far a value may be off, as a fraction of its largest element; by default that
    of its dtype in ``gaps.BOUNDS``, which integers must meet exactly.
    """

    bound: float | None

    def expect(
        self,
        entry_point: str,
        *,
        states: Mapping[str, Tensor],
        shards: Shards,
        loss_scale: float = 1.0,
    ) -> Expected:
        """Run an entry point from ``states``, by name, on the batch of all data-parallel shards.

        States are whole, and of the dtype in which ranks keep them.
        """
