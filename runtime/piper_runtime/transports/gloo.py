"""One process per rank over gloo, launched by torchrun: one worker thread per communicator.

The thread that runs the rank program is the compute stream: it executes compute when it comes to
it, and hands messages and collectives to their workers, with buffers for what they receive.

    program   | run F0 | send x0 | recv x1 | run F1 (waits for the recv) | ...
    pp$0.1             | ... x0 ... |
    pp$1.0                       | ...... x1 ..... |

So nothing is issued while compute waits. What the compiler makes is issued in an order in which
all ranks can go on; a program changed by hand may need a later line to end an earlier one, which
`local` finishes and this transport reports as a stall.

Every communicator is a process group of its own, made in manifest order on every rank and warmed
up, so two streams never share one.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from queue import SimpleQueue

import torch
import torch.distributed as dist

from piper_runtime.errors import InstructionError
from piper_runtime.failures.counters import FIRST_STREAM, Activity
from piper_runtime.instruction import COMPUTE, HOST, Instruction
from piper_runtime.manifest import Manifest
from piper_runtime.mesh import CommSpec
from piper_runtime.transports.exchange import PERFORM, check_identity
from piper_runtime.transports.process import ProcessTransport

__all__ = ["GlooTransport"]


class GlooTransport(ProcessTransport):
    """The rank of this process, on a CPU; see ``ProcessTransport`` for ``timeout``."""

    name = "gloo"

    def __init__(self, *, timeout: float = 300.0) -> None:
        """Make an idle transport; ``start`` joins the process group."""
        super().__init__(torch.device("cpu"), timeout=timeout)
        self._queues: dict[str, SimpleQueue[Instruction | None]] = {}
        self._workers: list[threading.Thread] = []
        self._heads: dict[str, Instruction] = {}
        self._changed = threading.Condition()
        self._waiting = 0  # how many threads wait for a change
        self._pending = 0

    def start(self, manifest: Manifest) -> None:
        """See ``ProcessTransport``; raises ValueError for streams with priority or SMs."""
        self.refuse_stream_options(manifest)
        super().start(manifest)

    def submit(self, instruction: Instruction) -> None:
        """Execute compute; hand communication to its worker. Raises what went wrong anywhere."""
        message = instruction.message
        if message is None:
            self._compute(instruction)
            return
        if instruction.kind == "recv":
            message.buffer = torch.empty(message.shape, dtype=message.dtype)
        queue = self._queues.get(instruction.stream)
        if queue is None:
            queue = self._start_worker(instruction.stream)
        with self._changed:
            self._pending += 1
        queue.put(instruction)

    def drain(self) -> None:
        """Wait for the workers; raises this rank's failure, or another's."""
        self._counters.cells[FIRST_STREAM] += self._counters.cells[FIRST_STREAM] % 2
        self._counters.activity = Activity.DRAINING
        self._wait_until(lambda: not self._pending)

    def close(self) -> None:
        """Stop the workers and drop the communicators."""
        for queue in self._queues.values():
            queue.put(None)
        self._queues.clear()
        super().close()

    # Groups and workers.

    def _open(self, spec: CommSpec, members: tuple[int, ...]) -> None:
        group = dist.new_group(list(members), backend="gloo", timeout=self._timeout)
        if self.ranks[0] in members:
            self._groups[spec.name] = group
            dist.all_reduce(torch.zeros(1), group=group)

    def _start_worker(self, stream: str) -> SimpleQueue[Instruction | None]:
        queue: SimpleQueue[Instruction | None] = SimpleQueue()
        self._queues[stream] = queue
        work = threading.Thread(target=self._work, args=(stream, queue), name=stream, daemon=True)
        self._workers.append(work)
        work.start()
        return queue

    @torch.inference_mode()
    def _work(self, stream: str, queue: SimpleQueue[Instruction | None]) -> None:
        """Execute one stream's instructions in order until one fails."""
        cells, slot = self._counters.cells, self._counters.slots[stream]
        while (instruction := queue.get()) is not None:
            self._heads[stream] = instruction
            cells[slot] = 2 * instruction.number + 1
            try:
                self._wait_for(instruction)
                self._execute(instruction)
            except Exception as error:  # noqa: BLE001 (every failure goes to the trainer)
                self._fail(instruction, error)
                return
            cells[slot] = 2 * instruction.number + 2
            with self._changed:
                self._pending -= 1
                self._changed.notify_all()

    def _compute(self, instruction: Instruction) -> None:
        """Execute an instruction of the compute stream here and now."""
        self._heads[COMPUTE] = instruction
        self._counters.cells[FIRST_STREAM] = 2 * instruction.number + 1
        if instruction.stream == HOST:
            self._counters.cells[self._counters.slots[HOST]] = 2 * instruction.number + 1
        self._wait_for(instruction)
        start = time.perf_counter_ns() if self.observer else 0
        try:
            instruction.execute()
        except InstructionError as error:
            self._fail(instruction, error)
            assert self._failure is not None
            raise self._failure from error
        if instruction.stream == HOST:
            self._counters.cells[self._counters.slots[HOST]] = 2 * instruction.number + 2
        if self.observer:
            self.observer(instruction, start, time.perf_counter_ns())
        # Whoever begins to wait later sees that the instruction is done.
        if self._waiting:
            with self._changed:
                self._changed.notify_all()

    def _wait_for(self, instruction: Instruction) -> None:
        """Block until the instruction's events are done; raises what fails meanwhile."""
        for event in instruction.waits:
            if not event.done:
                self._wait_until(lambda: all(event.done for event in instruction.waits))
                return

    def _wait_until(self, holds: Callable[[], bool]) -> None:
        """Block until a condition holds; raises what fails on this rank or another meanwhile."""
        with self._changed:
            self._waiting += 1
            try:
                while not holds() and self._failure is None:
                    self._changed.wait()
            finally:
                self._waiting -= 1
        if self._failure is not None:
            raise self._failure

    def _execute(self, instruction: Instruction) -> None:
        message = instruction.message
        assert message is not None
        instruction.begin()
        start = time.perf_counter_ns() if self.observer else 0
        values = [operand.get() for operand in instruction.operands]
        group = self._groups.get(message.comm.name)
        if self.identify and group is not None:
            check_identity(instruction, group)
        result = PERFORM[instruction.kind](message, group, *values)
        if message.in_place and result is not values[0]:
            result = values[0].copy_(result)
        message.buffer = None
        instruction.store(result)
        if self.observer:
            self.observer(instruction, start, time.perf_counter_ns())

    # Failures.

    def _adopt(self, failure: BaseException) -> None:
        """Let every thread of this rank raise ``failure``, unless it has another one already."""
        with self._changed:
            super()._adopt(failure)
            self._changed.notify_all()

    def _hangs(self) -> bool:
        return any(worker.is_alive() for worker in self._workers)

    def _stuck(self) -> str:
        heads = [head for head in list(self._heads.values()) if not head.done]
        lines = [f"  stream {head.stream}: {head.describe()}" for head in heads]
        return "\n".join(["streams that were not done:", *lines])
