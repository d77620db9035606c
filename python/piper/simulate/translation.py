"""Programs as a graph of nodes and lanes.

compute of 0  | run F | record | run F | ...                 a lane per (coordinate, stream);
send$0.1 of 0              | send |                          both ends of a message, and all of
send$0.1 of 1              | recv |                          a collective, are one node on the
compute of 1                      | run F | ...              lanes of all members
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence

from piper_runtime.instruction import COMPUTE

from piper.simulate.durations import Durations
from piper.simulate.engine import Graph
from piper.simulate.facts import ProgramFacts, Row
from piper.simulate.network import Network, Transfer
from piper.simulate.prices import Prices
from piper.simulate.values import COLLECTIVES, MESSAGES, Values, read_values

__all__ = ["Translation", "describe"]

HOST = "host"
_ISSUE, _GATE = -1, -2  # in place of the row of a node that is no instruction
Key = tuple[Hashable, ...]


class Translation:
    """The graph of one or more steps; all lists have an entry per step.

    `nodes[step][coordinate]` is the node of each row, `ends[step]` the nodes at which each
    coordinate has done all of its instructions.
    """

    def __init__(
        self,
        facts: ProgramFacts,
        programs: Mapping[int, Sequence[Row]],
        prices: Prices,
        network: Network,
        *,
        issue: float,
        per_parameter: float,
        load: float = 1.0,
    ) -> None:
        """Read the programs and price their instructions; see `simulate_program`."""
        if not (issue >= 0 and math.isfinite(issue)):
            raise ValueError(f"seconds to issue an instruction must be at least 0, got {issue}")
        self.graph = Graph()
        self.rows = dict(sorted(programs.items()))
        self.values: dict[int, Values] = {
            at: read_values(rows, facts) for at, rows in self.rows.items()
        }
        self.nodes: list[dict[int, list[int]]] = []
        self.ends: list[list[int]] = []
        self.transfers: dict[int, Transfer] = {}  # by node
        self._facts, self._issue = facts, issue
        self._durations = Durations(facts, prices, network, per_parameter=per_parameter, load=load)
        self._durations.check_load(self.values.values())
        self._comms = {comm.name: comm for comm in facts.manifest.comms}
        self._origins: list[tuple[int, int]] = []  # by node: coordinate, row
        self._lanes: dict[int, dict[Hashable, None]] = {at: {} for at in self.rows}
        self._meetings: dict[Key, tuple[int, int]] = {}  # node, ends that have not come yet
        self._seconds: dict[int, list[float]] = {
            at: [self._durations.compute(row, self.values[at]) for row in rows]
            for at, rows in self.rows.items()
        }

    def add_step(self) -> None:
        """Add every program once more, each behind what its rank did before.

        Raises:
            ValueError: a message that one side does not expect.
        """
        self.nodes.append({at: self._add_program(at) for at in self.rows})
        for key, (node, missing) in self._meetings.items():
            if missing:
                raise ValueError(
                    f"{self.name(node)}: {key[1]} expected {missing} more to take part"
                )
        self._meetings.clear()
        self._end_step()

    def name(self, node: int) -> str:
        """A node in words, for errors."""
        name, _ = self.label(node)
        at, _ = self._origins[node]
        return f"{name} at {self._facts.place(at)}"

    def label(self, node: int) -> tuple[str, int | None]:
        """The name of a node and its coordinate, None for what joins several."""
        at, index = self._origins[node]
        if index < 0:
            return ("issue" if index == _ISSUE else "end of step"), at
        row = self.rows[at][index]
        joins = row["op"] in COLLECTIVES and len(self._comms[row["stream"]].coordinates) > 1
        return describe(self._facts, at, row), None if joins or row["op"] in MESSAGES else at

    def barrier(self) -> str | None:
        """An instruction in which all of several coordinates take part."""
        everybody = set(self.rows)
        joining = {name for name, comm in self._comms.items() if set(comm.coordinates) == everybody}
        for at, rows in self.rows.items():
            for row in rows:
                if row["op"] in COLLECTIVES and row["stream"] in joining and len(everybody) > 1:
                    return describe(self._facts, at, row)
        return None

    # Nodes.

    def _add_program(self, at: int) -> list[int]:
        nodes: list[int] = []
        counts: Counter[Key] = Counter()
        blocked: int | None = None
        for index, row in enumerate(self.rows[at]):
            if "skip" in row:  # the host reads it before it goes on
                blocked = nodes[self.values[at].maker[row["skip"]]]
            host = blocked
            if self._issue:
                host = self._issued(at, index)
                if blocked is not None:
                    self.graph.wait(host, on=blocked)
            if row["op"] in MESSAGES or row["op"] in COLLECTIVES:
                node = self._meet(at, index, row, counts)
                self._enqueue(node, at, row["stream"])
            else:
                node = self._node(self._seconds[at][index], at, index)
                self._enqueue(node, at, HOST if row["op"] == "host_wait" else COMPUTE)
            if row["op"] == "host_wait":
                blocked = node
            if host is not None:
                self.graph.wait(node, on=host)
            for before in self._before(at, row):
                self.graph.wait(node, on=nodes[before])
            nodes.append(node)
        return nodes

    def _before(self, at: int, row: Row) -> list[int]:
        """Rows that an instruction waits for, but for those before it on its stream."""
        maker = self.values[at].maker
        waits = {maker[event] for event in row["after"]}
        rows, stream = self.rows[at], row.get("stream")
        for value in row["in"]:
            if rows[maker[value]].get("stream") != stream or row["op"] == "host_wait":
                waits.add(maker[value])
        return sorted(waits)

    def _issued(self, at: int, index: int) -> int:
        """The host's part of an instruction."""
        node = self._node(self._issue, at, _ISSUE)
        self._enqueue(node, at, HOST)
        return node

    def _meet(self, at: int, index: int, row: Row, counts: Counter[Key]) -> int:
        """The node that the ends of a message or the members of a collective share."""
        comm = self._comms[row["stream"]]
        key: Key = ("all of", row["stream"])
        if row["op"] in MESSAGES:
            ends = (at, row["peer"]) if row["op"] == "send" else (row["peer"], at)
            key = ("the message on", row["stream"], *ends)
        counts[key] += 1
        key = (*key, counts[key])
        if key in self._meetings:
            node, missing = self._meetings[key]
            self._meetings[key] = node, missing - 1
            return node
        members = (at, row["peer"]) if row["op"] in MESSAGES else comm.coordinates
        transfer = self._durations.transfer(at, row, comm, self.values[at])
        node = self._node(transfer.seconds, at, index)
        self.transfers[node] = transfer
        for load in transfer.loads:
            if load.num_bytes:
                links = _links(row, at, members, load.link.name)
                self.graph.claim(node, links, time=load.seconds)
        self._meetings[key] = node, len(members) - 1
        return node

    def _end_step(self) -> None:
        """A rank is done when all of its streams are; the next step also needs all outputs.

        The trainer drains its own rank and then gets each output from the first rank that has it.
        """
        done = {at: self._node(0.0, at, _GATE) for at in self.rows}
        owners: dict[str, int] = {}
        for at, rows in self.rows.items():
            for lane in self._lanes[at]:
                self.graph.enqueue(done[at], (at, lane))
            for row in rows:
                if row["op"] == "output":
                    owners.setdefault(row["name"], at)
        for at in self.rows:
            gate = self._node(0.0, at, _GATE)
            for owner in dict.fromkeys(owners.values()):
                self.graph.wait(gate, on=done[owner])
            for lane in self._lanes[at]:
                self.graph.enqueue(gate, (at, lane))
        self.ends.append(list(done.values()))

    def _node(self, seconds: float, at: int, index: int) -> int:
        self._origins.append((at, index))
        return self.graph.add(seconds)

    def _enqueue(self, node: int, at: int, lane: str) -> None:
        self._lanes[at][lane] = None
        self.graph.enqueue(node, (at, lane))


def describe(facts: ProgramFacts, at: int, row: Row) -> str:
    """An instruction in few words: its cell, or what it does with what."""
    op = row["op"]
    if op == "run":
        action = facts.action(row)
        return f"{row['chunk']} {row['mb']}" if action is None else str(action)
    if op in MESSAGES:
        target = row["peer"] if op == "send" else at
        what = row.get("label") or "message"
        return f"{what} of microbatch {row['mb']} to {facts.place(target)}"
    if op == "all_to_all" and "label" in row:
        return f"{op} {row['label']} of microbatch {row['mb']}"
    what = row.get("stream") or row.get("bucket") or row.get("symbol") or row.get("name")
    return f"{op} {what}" if what else str(op)


def _links(row: Row, at: int, members: Sequence[int], link: str) -> list[tuple[str, int, str]]:
    """The ways out and in that a transfer holds."""
    if row["op"] == "send":
        return [("out", at, link), ("in", row["peer"], link)]
    if row["op"] == "recv":
        return [("out", row["peer"], link), ("in", at, link)]
    return [(way, member, link) for member in members for way in ("out", "in")]
