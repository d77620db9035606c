"""One process per rank on a device with streams: the host issues, the device executes.

The host calls the rank program once, in order, and issues each instruction to its stream: waits for
the points of other streams that it needs, the work itself, and a point of its own if somebody may
wait for it. It does not wait for the device before ``drain``, but for a host_wait.

    host     | F0 | record | send x0 | recv x1 | F1 | ... | drain
    compute  | F0 ........... |                  wait | F1 ...
    pp$0.1       wait         | send x0 ... |
    pp$1.0                wait | recv x1 ......... |

Compute is the stream that is current when a call begins; every other named stream is one of its
own. A host_wait copies on a stream of its own, behind what made its operands and nothing else, and
the host goes on when that is done. All memory comes from compute. So a stream that fills a new buffer first waits for compute as
it is when the buffer is taken, for until then somebody else may use its bytes; and nothing that a
stream uses goes back before compute has waited for that stream.
"""

from __future__ import annotations

import threading
import time
from abc import abstractmethod
from contextlib import suppress

import torch
import torch.distributed as dist

from piper_runtime.devices import Device, Event, Stream
from piper_runtime.errors import ProgramError
from piper_runtime.failures.counters import FIRST_STREAM, Activity
from piper_runtime.failures.hang import Programs
from piper_runtime.instruction import COMPUTE, HOST, Instruction
from piper_runtime.manifest import Manifest
from piper_runtime.mesh import CommSpec
from piper_runtime.transports.lanes import NOTHING, Lane, Lanes
from piper_runtime.transports.process import ProcessTransport
from piper_runtime.transports.stream_exchange import exchange, pass_message

__all__ = ["StreamTransport"]

POLL_SECONDS = 2e-5
Ends = tuple[str, int, int]  # a communicator, who sends and who receives


