"""Streams without a device: who waits for whom is written down, and checked.

    recording   a stream is a name; records and waits go to a log, work happens at once, and groups
                exchange nothing (torch's backend "fake"), so that one process plays any rank
    threads     every stream but compute has a thread, as a device would; groups are gloo's

`check_log` replays the log of a recording: what a stream does next comes behind what it did and
behind the points that it waited for, behind what the host waited for before, and behind nothing
else.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any

import torch
import torch.distributed as dist
from piper_runtime.devices import CpuDevice, Device, Event, Stream
from piper_runtime.failures.counters import Counters
from piper_runtime.failures.hang import Programs
from piper_runtime.instruction import COMPUTE, HOST, Instruction
from piper_runtime.manifest import Manifest
from piper_runtime.mesh import CommSpec
from piper_runtime.program import LoadedProgram
from piper_runtime.transports.streams import StreamTransport
from torch import Tensor
from torch.testing._internal.distributed.fake_pg import FakeStore

NOTHING = -1
ENTRY = "what was issued before the call"


@dataclass(frozen=True)
class Issued:
    """An instruction that was issued, and what it needs: instructions as (stream, number)."""

    stream: str
    number: int
    needs: tuple[tuple[str, int], ...]
    takes_memory: bool
    text: str


@dataclass
class Log:
    """What the host did, in order: records and waits of points, instructions, dead tensors."""

    entries: list[tuple[str, str, Any]] = field(default_factory=list)
    drop: int = NOTHING
    """Which wait is left out on purpose."""
    waits: int = 0
    current: Issued | None = None

    def issue(self) -> None:
        """Note the instruction that the host is at."""
        assert self.current is not None
        self.note("issue", self.current.stream, self.current)

    def note(self, kind: str, stream: str, what: Any) -> None:
        self.entries.append((kind, stream, what))


class RecordedEvent(Event):
    def done(self) -> bool:
        return True

    def nanoseconds_since(self, earlier: Event) -> int:
        return 0


class RecordedStream(Stream):
    def __init__(self, name: str, log: Log) -> None:
        self.name, self._log = name, log

    def entered(self) -> Any:
        return nullcontext()

    def idle(self) -> bool:
        return True

    def run(self, action: Callable[[], None]) -> None:
        self._log.issue()
        action()

    def record(self, *, timed: bool = False) -> Event:
        event = RecordedEvent()
        self._log.note("record", self.name, event)
        return event

    def wait(self, event: Event) -> None:
        if self._log.waits != self._log.drop:
            self._log.note("wait", self.name, event)
        self._log.waits += 1


class RecordingDevice(CpuDevice):
    """A device whose streams are logged; the transport names them."""

    def __init__(self) -> None:
        super().__init__()
        self.log = Log()

    def current_stream(self) -> Stream:
        return RecordedStream(COMPUTE, self.log)

    def stream(self, *, priority: int = 0) -> Stream:
        return RecordedStream(HOST, self.log)

    def synchronize(self) -> None:
        self.log.note("synchronize", COMPUTE, None)


class RecordedTransport(StreamTransport):
    """Plays one rank: messages and sums are what the buffers happen to hold."""

    name = "recorded"

    def __init__(self, rank: int, *, drop: int = NOTHING) -> None:
        self.recording = RecordingDevice()
        self.recording.log.drop = drop
        super().__init__(self.recording, timeout=60.0)
        self.ranks = (rank,)

    def start(self, manifest: Manifest) -> None:
        self._size = manifest.mesh.world_size
        for spec in manifest.comms:
            for members in manifest.mesh.groups(spec):
                if self.ranks[0] in members and len(members) > 1:
                    self._groups[spec.name] = self._new_group(spec, members)

    def guard(self, loaded: LoadedProgram) -> None:
        programs = Programs(loaded)
        self._entry_points = loaded.manifest.entry_points
        self._counters = Counters(programs.streams(self.ranks[0]))
        self._prepare(programs, loaded.manifest)
        self.recording.log.entries.clear()
        self.recording.log.waits = 0

    def gather(self, value: Any) -> list[Any]:
        return [value] * self._size

    def broadcast(self, value: Tensor, *, owner: int) -> Tensor:
        return value

    def close(self) -> None:
        self._groups.clear()

    def submit(self, instruction: Instruction) -> None:
        log, message = self.recording.log, instruction.message
        before = [*instruction.waits, *(operand.producer for operand in instruction.operands)]
        makes = message is not None and not message.in_place and instruction.kind != "send"
        issued = Issued(
            instruction.stream,
            instruction.number,
            tuple((other.stream, other.number) for other in before),
            makes,
            f"{instruction.stream}: {instruction.text()}",
        )
        held = [] if message is None else [*instruction.operands, *instruction.results]
        log.current = issued
        if instruction.stream == COMPUTE:
            instruction.hooks += (self,)
        super().submit(instruction)
        for tensor in {id(h.value): h.value for h in held if isinstance(h.value, Tensor)}.values():
            weakref.finalize(tensor, log.note, "dead", instruction.stream, issued)

    def before(self, instruction: Instruction) -> None:
        """As a hook: compute is about to be executed, its waits are issued."""
        self.recording.log.issue()

    def after(self, instruction: Instruction, value: Any) -> None:
        """As a hook: nothing."""

    def _new_group(self, spec: CommSpec, members: tuple[int, ...]) -> dist.ProcessGroup:
        group: dist.ProcessGroup = dist.new_group(list(members), backend="fake")
        return group

    def _new_stream(self, name: str, spec: CommSpec) -> Stream:
        return RecordedStream(name, self.recording.log)


@contextmanager
def pretended_world(rank: int, size: int) -> Iterator[None]:
    """A world of `size` in which only this process exists."""
    dist.init_process_group("fake", rank=rank, world_size=size, store=FakeStore())
    try:
        yield
    finally:
        dist.destroy_process_group()


def check_log(log: Log) -> list[str]:
    """Say what is wrong with a log: what was not waited for, and what went back too early."""
    clocks: dict[str, dict[str, int]] = {COMPUTE: {ENTRY: 0}}
    points: dict[Any, dict[str, int]] = {}
    wrong = []
    known: dict[str, int] = {}  # to the host
    for kind, stream, what in log.entries:
        clock = clocks.setdefault(stream, {})
        if kind == "issue":
            _join(clock, known)
        if kind == "record":
            points[what] = dict(clock)
        elif kind == "wait":
            _join(clock, points[what])
        elif kind == "synchronize":
            for other in clocks.values():
                _join(clock, other)
        elif kind == "dead":
            if clocks[COMPUTE].get(stream, NOTHING) < what.number:
                wrong.append(f"{what.text}: its tensors went back before compute came behind it")
        else:
            wrong += _check_issue(what, clock, clocks.get(COMPUTE, {}))
            clock[stream] = what.number
            if stream == HOST:
                known = dict(clock)
    return wrong


def _join(clock: dict[str, int], other: dict[str, int]) -> None:
    for name, number in other.items():
        clock[name] = max(number, clock.get(name, NOTHING))


def _check_issue(issued: Issued, clock: dict[str, int], compute: dict[str, int]) -> Iterator[str]:
    last = clock.get(issued.stream, NOTHING)
    if issued.number <= last:
        yield f"{issued.text}: instruction {issued.number} behind {last}"
    for name, number in (*issued.needs, (ENTRY, 0)):
        if clock.get(name, NOTHING) < number:
            yield f"{issued.text}: does not wait for instruction {number} of {name}"
    if issued.takes_memory and clock.get(COMPUTE, NOTHING) < compute.get(COMPUTE, NOTHING):
        yield f"{issued.text}: its buffer may be in use"


# Streams with threads.


class ThreadedEvent(Event):
    def __init__(self) -> None:
        self.passed, self.at = threading.Event(), 0

    def set(self) -> None:
        self.at = time.perf_counter_ns()
        self.passed.set()

    def done(self) -> bool:
        return self.passed.is_set()

    def nanoseconds_since(self, earlier: Event) -> int:
        assert isinstance(earlier, ThreadedEvent)
        return self.at - earlier.at


class HostStream(Stream):
    """Compute: the host does it, and waits where it has to."""

    def entered(self) -> Any:
        return nullcontext()

    def idle(self) -> bool:
        return True

    def record(self, *, timed: bool = False) -> Event:
        event = ThreadedEvent()
        event.set()
        return event

    def wait(self, event: Event) -> None:
        assert isinstance(event, ThreadedEvent)
        event.passed.wait()


class ThreadedStream(Stream):
    """A thread does what is issued, in order; what it raises comes to who asks, as with CUDA."""

    def __init__(self) -> None:
        self._queue: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._tail = ThreadedEvent()
        self._tail.set()
        self._error: BaseException | None = None
        threading.Thread(target=self._work, daemon=True).start()

    def entered(self) -> Any:
        raise AssertionError("what runs on a thread expected run")

    def run(self, action: Callable[[], None]) -> None:
        self._queue.put(action)
        self.record()

    def idle(self) -> bool:
        if self._error is not None:
            raise RuntimeError(f"stream failed: {self._error}")
        return self._tail.done()

    def record(self, *, timed: bool = False) -> Event:
        self._tail = event = ThreadedEvent()
        self._queue.put(event.set)
        return event

    def wait(self, event: Event) -> None:
        assert isinstance(event, ThreadedEvent)
        self._queue.put(lambda: self._pass(event))

    @staticmethod
    def _pass(event: ThreadedEvent) -> None:
        event.passed.wait()

    @torch.inference_mode()  # as the thread that issues
    def _work(self) -> None:
        while True:
            action = self._queue.get()
            try:
                action()
            except Exception as error:  # noqa: BLE001 (kept for who asks)
                self._error = error
                return


class ThreadedDevice(CpuDevice):
    """A CPU with streams that are threads."""

    def stream(self, *, priority: int = 0) -> Stream:
        return ThreadedStream()

    def current_stream(self) -> Stream:
        return HostStream()


class ThreadedTransport(StreamTransport):
    """What `nccl` does, on a CPU, over gloo."""

    name = "threaded"

    def __init__(self, *, timeout: float = 60.0) -> None:
        device: Device = ThreadedDevice()
        super().__init__(device, timeout=timeout)

    def _new_group(self, spec: CommSpec, members: tuple[int, ...]) -> dist.ProcessGroup:
        group: dist.ProcessGroup = dist.new_group(
            list(members), backend="gloo", timeout=self._timeout
        )
        return group

    def _new_stream(self, name: str, spec: CommSpec) -> Stream:
        return ThreadedStream()
