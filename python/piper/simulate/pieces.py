"""Tables whose cells consist of pieces: what runs beside what, before any program is compiled.

A cell that holds an exchange between ranks is not one block of time. Here it is a list of pieces,
each of which computes or exchanges:

    compute   | attention |          | experts |         |
    exchange              | dispatch |         | combine |

A rank has a stream for compute and one for exchanges. Both are first in, first out, in the order in
which cells list their pieces; a piece also waits for those of its cell that it names, and for the
inputs of the actions that it begins. Results go to other ranks as messages. Exchanges and messages
share the ways out and in that each rank has per link, as in `Network`; one rank stands for all that
exchange with it. A compiled program says all of that by itself: see `simulate_program`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from piper.schedules import Action, Pair, Table, members
from piper.schedules.dependences import Dependences
from piper.simulate.engine import Graph, Timing
from piper.simulate.exposed import Exposure, Talk, measure_exposed
from piper.simulate.network import Transfer

__all__ = ["Piece", "PieceSimulation", "simulate_pieces"]

Cell = Action | Pair


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a cell that takes seconds of compute, or else an exchange.

    It waits for the pieces of its cell whose names are in `after`, and for the inputs of the actions
    in `begins`; when it ends, the results of those in `ends` are there.
    """

    name: str
    work: float | Transfer
    after: tuple[str, ...] = ()
    begins: tuple[Action, ...] = ()
    ends: tuple[Action, ...] = ()


@dataclass(frozen=True)
class PieceSimulation:
    """What a table of pieces costs, in seconds; tuples have an entry per rank.

    `busy` is compute. `spans` has start and end of each piece by cell and name. Of `exposures`,
    exchanges are `all_to_all` and messages go along `pp`.
    """

    makespan: float
    busy: tuple[float, ...]
    exposures: tuple[tuple[Exposure, ...], ...]
    spans: Mapping[tuple[Cell, str], tuple[float, float]]

    def exposed(self, kind: str) -> float:
        """Exposed seconds of a kind of communication: the mean over ranks."""
        return self._mean("exposed", kind)

    def under_way(self, kind: str) -> float:
        """Seconds in which such communication is under way: the mean over ranks."""
        return self._mean("under_way", kind)

    def _mean(self, what: str, kind: str) -> float:
        parts = [part for parts in self.exposures for part in parts if part.kind == kind]
        return sum(float(getattr(part, what)) for part in parts) / len(self.exposures)


def simulate_pieces(
    table: Table,
    pieces: Callable[[Cell], Sequence[Piece]],
    message: Callable[[int, int], Transfer],
) -> PieceSimulation:
    """Run a table whose cells are lists of pieces, in the order in which they are issued.

    Args:
        table: the cells of each rank.
        pieces: those of a cell; between them they begin and end each of its actions once.
        message: what a result costs from a rank to another.

    Raises:
        ValueError: pieces that wait for what their cell has not, or an action that they do not begin
            and end; a table that is not complete, or waits in a circle.
    """
    plan = _Plan(table, message)
    for number in range(len(plan.dependences.cells)):
        plan.add_cell(number, pieces)
    plan.connect()
    return plan.summarize(plan.graph.run(plan.name))


