"""Who waits for whom: from the program counters of all ranks to a report in words.

What a rank's program waits for is followed from stream to stream and from rank to rank until
something is found that waits for nobody. That is what is behind:

    rank 0  compute   run layer.0$B, after the receive      waits for its stream send$1.0
            send$1.0  recv layer.1$B#0 from rank 1          waits for rank 1 to send
    rank 1  compute   run layer.1$B                         runs: rank 1 is behind
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from math import inf

from piper_runtime.checks import record_program
from piper_runtime.failures.counters import (
    ACTIVITY,
    CALL,
    ENTRY,
    FIRST_STREAM,
    STEP,
    Activity,
    head_of,
    is_done,
)
from piper_runtime.instruction import COMPUTE, Instruction
from piper_runtime.program import LoadedProgram

__all__ = ["Blame", "Programs", "Status", "explain", "find_blame"]

MOST_LINES = 16
MOST_LISTED = 8  # ranks of one call
FOR = "{for}"  # where the seconds go in what a rank does


@dataclass(frozen=True, slots=True)
class Status:
    """What is known of one rank: its counters, and for how many seconds each has not changed.

    ``gone`` says how its process ended, ``note`` what else is odd. Without cells nothing is known.
    """

    cells: Sequence[int] = ()
    ages: Sequence[float] = ()
    gone: str = ""
    note: str = ""

    @property
    def activity(self) -> Activity:
        """What the thread that runs the rank program does."""
        return Activity(self.cells[ACTIVITY])


class Programs:
    """The instructions of every rank by entry point, recorded when they are asked for."""

    def __init__(self, loaded: LoadedProgram) -> None:
        """Take the modules of a program."""
        self._loaded = loaded
        self.mesh = loaded.manifest.mesh
        self.entry_points = loaded.manifest.entry_points
        self._known: dict[tuple[int, str], list[Instruction]] = {}

    def instructions(self, rank: int, entry: str) -> list[Instruction]:
        """Return the instructions of a rank in program order."""
        key = (rank, entry)
        if key not in self._known:
            self._known[key] = record_program(self._loaded, entry, rank)
        return self._known[key]

    def streams(self, rank: int) -> set[str]:
        """Return the streams that a rank has."""
        return {
            instruction.stream
            for entry in self.entry_points
            for instruction in self.instructions(rank, entry)
        }


@dataclass(frozen=True, slots=True)
class Blame:
    """The end of the search: a rank, what it does in words, and for how many seconds, or for ever.

    ``instruction`` is where it is, ``others`` are the ends of it on other ranks if all have come to
    it. ``chain`` are the ranks that were followed to it, the first being the one that was asked
    about, each with its instruction that waits for the next.
    """

    rank: int
    what: str
    seconds: float
    instruction: Instruction | None
    chain: Sequence[tuple[int, Instruction | None]]
    others: Sequence[Instruction] = ()


class _Search:
    """Follows what one rank waits for."""

    def __init__(self, programs: Programs, statuses: Mapping[int, Status]) -> None:
        self._programs, self._statuses = programs, statuses
        self._chain: list[tuple[int, Instruction | None]] = []
        self._seen: set[tuple[int, str]] = set()

    def program(self, rank: int) -> Blame:
        """Follow the thread that runs the program of a rank."""
        status = self._statuses[rank]
        if status.gone:
            return self._ended(rank, status.gone)
        if not status.cells:
            return self._end(rank, "has not said where it is", None, inf)
        if not self._enter(rank, ""):
            return self._circle(rank)
        match status.activity:
            case Activity.IDLE:
                what = f"has been between two calls{FOR}, behind step {status.cells[STEP]}"
                return self._end(rank, what, None, status.ages[ACTIVITY])
            case Activity.SHARING:
                return self._meeting(rank)
            case Activity.DRAINING:
                return self._draining(rank)
            case _:
                return self._issuing(rank)

    def _issuing(self, rank: int) -> Blame:
        head = self._head(rank, COMPUTE)
        if head is None:
            age = self._statuses[rank].ages[ACTIVITY]
            return self._end(rank, f"has been in its program{FOR}, before any compute", None, age)
        late = self._late(head)
        if late is not None:
            return self._stream(rank, late)
        return self._end(rank, f"has been running{FOR}", head, self._age(rank, COMPUTE))

    def _draining(self, rank: int) -> Blame:
        """Follow the oldest instruction that is not done."""
        pending = [
            instruction
            for instruction in self._instructions(rank)
            if instruction.message is not None and not self._is_done(instruction)
        ]
        if not pending:
            age = self._statuses[rank].ages[ACTIVITY]
            return self._end(rank, f"has been through with its program{FOR}", None, age)
        return self._stream(rank, pending[0])

    def _meeting(self, rank: int) -> Blame:
        """Follow the first rank that does not share what all share."""
        here = self._statuses[rank]
        for other, status in self._statuses.items():
            there = bool(status.cells) and not status.gone
            if not there or status.activity is not Activity.SHARING:
                self._chain.append((rank, None))
                return self.program(other)
        what = f"has been sharing values with all ranks{FOR}"
        return self._end(rank, what, None, here.ages[ACTIVITY])

    def _stream(self, rank: int, wanted: Instruction) -> Blame:
        """Follow the stream of a communication that is not done, at a rank that has issued it."""
        if not self._enter(rank, wanted.stream):
            return self._circle(rank)
        head = self._head(rank, wanted.stream)
        if head is None or head.message is None:
            return self.program(rank)
        late = self._late(head)
        if late is not None:
            return self.program(rank) if late.message is None else self._stream(rank, late)
        others = []
        for member, theirs in self._members(head):
            status = self._statuses[member]
            if not status.cells or status.gone or theirs is None:
                self._chain.append((rank, head))
                return self.program(member)
            cell = self._cell(theirs)
            if not is_done(cell, theirs.number) and head_of(cell) != theirs.number:
                self._chain.append((rank, head))
                return self._absent(member, theirs)
            others.append(theirs)
        what = f"has been exchanging data{FOR}, and so have all others that take part"
        return replace(self._end(rank, what, head, self._age(rank, head.stream)), others=others)

    def _absent(self, rank: int, wanted: Instruction) -> Blame:
        """Follow a rank whose stream has not come to ``wanted``."""
        head = self._head(rank, wanted.stream)
        return self.program(rank) if head is None else self._stream(rank, head)

    # What the counters say.

    def _instructions(self, rank: int) -> list[Instruction]:
        """Return the program of the entry point that a rank is in or was in last."""
        cells = self._statuses[rank].cells
        if not cells or not cells[CALL]:
            return []
        return self._programs.instructions(rank, self._programs.entry_points[cells[ENTRY]])

    def _cell(self, instruction: Instruction) -> int:
        """Return the cell of an instruction's stream."""
        return self._cell_of(instruction.rank.home.index, instruction.stream)

    def _cell_of(self, rank: int, stream: str) -> int:
        return self._statuses[rank].cells[self._slot(rank, stream)]

    def _slot(self, rank: int, stream: str) -> int:
        names = [COMPUTE, *sorted(self._programs.streams(rank) - {COMPUTE})]
        return FIRST_STREAM + names.index(stream)

    def _age(self, rank: int, stream: str) -> float:
        return self._statuses[rank].ages[self._slot(rank, stream)]

    def _head(self, rank: int, stream: str) -> Instruction | None:
        number, known = head_of(self._cell_of(rank, stream)), self._instructions(rank)
        # A rank that goes on while it is read may be seen between two calls.
        return known[number] if number is not None and number < len(known) else None

    def _ended(self, rank: int, how: str) -> Blame:
        """Return where a process was when it ended: its last compute, and messages under way."""
        status = self._statuses[rank]
        if not status.cells or status.activity is Activity.IDLE:
            return self._end(rank, how, None, inf)
        streams = sorted(self._programs.streams(rank) - {COMPUTE})
        heads = [head for stream in streams if (head := self._head(rank, stream)) is not None]
        return replace(self._end(rank, how, self._head(rank, COMPUTE), inf), others=heads)

    def _is_done(self, event: Instruction) -> bool:
        return is_done(self._cell(event), event.number)

    def _late(self, instruction: Instruction) -> Instruction | None:
        """Return the first event that an instruction waits for."""
        return next((event for event in instruction.waits if not self._is_done(event)), None)

    def _members(self, head: Instruction) -> Iterator[tuple[int, Instruction | None]]:
        """Yield the other ranks of a communication, each with its own instruction of it.

        Both ends of a communicator issue the same in one order. A rank that is not in the same call
        has none.
        """
        message, rank = head.message, head.rank.home.index
        assert message is not None
        members = message.comm.members if message.peer < 0 else (message.peer,)
        index = _of_comm(self._instructions(rank), message.comm.name).index(head)
        here = self._statuses[rank].cells
        for member in members:
            cells = self._statuses[member].cells
            together = bool(cells) and [*cells[:ACTIVITY]] == [*here[:ACTIVITY]]
            theirs = _of_comm(self._instructions(member), message.comm.name) if together else []
            if member != rank:
                yield member, theirs[index] if index < len(theirs) else None

    # The end.

    def _enter(self, rank: int, stream: str) -> bool:
        """Note that a stream is followed; returns whether it was not before."""
        key = (rank, stream)
        known = key in self._seen
        self._seen.add(key)
        return not known

    def _circle(self, rank: int) -> Blame:
        ranks = list(dict.fromkeys(rank for rank, _ in self._chain))
        circle = ranks[ranks.index(rank) :] if rank in ranks else [rank]
        names = ", ".join(map(str, circle))
        return self._end(rank, f"waits in a circle of ranks {names}", None, inf)

    def _end(self, rank: int, what: str, instruction: Instruction | None, age: float) -> Blame:
        return Blame(rank, what, age, instruction, tuple(self._chain))


