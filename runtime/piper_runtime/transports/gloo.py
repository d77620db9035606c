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
up, so two streams never share one. A ``Watchdog`` looks whether this rank goes on and whether the
others live.
"""

from __future__ import annotations

import atexit
import hashlib
import logging
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from datetime import timedelta
from queue import SimpleQueue
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import PrefixStore, Store

from piper_runtime.counters import FIRST_STREAM, Activity, Address, Counters
from piper_runtime.errors import InstructionError, ProgramError, RemoteError, StallError
from piper_runtime.hang import Programs
from piper_runtime.instruction import COMPUTE, Instruction
from piper_runtime.manifest import Manifest
from piper_runtime.program import LoadedProgram
from piper_runtime.transports.base import Transport
from piper_runtime.transports.exchange import PERFORM, as_bytes, check_identity
from piper_runtime.watchdog import Watchdog

__all__ = ["GlooTransport"]

GRACE_SECONDS = 3.0  # how much later than a closed connection a report may come
MARGIN_SECONDS = 60.0  # by how much the watchdog comes before gloo's own timeout
Groups = dict[str, dist.ProcessGroup]


class GlooTransport(Transport):
    """The rank of this process.

    A rank that stands still for ``timeout`` seconds in a step ends all: its report says which rank
    is behind and who waits for whom. When an instruction fails, or a process ends, a report goes to
    the store that all processes share, and every rank raises it instead of waiting for a message
    that will not come. A rank whose main thread cannot raise it ends some seconds later.
    """

    name = "gloo"

    def __init__(self, *, timeout: float = 300.0) -> None:
        """Make an idle transport; ``start`` joins the process group."""
        if not timeout > 0:
            raise ValueError(f"timeout expected seconds above 0, got {timeout}")
        self.device = torch.device("cpu")
        self._limit = timeout
        self._timeout = timedelta(seconds=timeout + MARGIN_SECONDS)
        self._groups: Groups = {}
        self._world: dist.ProcessGroup | None = None
        self._store: Store | None = None
        self._queues: dict[str, SimpleQueue[Instruction | None]] = {}
        self._workers: list[threading.Thread] = []
        self._heads: dict[str, Instruction] = {}
        self._counters = Counters(())
        self._watchdog: Watchdog | None = None
        self._entry_points: tuple[str, ...] = ()
        self._process = -1
        self._changed = threading.Condition()
        self._waiting = 0  # how many threads wait for a change
        self._pending = 0
        self._failure: BaseException | None = None
        self._raised = False  # whether the trainer knows of the failure

    def start(self, manifest: Manifest) -> None:
        """Join the world and make one group per communicator.

        Raises ValueError for another size of the world, ProgramError if ranks run different
        programs.
        """
        mesh = manifest.mesh
        world_size = int(os.environ.get("WORLD_SIZE", "1"))
        mesh.check_world(dist.get_world_size() if dist.is_initialized() else world_size)
        if not dist.is_initialized():
            dist.init_process_group("gloo", timeout=self._timeout)
        rank = dist.get_rank()
        self.ranks = (rank,)
        self._world = dist.new_group(backend="gloo", timeout=self._timeout)
        store = dist.distributed_c10d._get_default_store()
        # A connection of its own: nothing that another user of the store waits for holds it up.
        own = store.clone()  # type: ignore[attr-defined]  # the stub lacks it
        self._store = PrefixStore(f"piper_runtime/{self._world.group_name}", own)
        self._check_program(manifest)
        for spec in manifest.comms:
            for members in mesh.groups(spec):
                if len(members) > 1:
                    self._open(spec.name, members, rank)

    def guard(self, loaded: LoadedProgram) -> None:
        """Start the watchdog, and let it have a say when torchrun ends this process."""
        assert self._store is not None
        rank, programs = self.ranks[0], Programs(loaded)
        self._entry_points = loaded.manifest.entry_points
        self._counters = Counters(programs.streams(rank))
        addresses = self.gather(asdict(self._counters.address()))
        self._watchdog = Watchdog(
            self._store,
            rank=rank,
            programs=programs,
            counters=self._counters,
            addresses=[Address(**address) for address in addresses],
            limit=self._limit,
            fail=self._adopt,
            stopped=lambda: self._raised,
        )
        self._watchdog.start()
        self._process = os.getpid()
        atexit.register(self._end_process)
        if threading.current_thread() is threading.main_thread() and _may_handle_end():
            signal.signal(signal.SIGTERM, self._terminate)

    def begin(self, entry_point: str, *, step: int) -> None:
        """Start a call; raises the failure if there has been one."""
        if self._failure is not None:
            raise self._failure
        self._counters.begin(step=step, entry=self._entry_points.index(entry_point))

    def end(self) -> None:
        """End a call."""
        self._counters.activity = Activity.IDLE

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

    def broadcast(self, value: Tensor, *, owner: int) -> Tensor:
        """Return the value of rank ``owner`` on every process."""
        flat = value.contiguous().clone()
        self._communicate(lambda: dist.broadcast(as_bytes(flat), src=owner, group=self._world))
        return flat

    def gather(self, value: Any) -> list[Any]:
        """Return the pickled values of all processes, in rank order."""
        values: list[Any] = [None] * dist.get_world_size()
        self._communicate(lambda: dist.all_gather_object(values, value, group=self._world))
        return values

    def abort(self, error: BaseException) -> None:
        """Publish ``error`` unless another failure was published before; nothing runs after it."""
        self._adopt(error)
        self._publish(error)
        self._raised = True

    def close(self) -> None:
        """Stop the workers and drop the communicators; the process group of the world stays."""
        self._leave("its trainer was closed")
        if self._failure is None:
            atexit.unregister(self._end_process)
        if signal.getsignal(signal.SIGTERM) == self._terminate:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        for queue in self._queues.values():
            queue.put(None)
        self._queues.clear()
        if self._failure is None:  # else a worker may still be waiting in one
            for group in self._groups.values():
                dist.destroy_process_group(group)
        self._groups.clear()

    # Groups and workers.

    def _open(self, name: str, members: tuple[int, ...], rank: int) -> None:
        """Make the group on every rank; keep it, and send one byte around, where it is ours."""
        group = dist.new_group(list(members), backend="gloo", timeout=self._timeout)
        if rank in members:
            self._groups[name] = group
            dist.all_reduce(torch.zeros(1), group=group)

    def _start_worker(self, stream: str) -> SimpleQueue[Instruction | None]:
        queue: SimpleQueue[Instruction | None] = SimpleQueue()
        self._queues[stream] = queue
        work = threading.Thread(target=self._work, args=(stream, queue), name=stream, daemon=True)
        self._workers.append(work)
        work.start()
        return queue

    @torch.no_grad()
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
        self._wait_for(instruction)
        start = time.perf_counter_ns() if self.observer else 0
        try:
            instruction.execute()
        except InstructionError as error:
            self._fail(instruction, error)
            assert self._failure is not None
            raise self._failure from error
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
        if message.in_place:
            result = values[0].copy_(result)
        message.buffer = None
        instruction.store(result)
        if self.observer:
            self.observer(instruction, start, time.perf_counter_ns())

    # Failures.

    def _fail(self, instruction: Instruction, error: Exception) -> None:
        """Publish the failure of this stream, or adopt another rank's that came first."""
        if error is self._failure:
            return
        failure: RuntimeError = InstructionError(f"{instruction.failure(error)}\n{self._stuck()}")
        failure.__cause__ = error.__cause__ if isinstance(error, InstructionError) else error
        if instruction.message is not None and not isinstance(error, InstructionError):
            failure = self._await_remote_failure() or failure
        self._publish(failure)
        self._adopt(failure)

    def _adopt(self, failure: BaseException) -> None:
        """Let every thread of this rank raise ``failure``, unless it has another one already."""
        with self._changed:
            self._failure = self._failure or failure
            self._changed.notify_all()
        if self._watchdog is not None:
            self._watchdog.failed()

    def _publish(self, error: BaseException) -> None:
        """Let the other ranks know of a failure that is this rank's own."""
        if self._watchdog is None or isinstance(error, (RemoteError, StallError)):
            return
        report = "".join(traceback.format_exception(error))
        self._watchdog.report("failed", f"rank {self.ranks[0]} failed:\n{report}")

    def _communicate(self, action: Callable[[], Any]) -> None:
        """Run a collective of the trainer; its failure is another rank's if that rank reported."""
        before, self._counters.activity = self._counters.activity, Activity.SHARING
        try:
            action()
        except RuntimeError as error:
            failure = self._await_remote_failure() or error
            self._adopt(failure)
            self._raised = True
            raise failure from error
        self._counters.activity = before

    def _await_remote_failure(self) -> RuntimeError | None:
        """Return another rank's report; it may come later than the connection it closed."""
        deadline = time.monotonic() + GRACE_SECONDS
        while self._watchdog is not None:
            failure = self._watchdog.inquire(broken=True)
            if failure is not None or time.monotonic() > deadline:
                return failure
            time.sleep(0.05)
        return None

    def _terminate(self, number: int, frame: FrameType | None) -> None:
        """Raise why torchrun ends this process: another rank failed or vanished; else just end."""
        if self._raised:  # it is on its way out; a second signal ends it
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            return
        failure = self._failure
        is_rank = os.getpid() == self._process  # and not forked from it, such as to load data
        if failure is None and self._watchdog is not None and is_rank:
            failure = self._watchdog.inquire()
        if failure is not None:
            self._adopt(failure)
            self._raised = True
            raise failure
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTERM)

    def _end_process(self) -> None:
        """Leave; after a failure, do not let the interpreter end under threads that hang in gloo.

        It would abort. Other exit handlers that were registered later have run by now.
        """
        self._leave("its process has ended")
        if self._failure is not None and any(worker.is_alive() for worker in self._workers):
            logging.shutdown()
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(1)

    def _leave(self, how: str) -> None:
        """Say to the others that this rank takes part no longer."""
        if self._watchdog is not None and os.getpid() == self._process:
            with suppress(RuntimeError):  # the store may be gone already
                self._watchdog.leave(how)

    def _check_program(self, manifest: Manifest) -> None:
        """Raise ProgramError unless all ranks run one program."""
        mine = hashlib.sha256(repr(manifest).encode()).hexdigest()[:16]
        ranks: dict[str, list[int]] = {}
        for rank, theirs in enumerate(self.gather(mine)):
            ranks.setdefault(theirs, []).append(rank)
        if len(ranks) > 1:
            got = " and ".join(f"{name} on ranks {held}" for name, held in ranks.items())
            raise ProgramError(
                f"ranks expected one program, got {got}: compile it once, and start all ranks from "
                "its folder, or let piper.compile share it"
            )

    def _stuck(self) -> str:
        """Return the instruction at the head of every stream of this rank, for a report."""
        heads = [head for head in list(self._heads.values()) if not head.done]
        lines = [f"  stream {head.stream}: {head.describe()}" for head in heads]
        return "\n".join(["streams that were not done:", *lines])


def _may_handle_end() -> bool:
    """Return whether SIGTERM is handled by nobody, or by an earlier trainer's transport."""
    handler = signal.getsignal(signal.SIGTERM)
    owner = getattr(handler, "__self__", None)
    return handler is signal.SIG_DFL or isinstance(owner, GlooTransport)
