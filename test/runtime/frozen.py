"""Processes in which one instruction never ends: how far all others come, as program counters.

host    issues in program order; executes compute and host_wait itself, waiting for their events
stream  takes what was issued to it in order; a communication needs the events of all members
"""

from __future__ import annotations

from collections import deque

from piper_runtime.failures.counters import ACTIVITY, FIRST_STREAM, Activity
from piper_runtime.failures.hang import Programs, Status
from piper_runtime.instruction import COMPUTE, HOST, Instruction

Meeting = tuple[str, tuple[int, ...], int]


class Machine:
    """All ranks of a program in a call of ``train``, with an instruction that does not end."""

    def __init__(self, programs: Programs, frozen: Instruction, *, call: int = 1) -> None:
        """Run until nothing can go on."""
        self._frozen = frozen
        self._done: set[Instruction] = set()
        self._ranks = range(programs.mesh.world_size)
        self._programs = {rank: programs.instructions(rank, "train") for rank in self._ranks}
        self._next = dict.fromkeys(self._ranks, 0)
        self._queues: dict[tuple[int, str], deque[Instruction]] = {}
        self._meeting = {i: key for rank in self._ranks for i, key in self._meetings(rank)}
        streams = {rank: sorted(programs.streams(rank) - {COMPUTE}) for rank in self._ranks}
        self._slots = {
            rank: {name: FIRST_STREAM + i for i, name in enumerate([COMPUTE, *names])}
            for rank, names in streams.items()
        }
        self._cells = {
            rank: [call, 1, 0, Activity.ISSUING, *[0] * (1 + len(names))]
            for rank, names in streams.items()
        }
        while any([self._issue(rank) for rank in self._ranks] + [self._communicate()]):
            pass

    def statuses(self, *, age: float = 5.0) -> dict[int, Status]:
        """What the watchdog of a rank would know: nothing has moved for ``age`` seconds."""
        return {rank: Status(c, [age] * len(c)) for rank, c in self._cells.items()}

    def waits(self, rank: int) -> bool:
        """Whether a rank has not come to its end."""
        return any(i not in self._done for i in self._programs[rank])

    def _issue(self, rank: int) -> bool:
        program, moved = self._programs[rank], False
        while self._next[rank] < len(program):
            instruction = program[self._next[rank]]
            if instruction.message is None:
                self._mark(instruction, 1)
                if instruction.stream == HOST:  # compute is where the host is
                    self._cells[rank][FIRST_STREAM] = 2 * instruction.number + 1
                if instruction is self._frozen or not self._awaited(instruction):
                    return moved
                self._done.add(instruction)
                if instruction.stream == HOST:
                    self._mark(instruction, 2)
            else:
                self._queues.setdefault((rank, instruction.stream), deque()).append(instruction)
            self._next[rank] += 1
            moved = True
        cells = self._cells[rank]
        cells[FIRST_STREAM] += cells[FIRST_STREAM] % 2
        cells[ACTIVITY] = Activity.DRAINING
        return moved

    def _communicate(self) -> bool:
        """Perform what all members have come to; returns whether there was anything."""
        heads = [queue[0] for queue in self._queues.values() if queue]
        for head in heads:
            self._mark(head, 1)
        ready: dict[Meeting, list[Instruction]] = {}
        for head in heads:
            if head is not self._frozen and self._awaited(head):
                ready.setdefault(self._meeting[head], []).append(head)
        complete = [met for met in ready.values() if len(met) == self._size(met[0])]
        for head in (head for met in complete for head in met):
            self._queues[head.rank.home.index, head.stream].popleft()
            self._done.add(head)
            self._mark(head, 2)
        return bool(complete)

    def _awaited(self, instruction: Instruction) -> bool:
        return all(event in self._done for event in instruction.waits)

    def _mark(self, instruction: Instruction, offset: int) -> None:
        rank = instruction.rank.home.index
        slot = self._slots[rank][instruction.stream]
        self._cells[rank][slot] = 2 * instruction.number + offset

    def _meetings(self, rank: int) -> list[tuple[Instruction, Meeting]]:
        """The communications of a rank, each with what its members have in common."""
        counts: dict[tuple[str, tuple[int, ...]], int] = {}
        found = []
        for instruction in self._programs[rank]:
            if instruction.message is None:
                continue
            members = instruction.message.comm.members
            if instruction.message.peer >= 0:
                members = tuple(sorted((rank, instruction.message.peer)))
            key = (instruction.message.comm.name, members)
            counts[key] = counts.get(key, 0) + 1
            found.append((instruction, (*key, counts[key])))
        return found

    def _size(self, head: Instruction) -> int:
        return len(self._meeting[head][1])
