"""What the values of a program are: their bytes, and which of them own memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from piper_runtime.manifest import BucketSpec
from piper_runtime.mesh import Mesh

from piper.dtypes import DTYPES
from piper.simulate.facts import ProgramFacts, Row
from piper.simulate.sizes import Size, shape_bytes

__all__ = ["Values", "read_values"]

MESSAGES = ("send", "recv")
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "permute")
_NOTHING = ("record", "free", "output", "send", "host_wait", "write")
_TYPED = ("recv", "tangent", "sumsq", "convert", "nonfinite")


@dataclass(frozen=True)
class Values:
    """The values of one program, which the dump numbers.

    `sizes` of every tensor; `owned` are those with memory of their own: states, gradients in their
    buckets and the batch have not, nor what is accumulated and then reduced, which happens in
    place. `maker` is the row of every value and event.
    """

    sizes: Mapping[int, Size]
    owned: frozenset[int]
    maker: Mapping[int, int]

    def bytes(self, value: int) -> int:
        """Bytes of a tensor, as expected: what takes time."""
        return self.sizes[value].expected

    def most(self, value: int) -> int:
        """Bytes of a tensor at most: what takes memory."""
        return self.sizes[value].most

    def is_dynamic(self, value: int) -> bool:
        """Whether a tensor has rows that are known at run time only."""
        return self.sizes[value].dynamic


def read_values(rows: Sequence[Row], facts: ProgramFacts) -> Values:
    """Follow the rows of a program.

    Raises:
        ValueError: an instruction that the simulation does not know.
    """
    reader = _Reader(facts)
    for index, row in enumerate(rows):
        reader.read(index, row)
    return Values(reader.sizes, frozenset(reader.owned), reader.maker)


def bucket_bytes(bucket: BucketSpec, mesh: Mesh, *, slot: str) -> int:
    """Bytes that a rank holds of slot value, compute or grad of a bucket; 0 if it has none."""
    dtype = bucket.slot_dtype(slot)
    return 0 if dtype is None else bucket.slot_numel(slot, mesh) * itemsize(dtype)


def itemsize(dtype: str) -> int:
    """Bytes of an element of a dtype by torch's name."""
    size: int = getattr(torch, dtype).itemsize
    return size


class _Reader:
    """Values so far."""

    def __init__(self, facts: ProgramFacts) -> None:
        self._facts = facts
        self._buckets = {bucket.name: bucket for bucket in facts.manifest.buckets}
        self._inputs = {
            spec.name: shape_bytes(spec.shape, getattr(torch, spec.dtype))
            for spec in facts.manifest.inputs
        }
        self.sizes: dict[int, Size] = {}
        self.owned: set[int] = set()
        self._accumulated: set[int] = set()
        self.maker: dict[int, int] = {}

    def read(self, index: int, row: Row) -> None:
        """Note the results of a row."""
        for value in row["out"]:
            self.maker[value] = index
        sizes, owns = self._results(row)
        for value, size in zip(row["out"], sizes, strict=False):  # an event comes last
            self.sizes[value] = size
            if owns:
                self.owned.add(value)

    def _results(self, row: Row) -> tuple[Iterable[Size], bool]:
        """Sizes of the results, and whether they are new."""
        op = row["op"]
        if op == "run":
            return self._facts.chunks[row["chunk"]].results, True
        if op in _TYPED:
            return [_typed(row)], True
        if op == "sum":
            return [self.sizes[row["in"][0]]], True
        if op == "slice":
            size = self._facts.manifest.mesh.size([row["axis"]])
            return [Size.of(self.sizes[row["in"][0]].expected // size)], True
        if op in COLLECTIVES:
            in_place = op == "all_reduce" and row["in"][0] in self._accumulated
            return [self._collective(row)], not in_place
        return map(Size.of, self._state(row)), False

    def _state(self, row: Row) -> Sequence[int]:
        """Bytes of results that are states, gradients in buckets or the batch."""
        op = row["op"]
        if op in _NOTHING:
            return []
        if op == "read":
            return [self._slot(row["symbol"], row["slot"])]
        if op == "input":
            return [self._inputs[row["input"]]]
        if op in ("accumulate", "update"):
            slot = "grad" if op == "accumulate" else "value"
            if op == "accumulate":
                self._accumulated.update(row["out"])
            return [self._slot(row["bucket"], slot)]
        raise ValueError(
            f"cannot simulate instruction piper.{op}: its cost and memory are not known"
        )

    def _slot(self, bucket: str, slot: str) -> int:
        return bucket_bytes(self._buckets[bucket], self._facts.manifest.mesh, slot=slot)

    def _collective(self, row: Row) -> Size:
        """The result of a collective: parts are as many as ranks along its axes."""
        if "shape" in row:  # of an all_to_all, which may receive other rows than it sends
            return _typed(row)
        operand = self.sizes[row["in"][0]]
        mesh = self._facts.manifest.mesh
        comm = next(comm for comm in self._facts.manifest.comms if comm.name == row["stream"])
        parts = mesh.size(comm.axes)
        if row["op"] == "all_gather":
            return Size.of(operand.expected * parts)
        return Size.of(operand.expected // parts) if row["op"] == "reduce_scatter" else operand


def _typed(row: Row) -> Size:
    """The result of an instruction that gives its type."""
    dtype, shape = DTYPES[row["dtype"]], row["shape"]
    bound = row.get("bound", 0)
    expected, most = (
        shape_bytes(shape, dtype, rows=rows) for rows in (row.get("expect") or bound, bound)
    )
    return Size(expected, most, any(size < 0 for size in shape))