def find_blame(programs: Programs, statuses: Mapping[int, Status], rank: int) -> Blame:
    """Follow what ``rank`` waits for to the rank that is behind."""
    return _Search(programs, statuses).program(rank)


def explain(programs: Programs, statuses: Mapping[int, Status], blame: Blame) -> str:
    """Return the report: who is behind and where, and for whom each other rank waits there.

    It begins with what ranks do if they have not made the same calls.
    """
    name, status = programs.mesh.describe(blame.rank), statuses[blame.rank]
    what = blame.what.replace(FOR, f" for {blame.seconds:.1f} s")
    head = f"{name} {what}" if status.gone else f"{name} is behind: it {what}"
    if status.gone and status.cells:
        where = "behind" if status.activity is Activity.IDLE else "in"
        head += f", {where} {_call_of(programs, status)}"
    head += f" ({status.note})" if status.note else ""
    lines = [] if status.gone else _different_calls(programs, statuses)
    lines += [head, *_where(blame.instruction)]
    for other in blame.others:
        lines += _where(other)
    waiting = (line for rank in statuses if (line := _waiting(programs, statuses, rank, blame)))
    lines += islice(waiting, MOST_LINES)
    lines += ["  and so do others"] if next(waiting, None) else []
    return "\n".join(lines)