class _Plan:
    """A table as a graph: a node per piece, on the lane of its rank and stream, and per message."""

    def __init__(self, table: Table, message: Callable[[int, int], Transfer]) -> None:
        self.dependences = Dependences(table)
        self.dependences.check_inputs()
        self.graph = Graph()
        self._ranks = range(len(table.rows))
        self._message = message
        self._names: list[str] = []
        self._pieces: dict[tuple[Cell, str], int] = {}
        self._begins: list[tuple[int, int, Action]] = []  # node, number of its cell, action
        self._ends: dict[Action, int] = {}
        self._work: list[list[int]] = [[] for _ in self._ranks]  # nodes of each rank's compute
        self._talks: list[list[tuple[int, str, Transfer]]] = [[] for _ in self._ranks]

    def name(self, node: int) -> str:
        """A node in words, for errors."""
        return self._names[node]

    def add_cell(self, number: int, pieces: Callable[[Cell], Sequence[Piece]]) -> None:
        """Add the pieces of a cell to the streams of its rank."""
        cell, (rank, _) = self.dependences.cells[number], self.dependences.places[number]
        begun: list[Action] = []
        ended: list[Action] = []
        for piece in pieces(cell):
            try:
                after = [self._pieces[cell, name] for name in piece.after]
            except KeyError as error:
                raise ValueError(
                    f"piece {piece.name} of {cell} waits for {error.args[0][1]}, "
                    "which is no piece before it"
                ) from None
            node = self._add(piece.work, f"{piece.name} of {cell} at rank {rank}", after)
            self.graph.enqueue(node, (rank, isinstance(piece.work, Transfer)))
            self._claim(node, piece.work, rank, rank)
            self._pieces[cell, piece.name] = node
            self._begins += [(node, number, action) for action in piece.begins]
            self._ends.update(dict.fromkeys(piece.ends, node))
            begun += piece.begins
            ended += piece.ends
        for what, actions in (("begin", begun), ("end", ended)):
            if sorted(map(str, actions)) != sorted(map(str, members(cell))):
                got = ", ".join(map(str, actions)) or "nothing"
                raise ValueError(f"pieces of {cell} must {what} each of its actions, got {got}")

    def connect(self) -> None:
        """Let pieces wait for the results of other cells, through messages from other ranks."""
        for node, number, action in self._begins:
            rank, _ = self.dependences.places[number]
            for need, maker in self.dependences.needs(number):
                if not _uses(action, need):
                    continue
                source, _ = self.dependences.places[maker]
                before = self._ends[need]
                if source != rank:
                    transfer = self._message(source, rank)
                    before = self._add(transfer, f"{need} to rank {rank}", [before])
                    self._claim(before, transfer, source, rank)
                self.graph.wait(node, on=before)

    def summarize(self, timing: Timing) -> PieceSimulation:
        """Read the results."""

        def span(node: int) -> tuple[float, float]:
            return float(timing.start[node]), float(timing.end[node])

        work = [[span(node) for node in nodes] for nodes in self._work]
        talks = [
            [
                Talk(kind, "ep" if kind == "all_to_all" else "pp", span(node), _bytes(transfer))
                for node, kind, transfer in entries
            ]
            for entries in self._talks
        ]
        return PieceSimulation(
            makespan=timing.makespan,
            busy=tuple(sum(end - start for start, end in spans) for spans in work),
            exposures=tuple(map(measure_exposed, talks, work)),
            spans={key: span(node) for key, node in self._pieces.items()},
        )

    def _add(self, work: float | Transfer, name: str, after: Iterable[int]) -> int:
        self._names.append(name)
        seconds = work.seconds if isinstance(work, Transfer) else work
        return self.graph.add(seconds, after=after)

    def _claim(self, node: int, work: float | Transfer, source: int, target: int) -> None:
        """Note whose time a node takes, and hold the links of a transfer."""
        if not isinstance(work, Transfer):
            self._work[source].append(node)
            return
        kind = "all_to_all" if source == target else "messages"
        for rank in {source, target}:
            self._talks[rank].append((node, kind, work))
        for load in work.loads:
            if load.num_bytes:
                ways = [("out", source, load.link.name), ("in", target, load.link.name)]
                self.graph.claim(node, ways, time=load.seconds)


def _bytes(transfer: Transfer) -> Mapping[str, float]:
    return {load.link.name: load.num_bytes for load in transfer.loads if load.num_bytes}


def _uses(action: Action, need: Action) -> bool:
    """Whether an action of a cell uses a result that the cell needs; the other one of a pair may."""
    if need.microbatch != action.microbatch:
        return False
    if action.pass_ == "F":
        return need.pass_ == "F" and need.stage == action.stage - 1
    own = need.stage == action.stage
    return own or (action.pass_ in ("B", "I") and need.stage == action.stage + 1)


def chain(*pieces: tuple[str, float | Transfer], of: Action) -> Iterator[Piece]:
    """Pieces of one action of which each waits for the one before."""
    for index, (name, work) in enumerate(pieces):
        yield Piece(
            name,
            work,
            after=(pieces[index - 1][0],) if index else (),
            begins=() if index else (of,),
            ends=(of,) if index == len(pieces) - 1 else (),
        )
