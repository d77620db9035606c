"""Which link a message or collective goes over, and how long it takes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from piper_runtime.mesh import CommSpec, Mesh

from piper.simulate.devices import Link

__all__ = ["Network", "Transfer"]


@dataclass(frozen=True, slots=True)
class Transfer:
    """A message or collective: `busy` seconds of its link, within `seconds` from start to end."""

    link: Link
    members: int
    busy: float
    seconds: float


@dataclass(frozen=True)
class Network:
    """The link of each mesh axis: `axes[name]`, else `default`.

    Every rank has one way out and one way in per link. Who arrives first is served first, at full
    speed: two transfers over one link take turns, where a real one would halve its bandwidth.
    """

    default: Link
    axes: Mapping[str, Link] = field(default_factory=dict)

    def message(self, num_bytes: int, *, axis: str) -> Transfer:
        """A message between two coordinates of an axis."""
        link = self.axes.get(axis, self.default)
        return Transfer(link, 2, num_bytes / link.bandwidth, link.seconds(num_bytes))

    def collective(
        self, kind: str, num_bytes: int, comm: CommSpec, mesh: Mesh, *, axis: str
    ) -> Transfer:
        """A collective in which each of n members has `num_bytes` of operand.

        Its ring has n - 1 steps (an all_reduce twice as many) of 1/n of the whole each, over the
        slowest link of the axes that the communicator spans; one of a single member is local.
        """
        spanned = [*comm.axes, *([axis] if len(comm.coordinates) > 1 else [])]
        links = [self.axes.get(name, self.default) for name in spanned]
        link = min(links, key=lambda link: link.bandwidth, default=self.default)
        members = mesh.size(comm.axes) * len(comm.coordinates)
        steps = members - 1
        part = num_bytes / members
        if kind == "all_reduce":
            steps *= 2
        elif kind in ("all_gather", "broadcast", "permute"):
            part = float(num_bytes)
        if kind in ("broadcast", "permute") and steps:
            steps = 1  # pipelined, or one hop
        busy = steps * part / link.bandwidth
        return Transfer(link, members, busy, busy + steps * link.latency)
