"""Checks of rank programs before anything runs: races, uses after free, communicators, buckets.

A program is straight-line and only enqueues, so calling it with a rank that records gives every
instruction. What an instruction may rely on is what *happens before* it: the earlier instructions
of its stream, the events it waits for, and what happens before those. As a clock, per stream, that
is the index of the last instruction known to be done:

    compute | 0 run F | 1 record e0                           clock of send: {compute: 1}
    pp$0.1  |                     | 0 send x after e0 = e1    so x (compute 0) is ready
    compute |                     | 2 free x after e1         clock of free: {compute: 1, pp$0.1: 0}
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from piper_runtime.errors import ProgramError
from piper_runtime.home import make_home
from piper_runtime.instruction import Handle, Instruction
from piper_runtime.manifest import Manifest
from piper_runtime.program import LoadedProgram
from piper_runtime.rank import Rank
from piper_runtime.state import Bucket

__all__ = ["EntryFacts", "check_entry_point", "record_program"]

Clock = dict[str, int]


@dataclass(slots=True)
class EntryFacts:
    """What the programs of one entry point do, over all coordinates."""

    outputs: dict[str, int] = field(default_factory=dict)
    """The first coordinate that reports each output."""
    updated: set[str] = field(default_factory=set)
    """Buckets that an optimizer steps."""
    accumulated: set[str] = field(default_factory=set)
    """Buckets that get a main gradient."""


def check_entry_point(loaded: LoadedProgram, name: str) -> EntryFacts:
    """Check ``name`` at every coordinate and return its facts; raises ProgramError."""
    manifest, facts = loaded.manifest, EntryFacts()
    for coordinate in range(manifest.mesh.num_coordinates):
        instructions = record_program(loaded, name, manifest.mesh.first_rank(coordinate))
        _check_order(instructions)
        _check_comms(instructions)
        _collect(instructions, coordinate, facts)
    missing = [loss for loss in manifest.losses if loss not in facts.outputs]
    if missing:
        got = sorted(facts.outputs)
        raise ProgramError(f"{name!r} expected to output loss {missing[0]!r}, got outputs {got}")
    return facts


def record_program(loaded: LoadedProgram, name: str, rank: int) -> list[Instruction]:
    """Call the entry point with a rank that only records; nothing is executed."""
    manifest = loaded.manifest
    coordinate = manifest.mesh.coordinate(rank)
    instructions: list[Instruction] = []
    buckets = _empty_buckets(manifest, coordinate)
    home = make_home(loaded, rank, buckets=buckets, device=torch.device("cpu"))
    recorder = Rank(home, inputs=[], submit=instructions.append)
    loaded.entry_point(coordinate, name)(recorder)
    return instructions


def _empty_buckets(manifest: Manifest, coordinate: int) -> dict[str, Bucket]:
    """Return the buckets of a coordinate without data: programs may only name these."""
    nothing = torch.empty(0)
    return {
        spec.name: Bucket(spec, (), nothing)
        for spec in manifest.buckets
        if coordinate in spec.holders
    }


class _Uses:
    """What has been done with each handle so far, in program order."""

    def __init__(self) -> None:
        self.readers: dict[Handle, list[Instruction]] = {}
        self.freed: dict[Handle, Instruction] = {}
        self.overwritten: dict[Handle, Instruction] = {}
        self.values: dict[str, list[Handle]] = {}

    def reject_dead(self, user: Instruction, handle: Handle) -> None:
        """Raise ProgramError if ``handle`` was freed or its storage was overwritten."""
        for table, what in ((self.freed, "freed"), (self.overwritten, "overwritten")):
            if handle in table:
                raise _error(user, handle, f"was {what} by {table[handle].place()}")

    def note(self, user: Instruction) -> None:
        """Remember that ``user`` read its operands, and which handles it made invalid."""
        for handle in user.operands:
            self.readers.setdefault(handle, []).append(user)
        if user.kind == "read":
            self.values.setdefault(user.label, []).extend(user.results)
        if user.kind == "accumulate" and len(user.operands) > 1:
            self.overwritten[user.operands[1]] = user
        if user.message is not None and user.message.in_place:
            self.overwritten[user.operands[0]] = user
        if user.kind == "update":
            self.overwritten.update(dict.fromkeys(self.values.pop(user.label, []), user))


def _check_order(instructions: list[Instruction]) -> None:
    """Check that every operand is ready and alive, and that frees come after all uses."""
    positions: dict[Instruction, int] = {}
    clocks: dict[Instruction, Clock] = {}
    last: dict[str, Instruction] = {}
    uses = _Uses()
    for instruction in instructions:
        clock = _clock(instruction, last.get(instruction.stream), clocks, positions)
        for handle in instruction.operands:
            uses.reject_dead(instruction, handle)
            _require_before(instruction, handle, handle.producer, clock, positions)
        for handle in instruction.freed:
            _check_free(instruction, handle, clock, positions, uses)
        uses.note(instruction)
        previous = last.get(instruction.stream)
        positions[instruction] = 0 if previous is None else positions[previous] + 1
        clocks[instruction] = clock
        last[instruction.stream] = instruction


def _clock(
    instruction: Instruction,
    previous: Instruction | None,
    clocks: Mapping[Instruction, Clock],
    positions: Mapping[Instruction, int],
) -> Clock:
    """Return, per stream, the last instruction that is done before ``instruction`` starts."""
    clock: Clock = {}
    events = instruction.waits if previous is None else (previous, *instruction.waits)
    for event in events:
        if event not in positions:
            raise ProgramError(f"{instruction.describe()}: 'after' expected earlier events")
        for stream, position in clocks[event].items():
            clock[stream] = max(clock.get(stream, -1), position)
        clock[event.stream] = max(clock.get(event.stream, -1), positions[event])
    return clock


def _check_free(
    free: Instruction,
    handle: Handle,
    clock: Clock,
    positions: Mapping[Instruction, int],
    uses: _Uses,
) -> None:
    if handle in uses.freed:
        raise _error(free, handle, f"was freed by {uses.freed[handle].place()}")
    uses.freed[handle] = free
    for user in (handle.producer, *uses.readers.get(handle, ())):
        _require_before(free, handle, user, clock, positions)


def _require_before(
    later: Instruction,
    handle: Handle,
    earlier: Instruction,
    clock: Clock,
    positions: Mapping[Instruction, int],
) -> None:
    """Raise ProgramError unless ``earlier`` happens before ``later``, whose clock is given."""
    if positions[earlier] <= clock.get(earlier.stream, -1):
        return
    verb = "not ready" if earlier is handle.producer else "still in use"
    where = f"{earlier.place()} on stream {earlier.stream}"
    why = f"{verb}: no event orders {where} before it on stream {later.stream}"
    raise _error(later, handle, why)


def _error(user: Instruction, handle: Handle, why: str) -> ProgramError:
    return ProgramError(f"{user.describe()}: operand of {handle.producer.place()} is {why}")


def _check_comms(instructions: list[Instruction]) -> None:
    """Check that every communicator is used on one stream only, so that its order is one."""
    streams: dict[str, Instruction] = {}
    for instruction in instructions:
        message = instruction.message
        if message is None:
            continue
        first = streams.setdefault(message.comm.name, instruction)
        if first.stream != instruction.stream:
            raise ProgramError(
                f"{instruction.describe()}: comm expected on stream {first.stream} as in "
                f"{first.place()}, got {instruction.stream}"
            )
        if instruction.rank.home.index == message.peer:
            raise ProgramError(f"{instruction.describe()}: peer expected another rank, got itself")


def _collect(instructions: list[Instruction], coordinate: int, facts: EntryFacts) -> None:
    for instruction in instructions:
        if instruction.kind == "output":
            facts.outputs.setdefault(instruction.label, coordinate)
        elif instruction.kind == "update":
            facts.updated.add(instruction.label)
        elif instruction.kind == "accumulate":
            facts.accumulated.add(instruction.label)