def _different_calls(programs: Programs, statuses: Mapping[int, Status]) -> list[str]:
    """Return a line that says who has called what last, if two have called different things there
    after as many calls before.
    """
    calls: dict[int, dict[str, list[int]]] = {}
    for rank, status in statuses.items():
        if status.cells and status.cells[CALL] and not status.gone:
            found = calls.setdefault(status.cells[CALL], {})
            found.setdefault(_call_of(programs, status), []).append(rank)
    if all(len(found) == 1 for found in calls.values()):
        return []
    told = [f"{what} on {_listed(rs)}" for found in calls.values() for what, rs in found.items()]
    right = "every process must call the same entry points in the same order"
    return [f"ranks have not made the same calls: {'; '.join(told)}: {right}"]


def _call_of(programs: Programs, status: Status) -> str:
    """Return in words which call a rank is in, or was in last."""
    return f"step {status.cells[STEP]} ({programs.entry_points[status.cells[ENTRY]]})"


def _listed(ranks: Sequence[int]) -> str:
    """Return ranks in words, as many as fit."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    more = f" and {len(ranks) - MOST_LISTED} more" if len(ranks) > MOST_LISTED else ""
    return f"ranks {', '.join(map(str, ranks[:MOST_LISTED]))}{more}"


def _waiting(
    programs: Programs, statuses: Mapping[int, Status], rank: int, blame: Blame
) -> str | None:
    """Return in words for whom a rank waits, if it waits for another one."""
    found = find_blame(programs, statuses, rank)
    if rank == blame.rank or not found.chain:
        return None
    _, head = found.chain[0]
    last = found.chain[1][0] if len(found.chain) > 1 else found.rank
    return f"  {programs.mesh.describe(rank)} waits for rank {last}{_at(head)}"


def _where(instruction: Instruction | None) -> list[str]:
    if instruction is None:
        return []
    origin = instruction.origin()
    at = f"  at instruction {instruction.number} of {instruction.describe()}"
    return [at, f"     from {origin}"] if origin else [at]


def _at(instruction: Instruction | None) -> str:
    if instruction is None:
        return ", to share values behind the step"
    message, origin = instruction.message, instruction.origin()
    assert message is not None
    label = f" of {message.label}" if message.label else ""
    place = f": {instruction.kind}{label}, instruction {instruction.number}, {instruction.place()}"
    return f"{place}, from {origin}" if origin else place


def _of_comm(instructions: Sequence[Instruction], comm: str) -> list[Instruction]:
    return [
        instruction
        for instruction in instructions
        if instruction.message is not None and instruction.message.comm.name == comm
    ]
