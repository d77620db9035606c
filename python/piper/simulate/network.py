"""Which links a message or collective goes over, and how long it takes.

Ranks of one node have a faster way to each other than ranks of different nodes, and of its own each
rank has one way out and one in to either. A collective of n members, k in every of N nodes, sends

                     within the node         between nodes
    ring             (k-1)/k of its bytes    1/k of its bytes
    all_to_all       (k-1)/n of the operand  (n-k)/n of the operand
    message, permute nothing, if it crosses  all of it

of what `communication` says of its kind. A ring, as all_reduce, reduce_scatter, all_gather and
broadcast use it, is k rings of a k-th of the bytes each: every ring goes through all members of a
node and leaves it by another one, so that all network adapters are used. That is how NCCL builds
rings where each GPU has an adapter. Where nodes have unequal many members, k is the least for rings
and for what all_to_all sends between nodes, the most for what it sends within one.

Both parts go at the same time; the longer one is what a collective takes, and latency besides: that
of the link of each step of a ring, of which N - 1 leave a node (NCCL's src/graph/tuning.cc, which
the links name as the source of their latencies); of an all_to_all one alone, since its messages go
independently (NCCL user guide, point-to-point communication).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Self

from piper_runtime.mesh import CommSpec, Mesh

from piper.simulate.devices import Device, Link, link
from piper.simulate.topology import message_crosses, spreads

__all__ = ["Load", "Network", "Transfer"]


@dataclass(frozen=True, slots=True)
class Load:
    """The bytes that a rank sends over a link, or receives."""

    link: Link
    num_bytes: float

    @property
    def seconds(self) -> float:
        """How long they hold the link."""
        return self.num_bytes / self.link.bandwidth


@dataclass(frozen=True, slots=True)
class Transfer:
    """A message or collective of `seconds` from start to end, and what it puts on which links.

    The load that takes longest comes first.
    """

    members: int
    loads: tuple[Load, ...]
    seconds: float

    @property
    def link(self) -> Link:
        """The link that is busy longest."""
        return self.loads[0].link

    @property
    def busy(self) -> float:
        """How long that is."""
        return self.loads[0].seconds


@dataclass(frozen=True)
class Network:
    """The links between ranks.

    `default` joins all ranks, or, with `across`, those of a node of `node` ranks, and `across` the
    nodes. What goes along an axis of `axes` goes over the link given there, wherever ranks are, and
    a collective along several axes over the slowest of theirs.

    Every rank has one way out and one way in per link. Who arrives first is served first, at full
    speed: two transfers over one link take turns, where a real one would halve its bandwidth.

    Raises:
        ValueError: one of `node` and `across` without the other, or a node of no rank.
    """

    default: Link
    axes: Mapping[str, Link] = field(default_factory=dict)
    across: Link | None = None
    node: int | None = None

    def __post_init__(self) -> None:
        """Check the nodes."""
        if (self.across is None) != (self.node is None):
            given = f"node {self.node}" if self.across is None else f"link {self.across.name}"
            raise ValueError(
                f"a network of nodes expected their ranks and the link between them, got {given}"
            )
        if self.node is not None and self.node < 1:
            raise ValueError(f"a node expected at least 1 rank, got {self.node}")

    @classmethod
    def of(
        cls, device: Device, *, node: int | None = None, axes: Mapping[str, Link] | None = None
    ) -> Self:
        """The network of machines that are built of a device, as published, or of other `node`s.

        Raises:
            ValueError: nothing is known of the machines of this device, or a node of no rank.
        """
        known = device.node
        if known is None:
            raise ValueError(f"links of device {device.name} must be given: it has no known nodes")
        within, across = (link(kind, of=device) for kind in (known.within, known.across))
        return cls(within, axes or {}, across, known.ranks if node is None else node)

    def message(
        self, num_bytes: float, ends: tuple[int, int], mesh: Mesh, *, axis: str
    ) -> Transfer:
        """A message between two coordinates of an axis, for the ranks that are furthest apart."""
        used = self.axes.get(axis) or self._between(
            self.node is not None and message_crosses(mesh, ends, self.node)
        )
        return Transfer(2, (Load(used, num_bytes),), used.seconds(num_bytes))

    def collective(
        self, kind: str, num_bytes: float, comm: CommSpec, mesh: Mesh, *, axis: str
    ) -> Transfer:
        """A collective in which each of n members has `num_bytes` of operand.

        Of several groups of a communicator, the one that takes longest; one of a single member is
        local.
        """
        spanned = [*comm.axes, *([axis] if len(comm.coordinates) > 1 else [])]
        members = mesh.size(comm.axes) * len(comm.coordinates)
        own = [self.axes[name] for name in spanned if name in self.axes]
        if own or self.node is None:
            links = own if len(own) == len(spanned) > 0 else [*own, self._slowest()]
            slowest = min(links, key=lambda link: link.bandwidth)
            return _transfer(kind, num_bytes, (members,), slowest, slowest)
        return max(
            (
                _transfer(kind, num_bytes, way, self.default, self._between(len(way) > 1))
                for way in spreads(mesh, comm, self.node)
            ),
            key=lambda transfer: transfer.seconds,
        )

    def _between(self, crosses: bool) -> Link:
        return self.across if crosses and self.across is not None else self.default

    def _slowest(self) -> Link:
        links = [self.default, *([self.across] if self.across else [])]
        return min(links, key=lambda link: link.bandwidth)


def _transfer(
    kind: str, num_bytes: float, counts: Sequence[int], within: Link, across: Link
) -> Transfer:
    """A collective with so many members in each node."""
    members, nodes = sum(counts), len(counts)
    if members == 1:
        return Transfer(1, (Load(within, 0.0),), 0.0)
    if kind == "all_to_all":
        inside = num_bytes * (max(counts) - 1) / members
        outside = num_bytes * (members - min(counts)) / members if nodes > 1 else 0.0
        late = across.latency if nodes > 1 else within.latency
    elif kind == "permute":
        # Along a ring over several nodes, somebody's neighbour is in another one.
        inside, outside = (0.0, num_bytes) if nodes > 1 else (num_bytes, 0.0)
        late = across.latency if nodes > 1 else within.latency
    else:
        moved, steps, leaving = _ring(kind, num_bytes, members, nodes)
        outside = moved / min(counts) if nodes > 1 else 0.0
        inside = moved - outside
        late = (steps - leaving) * within.latency + leaving * across.latency
    loads = [Load(link, size) for link, size in ((within, inside), (across, outside)) if size]
    loads = sorted(loads, key=lambda load: -load.seconds) or [Load(within, 0.0)]
    return Transfer(members, tuple(loads), loads[0].seconds + late)


def _ring(kind: str, num_bytes: float, members: int, nodes: int) -> tuple[float, int, int]:
    """Bytes that a member passes on, steps that follow each other, and how many leave a node."""
    steps, leaving = members - 1, nodes - 1
    match kind:
        case "all_reduce":
            return 2 * steps * num_bytes / members, 2 * steps, 2 * leaving
        case "reduce_scatter":
            return steps * num_bytes / members, steps, leaving
        case "all_gather":
            return steps * num_bytes, steps, leaving
        case "broadcast":  # pipelined: the first piece arrives after a step
            return num_bytes, 1, min(1, leaving)
    raise ValueError(f"unknown collective {kind!r}")
