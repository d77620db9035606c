"""What transports with one process per rank have in common: the world, the watchdog, failures.

The world is a gloo group of all processes, for what the trainer shares between steps. A report of
the first failure lies in the store that all processes share: every rank raises it instead of
waiting for a message that will not come.
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
from abc import abstractmethod
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from datetime import timedelta
from types import FrameType
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import PrefixStore, Store

from piper_runtime.errors import InstructionError, ProgramError, RemoteError, StallError
from piper_runtime.failures.counters import Activity, Address, Counters
from piper_runtime.failures.hang import Programs
from piper_runtime.failures.watchdog import Watchdog
from piper_runtime.instruction import Instruction
from piper_runtime.manifest import Manifest
from piper_runtime.mesh import CommSpec
from piper_runtime.program import LoadedProgram
from piper_runtime.transports.base import Transport
from piper_runtime.transports.exchange import as_bytes

__all__ = ["Groups", "ProcessTransport"]

GRACE_SECONDS = 3.0  # how much later than a closed connection a report may come
MARGIN_SECONDS = 60.0  # by how much the watchdog comes before torch's own timeout
T = TypeVar("T")
Groups = dict[str, dist.ProcessGroup]


class ProcessTransport(Transport):
    """The rank of this process.

    A rank that stands still for ``timeout`` seconds in a step ends all: its report says which rank
    is behind and who waits for whom. When an instruction fails, or a process ends, a report goes to
    the store that all processes share, and every rank raises it instead of waiting for a message
    that will not come. A rank whose main thread cannot raise it ends some seconds later.
    """

    def __init__(self, device: torch.device, *, timeout: float) -> None:
        """Make an idle transport; ``start`` joins the process group."""
        if not timeout > 0:
            raise ValueError(f"timeout expected seconds above 0, got {timeout}")
        self.device = device
        self._limit = timeout
        self._timeout = timedelta(seconds=timeout + MARGIN_SECONDS)
        self._groups: Groups = {}
        self._world: dist.ProcessGroup | None = None
        self._store: Store | None = None
        self._counters = Counters(())
        self._watchdog: Watchdog | None = None
        self._entry_points: tuple[str, ...] = ()
        self._process = -1
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
                    self._open(spec, members)

    def guard(self, loaded: LoadedProgram) -> None:
        """Start the watchdog, and let it have a say when torchrun ends this process."""
        assert self._store is not None
        rank, programs = self.ranks[0], Programs(loaded)
        self._entry_points = loaded.manifest.entry_points
        self._counters = Counters(programs.streams(rank))
        self._prepare(programs, loaded.manifest)
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
            poll=self._poll,
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

    def broadcast(self, value: Tensor, *, owner: int) -> Tensor:
        """Return the value of rank ``owner``, on the CPU, on every process."""
        flat = value.contiguous().clone()
        self._communicate(lambda: dist.broadcast(as_bytes(flat), src=owner, group=self._world))
        return flat

    def gather(self, value: Any) -> list[Any]:
        """Return the pickled values of all processes, in rank order."""
        values: list[Any] = [None] * dist.get_world_size()
        self._communicate(lambda: dist.all_gather_object(values, value, group=self._world))
        return values

    def together(self, action: Callable[[dist.ProcessGroup | None], T]) -> T:
        """Return what ``action`` returns, which communicates over the world.

        It may take any time, but ranks wait for each other no longer than the timeout of the world.
        """
        try:
            return action(self._world)
        except RuntimeError as error:
            failure = self._await_remote_failure() or error
            self._adopt(failure)
            self._raised = True
            raise failure from error

    def abort(self, error: BaseException) -> None:
        """Publish ``error`` unless another failure was published before; nothing runs after it."""
        self._adopt(error)
        self._publish(error)
        self._raised = True

    def close(self) -> None:
        """Drop the communicators; the process group of the world stays."""
        self._leave("its trainer was closed")
        if self._failure is None:
            atexit.unregister(self._end_process)
        if signal.getsignal(signal.SIGTERM) == self._terminate:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        if self._failure is None:  # else somebody may still be waiting in one
            for group in self._groups.values():
                dist.destroy_process_group(group)
        self._groups.clear()

    # What kinds of transports differ in.

    @abstractmethod
    def _open(self, spec: CommSpec, members: tuple[int, ...]) -> None:
        """Make a group, on every rank; keep it under the name, and warm it up, on its members."""

    @abstractmethod
    def _hangs(self) -> bool:
        """Return whether something may hang for ever that keeps the process from its end."""

    @abstractmethod
    def _stuck(self) -> str:
        """Return the instruction at the head of every stream of this rank, for a report."""

    def _prepare(self, programs: Programs, manifest: Manifest) -> None:
        """Get ready to run programs, whose instructions are known now."""
        return

    def _poll(self) -> None:
        """Bring the counters up to date; the watchdog calls it from its thread."""
        return

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
        self._failure = self._failure or failure
        if self._watchdog is not None:
            self._watchdog.failed()

    def _publish(self, error: BaseException) -> None:
        """Let the other ranks know of a failure that is this rank's own."""
        if self._watchdog is None or isinstance(error, (RemoteError, StallError)):
            return
        report = "".join(traceback.format_exception(error))
        self._watchdog.report("failed", f"rank {self.ranks[0]} failed:\n{report}")

    def _communicate(self, action: Callable[[], T]) -> T:
        """Run a collective of the trainer; its failure is another rank's if that rank reported."""
        before, self._counters.activity = self._counters.activity, Activity.SHARING
        result = self.together(lambda _: action())
        self._counters.activity = before
        return result

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
        """Leave; after a failure, do not let the interpreter end under what hangs.

        It would abort. Other exit handlers that were registered later have run by now.
        """
        self._leave("its process has ended")
        if self._failure is not None and self._hangs():
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


def _may_handle_end() -> bool:
    """Return whether SIGTERM is handled by nobody, or by an earlier trainer's transport."""
    handler = signal.getsignal(signal.SIGTERM)
    owner = getattr(handler, "__self__", None)
    return handler is signal.SIG_DFL or isinstance(owner, ProcessTransport)
