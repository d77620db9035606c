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

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import torch

from piper_runtime.errors import ProgramError
from piper_runtime.home import make_home
from piper_runtime.instruction import Handle, Instruction
from piper_runtime.manifest import Manifest
from piper_runtime.program import LoadedProgram
from piper_runtime.rank import Rank
from piper_runtime.states.state import Bucket

__all__ = ["EntryFacts", "check_calls", "check_entry_point", "record_program"]

Clock = dict[str, int]


@dataclass(slots=True)
class EntryFacts:
    """What the programs of one entry point do, over all coordinates."""

    outputs: dict[str, int] = field(default_factory=dict)
    """The first coordinate that reports each output."""
    updated: set[str] = field(default_factory=set)
    """Buckets that an optimizer steps."""
    accumulated: set[str] = field(default_factory=set)
    # Buckets of whose accumulated gradient a reduction gives ranks their parts.
    scattered: set[str] = field(default_factory=set)
    """Buckets that get a main gradient."""
    stale: dict[str, Instruction] = field(default_factory=dict)
    """The updates after which a compute slot is not written again."""
    trusting: dict[str, Instruction] = field(default_factory=dict)
    """The reads of compute slots that were not written before in the same call."""


def check_entry_point(loaded: LoadedProgram, name: str) -> EntryFacts:
    """Check ``name`` at every coordinate and return its facts; raises ProgramError."""
    manifest, facts = loaded.manifest, EntryFacts()
    for coordinate in range(manifest.mesh.num_coordinates):
        instructions = record_program(loaded, name, manifest.mesh.first_rank(coordinate))
        _check_order(instructions)
        _check_comms(instructions)
        _collect(instructions, coordinate, facts)
        _check_derived(instructions, facts)
    missing = [loss for loss in manifest.losses if loss not in facts.outputs]
    if missing:
        got = sorted(facts.outputs)
        raise ProgramError(f"{name!r} expected to output loss {missing[0]!r}, got outputs {got}")
    return facts


def check_calls(facts: Iterable[EntryFacts]) -> None:
    """Check that no call reads what another one has left stale; raises ProgramError."""
    known = list(facts)
    stale = {name: update for one in known for name, update in one.stale.items()}
    for one in known:
        for name, read in one.trusting.items():
            if name in stale:
                raise ProgramError(
                    f"{read.describe()}: slot compute expected a write before, since "
                    f"{stale[name].place()} of a call before updates the value and leaves it stale"
                )


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
        self.values: dict[str, list[tuple[str, Handle]]] = {}

    def reject_dead(self, user: Instruction, handle: Handle) -> None:
        """Raise ProgramError if ``handle`` was freed or its storage was overwritten."""
        for table, what in ((self.freed, "freed"), (self.overwritten, "overwritten")):
            if handle in table:
                raise _error(user, handle, f"was {what} by {table[handle].place()}")

    def overwritten_by(self, user: Instruction) -> list[Handle]:
        """Return the handles whose storage ``user`` writes to: it makes them invalid."""
        if user.kind == "accumulate":
            return list(user.operands[1:])
        if user.message is not None and user.message.in_place:
            return [user.operands[0]]
        if user.kind not in ("update", "write"):
            return []
        # An update writes to all slots; a slot may be a view of another.
        held = self.values.get(user.label, [])
        return [handle for slot, handle in held if user.slot in ("", slot)]

    def note(self, user: Instruction) -> None:
        """Remember that ``user`` read its operands, and which handles it made invalid."""
        for handle in user.operands:
            self.readers.setdefault(handle, []).append(user)
        gone = set(self.overwritten_by(user))
        self.overwritten.update(dict.fromkeys(gone, user))
        if user.kind in ("update", "write"):
            held = self.values.get(user.label, [])
            self.values[user.label] = [entry for entry in held if entry[1] not in gone]
        slot = user.slot or {"update": "value", "accumulate": "grad"}.get(user.kind)
        if slot is not None and (user.kind != "accumulate" or _keeps_part(user)):
            held = self.values.setdefault(user.label, [])
            held += [(slot, handle) for handle in user.results]


def _keeps_part(accumulate: Instruction) -> bool:
    """Return whether an update writes to a part of a gradient that ranks have only summed."""
    spec = accumulate.rank.home.bucket(accumulate.label).spec
    return bool(spec.shard_axes) and not spec.grad_sharded


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
        for handle in uses.overwritten_by(instruction):
            for reader in uses.readers.get(handle, ()):
                _require_before(instruction, handle, reader, clock, positions)
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
            got = event.place() if isinstance(event, Instruction) else f"a {type(event).__name__}"
            raise ProgramError(
                f"{instruction.describe()}: after expected earlier events, got {got}"
            )
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
    verb = "is not ready" if earlier is handle.producer else "is still in use"
    where = f"{earlier.place()} on stream {earlier.stream}"
    why = f"{verb}: no event orders {where} before it on stream {later.stream}"
    raise _error(later, handle, why)


def _error(user: Instruction, handle: Handle, why: str) -> ProgramError:
    return ProgramError(f"{user.describe()}: operand of {handle.producer.place()} {why}")


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


def _check_derived(instructions: list[Instruction], facts: EntryFacts) -> None:
    """Check that no compute slot is read between the update of its value and its next write."""
    stale: dict[str, Instruction] = {}
    written: set[str] = set()
    for instruction in instructions:
        name, kind = instruction.label, instruction.kind
        if kind == "update" and instruction.rank.home.bucket(name).spec.compute_dtype is not None:
            stale[name] = instruction
        elif kind == "write":
            stale.pop(name, None)
            written.add(name)
        elif kind == "read" and instruction.slot == "compute":
            if name in stale:
                raise ProgramError(
                    f"{instruction.describe()}: slot compute is stale: expected a write after "
                    f"{stale[name].place()}"
                )
            if name not in written:
                facts.trusting.setdefault(name, instruction)
    facts.stale.update(stale)


def _collect(instructions: list[Instruction], coordinate: int, facts: EntryFacts) -> None:
    for instruction in instructions:
        if instruction.kind == "output":
            facts.outputs.setdefault(instruction.label, coordinate)
        elif instruction.kind == "update":
            facts.updated.add(instruction.label)
        elif instruction.kind == "accumulate":
            facts.accumulated.add(instruction.label)
        elif instruction.kind == "reduce_scatter":
            [operand] = instruction.operands
            if operand.producer.kind == "accumulate":
                facts.scattered.add(operand.producer.label)
