"""How often states are gathered and gradients reduced, by what was asked for.

The factor comes from what the replicate directive recorded on the members of a bucket, and from the
runs of chunks that use the bucket: never from how many collectives there are, which it judges.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from piper_runtime.mesh import CommSpec

from piper.emit.symbols import Symbols

__all__ = ["BucketUses", "Replication", "read_replications"]

_ZERO = re.compile(r"zero = (\d)")
_POLICY = re.compile(r'\b(reduce|gather) = "(\w+)"')
_MOVED = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "convert", "slice")
"""Instructions whose result is their operand, as far as a bucket goes."""


@dataclass(frozen=True, slots=True)
class Replication:
    """Stage of ZeRO, and when gradients are reduced and states of stage 3 gathered."""

    zero: int = 0
    reduce: str = "last"
    gather: str = "each"

    def times(self, op: str, comm: CommSpec, *, contributions: int, uses: int) -> int:
        """How often one bucket goes in a step, in collectives `op` of a communicator.

        `contributions` are the gradients that runs of chunks make, `uses` the forward and the
        backward passes of microbatches that read the state. Runs in a row of the policy "group"
        may share a gather, so for these it is the most. Copies at several coordinates are summed
        once, whatever the policy.
        """
        if len(comm.coordinates) > 1:
            return 1
        if op == "all_gather":
            return max(1, uses) if self.zero == 3 and self.gather != "step" else 1
        return max(1, contributions) if self.reduce == "each" else 1


def read_replications(symbols: Symbols) -> dict[str, Replication]:
    """What is recorded on the first member of each bucket that is replicated at all."""
    found = {}
    for bucket, (member, *_) in symbols.members.items():
        attributes = symbols.states[member].attributes
        if "replication" in attributes:
            text = str(attributes["replication"])
            zero = _ZERO.search(text)
            assert zero is not None
            found[bucket] = Replication(int(zero[1]), **dict(_POLICY.findall(text)))
    return found


class BucketUses:
    """Which values of a program are of which bucket, and how often chunks use a bucket."""

    def __init__(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Follow every value; linear in the rows."""
        self._maker = {value: row for row in rows for value in row["out"]}
        self._contributions: dict[str, set[int]] = {}  # what runs made
        self._moved: dict[int, str] = {}  # between its run and its accumulation
        self._passes: dict[str, set[tuple[object, ...]]] = {}
        for row in rows:
            if row["op"] == "accumulate":
                self._note_contribution(row)
            elif row["op"] == "run":
                self._note_pass(row)

    def bucket(self, value: int) -> str | None:
        """The bucket whose state or gradient, or contribution to it, a value is."""
        origin = self._origin(value)
        known: str | None = origin.get("bucket") or origin.get("symbol")
        return known or self._moved.get(value)

    def contributions(self, bucket: str) -> int:
        """How many gradients runs of chunks make, each of a microbatch, for a bucket."""
        return len(self._contributions.get(bucket, ()))

    def uses(self, bucket: str) -> int:
        """How many times a forward or a backward pass of a chunk reads the state."""
        return len(self._passes.get(bucket, ()))

    def _origin(self, value: int) -> Mapping[str, Any]:
        """The instruction that made a value, before it was moved."""
        row = self._maker[value]
        while row["op"] in _MOVED:
            row = self._maker[row["in"][0]]
        return row

    def _note_contribution(self, accumulate: Mapping[str, Any]) -> None:
        """Say of the added value, and of what it was before it was moved, which bucket it is of."""
        bucket = accumulate["bucket"]
        for value in accumulate["in"]:
            origin = value
            while self._maker[origin]["op"] in _MOVED:
                self._moved[origin] = bucket
                origin = self._maker[origin]["in"][0]
            if self._maker[origin]["op"] != "accumulate":  # else it is the sum so far
                self._moved[origin] = bucket
                self._contributions.setdefault(bucket, set()).add(origin)

    def _note_pass(self, run: Mapping[str, Any]) -> None:
        """Note the states that a run reads; pieces of a pass are one."""
        layer, _, pass_ = run["chunk"].partition("$")
        for value in run["in"]:
            bucket = self._origin(value).get("symbol")
            if bucket is not None:
                passes = self._passes.setdefault(bucket, set())
                passes.add((layer, pass_.startswith("F"), run["mb"]))
