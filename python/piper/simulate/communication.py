"""What a compiled program communicates in a step, beside what the textbook says.

Bytes are those that a rank sends (where it sends none, those that it receives), by the algorithms
with the least bandwidth on n members:

    all_reduce                   2(n-1)/n of the operand   Patarasuk and Yuan 2009
    reduce_scatter               (n-1)/n of the operand    Thakur, Rabenseifner and Gropp 2005
    all_gather                   (n-1)/n of the result
    all_to_all                   (n-1)/n of the operand    with rows as expected, if by counts
    broadcast, permute, send     all of it

The exchange over gloo moves as many, but for padding to equal parts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from piper_runtime.mesh import CommSpec

from piper.simulate.facts import ProgramFacts, Row
from piper.simulate.replication import BucketUses
from piper.simulate.values import COLLECTIVES, Values, itemsize, read_values

__all__ = ["Traffic", "Volume", "measure_traffic", "measure_volumes"]

_OF_STATES = ("all_reduce", "reduce_scatter", "all_gather", "broadcast")


@dataclass(frozen=True)
class Traffic:
    """What one communicator does in a call of an entry point, for each rank that takes part.

    `op` is a collective or `send`; `coordinates` those of the communicator, or of a message the
    sender's and the receiver's; `members` how many ranks meet. There are `values` different values
    in `calls` messages or collectives, which move `num_bytes` per rank. `textbook` are the bytes if
    each value went once, and each bucket as often as its policies say: see `Replication.times`.
    """

    comm: CommSpec
    op: str
    coordinates: tuple[int, ...]
    members: int
    values: int
    calls: int
    num_bytes: int
    textbook: int

    @property
    def ratio(self) -> float | None:
        """Bytes over those of the textbook; None if it has none, as of a communicator of one."""
        return self.num_bytes / self.textbook if self.textbook else None


@dataclass(frozen=True)
class Volume:
    """What a rank at one coordinate communicates in a call of an entry point, in bytes.

    `collectives` are those of all communicators. `trained` are the parameters that it trains, and
    `multiple` how often they go over manual axes, an all_reduce counted twice and (n-1)/n as 1, and
    rows for experts not at all: this is how ZeRO counts (Rajbhandari et al. 2020, section 7): 2 for stages 0 to 2, 3 for stage
    3. It is None without trained parameters.
    """

    sent: int
    received: int
    collectives: int
    trained: int
    multiple: float | None


def measure_traffic(facts: ProgramFacts, entry: str = "train") -> tuple[Traffic, ...]:
    """Add up the messages and collectives of each communicator, in the order of the manifest.

    Raises:
        ValueError: an unknown entry point or instruction.
    """
    calls: dict[tuple[str, str, tuple[int, ...]], list[_Call]] = {}
    comms = {comm.name: comm for comm in facts.manifest.comms}
    for at, call in _calls(facts, entry):
        comm = comms[call.row["stream"]]
        ends = comm.coordinates
        if call.row["op"] == "send":
            ends = (at, call.row["peer"])
        if at == ends[0] and call.row["op"] != "recv":  # the others do the same
            calls.setdefault((comm.name, call.row["op"], ends), []).append(call)
    order = list(comms)
    found = sorted(calls.items(), key=lambda item: (order.index(item[0][0]), item[0][1:]))
    return tuple(_add_up(facts, comms[name], op, ends, made) for (name, op, ends), made in found)


def measure_volumes(facts: ProgramFacts, entry: str = "train") -> tuple[Volume, ...]:
    """Add up what each coordinate communicates.

    Raises:
        ValueError: an unknown entry point or instruction.
    """
    comms = {comm.name: comm for comm in facts.manifest.comms}
    coordinates = range(facts.manifest.mesh.num_coordinates)
    bytes_: dict[str, Counter[int]] = {what: Counter() for what in ("send", "recv", "other")}
    crossed: Counter[int] = Counter()
    manual = {axis.name for axis in facts.manifest.mesh.axes if axis.role == "manual"}
    for at, call in _calls(facts, entry):
        op, comm = call.row["op"], comms[call.row["stream"]]
        members = _num_members(facts, comm)
        moved = round(call.size * _share(op, members))
        bytes_[op if op in bytes_ else "other"][at] += moved
        if op in _OF_STATES and manual.intersection(comm.axes) and members > 1:
            crossed[at] += call.size * (2 if op == "all_reduce" else 1)
    trained = {at: _trained(facts, at) for at in coordinates}
    return tuple(
        Volume(
            sent=bytes_["send"][at],
            received=bytes_["recv"][at],
            collectives=bytes_["other"][at],
            trained=trained[at],
            multiple=crossed[at] / trained[at] if trained[at] else None,
        )
        for at in coordinates
    )


@dataclass(frozen=True, slots=True)
class _Call:
    """One message or collective: `size` are the bytes that its formula speaks of, and `times` how
    often the textbook has its value go, a message of a microbatch once.
    """

    row: Row
    value: Any
    size: int
    times: int = 1


def _calls(facts: ProgramFacts, entry: str) -> Iterator[tuple[int, _Call]]:
    """All messages and collectives, each with the coordinate that it is at."""
    comms = {comm.name: comm for comm in facts.manifest.comms}
    for at, rows in sorted(facts.entry(entry).items()):
        values, uses = read_values(rows, facts), BucketUses(rows)
        for row in rows:
            op = row["op"]
            if op in COLLECTIVES:
                size = values.bytes(row["out"][0] if op == "all_gather" else row["in"][0])
                bucket = uses.bucket(row["in"][0])
                times = _times(facts, uses, bucket, op, comms[row["stream"]])
                yield at, _Call(row, bucket or _moved(rows, values, row["in"][0]), size, times)
            elif op in ("send", "recv"):
                sized = row["in"][0] if op == "send" else row["out"][0]
                name = row.get("label") or "message", row["mb"]
                yield at, _Call(row, name, values.bytes(sized))


def _times(
    facts: ProgramFacts, uses: BucketUses, bucket: str | None, op: str, comm: CommSpec
) -> int:
    """How often the textbook has a value go: once, if it is not of a bucket that is replicated."""
    if bucket is None or bucket not in facts.replications:
        return 1
    counts = {"contributions": uses.contributions(bucket), "uses": uses.uses(bucket)}
    return facts.replications[bucket].times(op, comm, **counts)


def _moved(rows: Sequence[Row], values: Values, value: int) -> int:
    """The value that collectives began with."""
    while (row := rows[values.maker[value]])["op"] in COLLECTIVES:
        value = row["in"][0]
    return value


def _add_up(
    facts: ProgramFacts, comm: CommSpec, op: str, ends: tuple[int, ...], calls: Sequence[_Call]
) -> Traffic:
    members = 2 if op == "send" else _num_members(facts, comm)
    share = _share(op, members)
    counts = Counter(call.value for call in calls)
    textbook = sum({call.value: call.size * call.times for call in calls}.values())
    names = {value[0] for value in counts} if op == "send" else set(counts)
    return Traffic(
        comm=comm,
        op=op,
        coordinates=ends,
        members=members,
        values=len(names),
        calls=len(calls),
        num_bytes=round(sum(call.size for call in calls) * share),
        textbook=round(textbook * share),
    )


def _num_members(facts: ProgramFacts, comm: CommSpec) -> int:
    return facts.manifest.mesh.size(comm.axes) * len(comm.coordinates)


def _share(op: str, members: int) -> Fraction:
    """Which part of its value a rank moves."""
    match op:
        case "all_reduce":
            return Fraction(2 * (members - 1), members)
        case "all_gather" | "reduce_scatter" | "all_to_all":
            return Fraction(members - 1, members)
    return Fraction(members > 1)


def _trained(facts: ProgramFacts, at: int) -> int:
    """Bytes of the parameters that a coordinate trains, whole, as the model computes with them."""
    held = (bucket for bucket in facts.manifest.buckets if at in bucket.holders)
    return sum(
        bucket.numel * itemsize(bucket.compute_dtype or bucket.dtype)
        for bucket in held
        if bucket.grad_dtype
    )