class StreamTransport(ProcessTransport):
    """The rank of this process, on a device with streams; see ``ProcessTransport``.

    An observer is told behind the call when the device began and ended, by this process's clock
    and to some tens of microseconds.
    """

    def __init__(self, device: Device, *, timeout: float) -> None:
        """Make an idle transport; ``start`` joins the process group."""
        super().__init__(device.device, timeout=timeout)
        self._device = device
        self._compute = Lane(COMPUTE, device.current_stream(), FIRST_STREAM)
        self._lanes = Lanes(self._compute)
        self._issuing: Instruction | None = None
        self._moments: list[tuple[Instruction, Event, Event]] = []
        self._origin: tuple[Event, int] | None = None
        self._looking = threading.Lock()  # one thread at a time asks how far the lanes are

    def begin(self, entry_point: str, *, step: int) -> None:
        """Start a call; raises the failure if there has been one, ValueError in check mode."""
        if self.identify:
            raise ValueError(
                f"check expected the transport local or gloo, whose values are there when an "
                f"instruction is over, got {self.name}"
            )
        super().begin(entry_point, step=step)
        with self._looking:
            self._lanes.clear()
        self._moments.clear()
        self._compute.stream = self._device.current_stream()
        self._origin = self._now() if self.observer is not None else None

    def submit(self, instruction: Instruction) -> None:
        """Issue an instruction; raises what went wrong anywhere."""
        if self._failure is not None:
            raise self._failure
        self._issuing = instruction
        # Until the device is asked; it stays so if this process is killed here.
        self._counters.cells[FIRST_STREAM] = 2 * instruction.number + 1
        try:
            if instruction.stream == HOST:
                self._issue_host(instruction)
            elif instruction.message is None:
                self._issue_compute(instruction)
            else:
                self._issue_message(instruction)
        except Exception as error:
            self._fail(instruction, error)
            if error is self._failure:
                raise
            assert self._failure is not None
            raise self._failure from error

    def drain(self) -> None:
        """Wait for the device; raises this rank's failure, or another's."""
        self._issuing = None
        with self._looking:
            head = self._lanes.oldest()
        try:
            while self._failure is None and (head := self._look()) is not None:
                if not self._compute.issued:
                    self._counters.activity = Activity.DRAINING
                time.sleep(POLL_SECONDS)
            if self._failure is None:
                self._device.synchronize()
        except RuntimeError as error:
            if head is None:
                raise
            self._fail(head, error)
        if self._failure is not None:
            raise self._failure
        self._counters.activity = Activity.DRAINING
        self._tell()
        with self._looking:
            self._lanes.clear()

    # What kinds of transports differ in.

    @abstractmethod
    def _new_group(self, spec: CommSpec, members: tuple[int, ...]) -> dist.ProcessGroup:
        """Make a group, on every rank, which is connected on its members."""

    @abstractmethod
    def _new_stream(self, name: str, spec: CommSpec) -> Stream:
        """Make the stream of a name, on which a communicator is used."""

    # Groups and lanes.

    def _open(self, spec: CommSpec, members: tuple[int, ...]) -> None:
        group = self._new_group(spec, members)
        if self.ranks[0] in members:
            self._groups[spec.name] = group
            dist.all_reduce(self._ones(), group=group)
            self._device.synchronize()

    def _prepare(self, programs: Programs, manifest: Manifest) -> None:
        """Make a lane per stream, and let messages connect their ends.

        Ends connect when the first message passes, and the hosts of both wait for it. So all ranks
        do this in one order before they run, each message with the rank that it meets.
        """
        rank = self.ranks[0]
        found = [i for entry in programs.entry_points for i in programs.instructions(rank, entry)]
        for name, spec in _specs_of_streams(found, manifest).items():
            slot = self._counters.slots[name]
            self._lanes.by_name[name] = Lane(name, self._new_stream(name, spec), slot)
        if any(instruction.stream == HOST for instruction in found):
            slot = self._counters.slots[HOST]
            self._lanes.by_name[HOST] = Lane(HOST, self._device.stream(), slot)
        order = [spec.name for spec in manifest.comms]
        messages = {_ends(i) for i in found if i.kind in ("send", "recv")}
        for comm, source, target in sorted(messages, key=lambda m: (order.index(m[0]), *m[1:])):
            kind, peer = ("send", target) if rank == source else ("recv", source)
            pass_message(kind, self._ones(), peer=peer, group=self._groups[comm])
            self._device.synchronize()

    def _ones(self) -> torch.Tensor:
        return torch.ones(1, device=self.device)

    # Issuing.

    def _issue_compute(self, instruction: Instruction) -> None:
        lane = self._compute
        if self._order(lane, instruction):
            self._lanes.release()
        start = lane.stream.record(timed=True) if self.observer is not None else None
        instruction.execute()
        if start is not None:
            self._moments.append((instruction, start, lane.stream.record(timed=True)))
        lane.issue(instruction)
        if instruction.kind == "record":
            self._lanes.mark(lane)

    def _issue_host(self, instruction: Instruction) -> None:
        """Copy what the host waits for, and wait; compute goes on meanwhile."""
        lane = self._lanes.by_name[HOST]
        self._order(lane, instruction)
        instruction.begin()
        values = [operand.get() for operand in instruction.operands]
        copies = [self._device.empty_on_host(tuple(v.shape), v.dtype) for v in values]
        start = lane.stream.record(timed=True) if self.observer is not None else None

        def copy() -> None:
            for value, to in zip(values, copies, strict=True):
                to.copy_(value, non_blocking=True)

        lane.stream.run(copy)
        if start is not None:
            self._moments.append((instruction, start, lane.stream.record(timed=True)))
        lane.issue(instruction)
        event = self._lanes.mark(lane).event
        while not event.done():
            if self._failure is not None:
                raise self._failure
            time.sleep(POLL_SECONDS)
        assert instruction.thunk is not None
        instruction.store(instruction.thunk(*copies))

    def _issue_message(self, instruction: Instruction) -> None:
        message, lane = instruction.message, self._lanes.by_name[instruction.stream]
        assert message is not None
        values = tuple(operand.get() for operand in instruction.operands)
        self._order(lane, instruction)
        instruction.begin()
        group = self._groups.get(message.comm.name)
        work = exchange(instruction.kind, message, group, values, device=self._device)
        if work.buffers or COMPUTE not in lane.clock:
            self._lanes.follow_all(lane, self._compute)
        start = lane.stream.record(timed=True) if self.observer is not None else None
        lane.stream.run(work.action)
        if start is not None:
            self._moments.append((instruction, start, lane.stream.record(timed=True)))
        tensors = [value for value in values if isinstance(value, torch.Tensor)]
        lane.keep(instruction.number, (*tensors, *work.buffers))
        lane.issue(instruction)
        self._lanes.mark(lane)
        instruction.store(work.result)

    def _order(self, lane: Lane, instruction: Instruction) -> bool:
        """Let a lane wait for what an instruction needs; return whether it has to."""
        makers = [operand.producer for operand in instruction.operands]
        # The host has seen a host_wait through before it issues anything else.
        needed = [before for before in (*instruction.waits, *makers) if before.stream != HOST]
        # The last one of a stream comes behind all others of it.
        waited = False
        for before in sorted(needed, key=lambda other: -other.number):
            waited |= self._lanes.follow(lane, before)
        return waited

    # How far the device is.

    def _look(self) -> Instruction | None:
        """Bring the counters up to date; return the first instruction that is not done."""
        with self._looking:
            heads = [(lane, lane.head()) for lane in self._lanes.by_name.values()]
            for lane, head in heads:
                self._count(lane, head)
        return min((head for _, head in heads if head), key=lambda i: i.number, default=None)

    def _count(self, lane: Lane, head: Instruction | None) -> None:
        """Set the counter of a lane, whose head is known; a lane that waits for the host has none.

        Then compute is where the host is, also if that is at a message, as it will do what follows.
        """
        here, number, running = self._issuing, lane.last, 0
        if head is not None:
            number, running = head.number, 1
        elif here is not None and lane is self._compute:
            number, running = here.number, 1
        if number != NOTHING:
            self._counters.cells[lane.slot] = 2 * number + 2 - running

    def _poll(self) -> None:
        with suppress(RuntimeError):  # the thread that runs the program finds out, too
            self._look()

    def _now(self) -> tuple[Event, int]:
        """Return a point of the compute stream and when it was passed, by this process's clock."""
        self._device.synchronize()
        event = self._compute.stream.record(timed=True)
        self._device.synchronize()
        return event, time.perf_counter_ns()

    def _tell(self) -> None:
        """Tell the observer when the device began and ended."""
        if self.observer is None or self._origin is None:
            return
        event, at = self._origin
        for instruction, start, end in self._moments:
            began, ended = start.nanoseconds_since(event), end.nanoseconds_since(event)
            self.observer(instruction, at + began, at + ended)
        self._moments.clear()

    # Failures.

    def _hangs(self) -> bool:
        try:
            return not all(lane.stream.idle() for lane in self._lanes.by_name.values())
        except RuntimeError:
            return True

    def _stuck(self) -> str:
        self._poll()
        with self._looking:
            heads = [lane.issued[0] for lane in self._lanes.by_name.values() if lane.issued]
        lines = [f"  stream {head.stream}: {head.describe()}" for head in heads]
        return "\n".join(["streams that were not done:", *lines])


def _ends(instruction: Instruction) -> Ends:
    message, rank = instruction.message, instruction.rank.home.index
    assert message is not None
    if instruction.kind == "send":
        return message.comm.name, rank, message.peer
    return message.comm.name, message.peer, rank


def _specs_of_streams(instructions: list[Instruction], manifest: Manifest) -> dict[str, CommSpec]:
    """Return the communicator that says how each stream is to be; raises ProgramError for two."""
    specs = {spec.name: spec for spec in manifest.comms}
    found: dict[str, CommSpec] = {}
    for instruction in instructions:
        if instruction.message is None:
            if instruction.stream not in (COMPUTE, HOST):
                raise ProgramError(
                    f"{instruction.describe()} expected stream {COMPUTE!r}, "
                    f"got {instruction.stream!r}"
                )
            continue
        spec = specs[instruction.message.comm.name]
        first = found.setdefault(instruction.stream, spec)
        if (first.priority, first.sms) != (spec.priority, spec.sms):
            raise ProgramError(
                f"stream {instruction.stream!r} expected communicators of one priority and SM "
                f"budget, got {first.name!r} and {spec.name!r}"
            )
    return found
