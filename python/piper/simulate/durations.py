"""How long each instruction of a program takes: by its bytes, its kernels, and the ranks it joins."""

from __future__ import annotations

import math
from collections.abc import Iterable

from piper_runtime.mesh import CommSpec

from piper.simulate.facts import ProgramFacts, Row
from piper.simulate.network import Network, Transfer
from piper.simulate.prices import Prices
from piper.simulate.values import MESSAGES, Values, bucket_bytes, itemsize

__all__ = ["Durations"]


class Durations:
    """Prices of the instructions of a program, at the load of the busiest rank."""

    def __init__(
        self,
        facts: ProgramFacts,
        prices: Prices,
        network: Network,
        *,
        per_parameter: float,
        load: float,
    ) -> None:
        """See `simulate_program`."""
        if not (load >= 1 and math.isfinite(load)):
            raise ValueError(f"load of the busiest rank must be at least 1, got {load}")
        self._facts, self._prices, self._network = facts, prices, network
        self._per_parameter, self._load = per_parameter, load
        self._known: dict[tuple[str, str, tuple[int, ...], float], Transfer] = {}

    def check_load(self, programs: Iterable[Values]) -> None:
        """Check that a load has an effect.

        Raises:
            ValueError: ranks do not exchange rows by counts.
        """
        dynamic = any(size.dynamic for values in programs for size in values.sizes.values())
        if self._load != 1 and not dynamic:
            raise ValueError(
                "load of the busiest rank expected a program whose ranks exchange rows by counts, "
                f"got {self._load:g} for one without"
            )

    def compute(self, row: Row, values: Values) -> float:
        """Seconds of an instruction of the compute stream."""
        op = row["op"]
        if op == "run":
            return sum(self._kernel(name) for name in self._facts.chunks[row["chunk"]].kernels)
        moved = 0.0
        if op in ("accumulate", "sum"):
            moved = (1 + len(row["in"])) * values.bytes(row["in"][0])
        elif op == "sumsq":
            moved = sum(values.bytes(value) for value in row["in"])
        elif op in ("slice", "convert"):
            source, made = row["in"][0], row["out"][0]
            moved = values.bytes(made) + (values.bytes(made if op == "slice" else source))
        elif op == "write":
            moved = 2 * values.bytes(row["in"][0])
        elif op == "update":
            bucket, mesh = self._facts.bucket(row["bucket"]), self._facts.manifest.mesh
            part = bucket.slot_numel("value", mesh)
            moved = 2 * bucket_bytes(bucket, mesh, slot="value") + 2 * self._per_parameter * part
            moved += part * itemsize(bucket.grad_dtype or bucket.dtype)
        return self._prices.traffic(moved) if moved else 0.0

    def _kernel(self, name: str) -> float:
        """Seconds of a launch on the rank that has most rows of those that differ between ranks."""
        more = (self._load - 1) * self._facts.kernels[name].dynamic
        return self._prices.kernel(name) * (1 + more)

    def transfer(self, at: int, row: Row, comm: CommSpec, values: Values) -> Transfer:
        """What a message or collective of a coordinate puts on which links.

        Raises:
            ValueError: the busiest rank has more rows than it may have.
        """
        size, ends = self._size(row, values), comm.coordinates
        if row["op"] in MESSAGES:
            ends = (min(at, row["peer"]), max(at, row["peer"]))
        key = (row["op"], comm.name, ends, size)
        if key not in self._known:
            self._known[key] = self._price_transfer(row["op"], comm, ends, size)
        return self._known[key]

    def _price_transfer(
        self, op: str, comm: CommSpec, ends: tuple[int, ...], size: float
    ) -> Transfer:
        axis, mesh = self._facts.axis, self._facts.manifest.mesh
        if op in MESSAGES:
            return self._network.message(size, (ends[0], ends[1]), mesh, axis=axis)
        return self._network.collective(op, size, comm, mesh, axis=axis)

    def _size(self, row: Row, values: Values) -> float:
        """Bytes of a message, or of the operand of a collective."""
        if row["op"] == "recv":
            return values.bytes(row["out"][0])
        if row["op"] == "all_to_all":
            # Whoever is sent most, or on the way back sends most, is what all wait for.
            return max(self._loaded(values, value) for value in (row["in"][0], row["out"][0]))
        return values.bytes(row["in"][0])

    def _loaded(self, values: Values, value: int) -> float:
        """Bytes of a value on the rank that has most of its rows.

        Raises:
            ValueError: more than the value may have.
        """
        if not values.is_dynamic(value):
            return values.bytes(value)
        size = self._load * values.bytes(value)
        if size > values.most(value):
            raise ValueError(
                f"load of the busiest rank must be at most "
                f"{values.most(value) / values.bytes(value):.4g}, which is what a rank may receive "
                f"of what it expects, got {self._load:g}"
            )
        return size
