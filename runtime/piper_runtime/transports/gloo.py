"""One process per rank over gloo, launched by torchrun: one worker thread per communicator.

The thread that runs the rank program is the compute stream: it executes compute when it comes to
it, and hands messages and collectives to their workers, with buffers for what they receive.

    program   | run F0 | send x0 | recv x1 | run F1 (waits for the recv) | ...
    pp$0.1             | ... x0 ... |
    pp$1.0                       | ...... x1 ..... |

Every communicator is a process group of its own, made in manifest order on every rank and warmed
up, so two streams never share one. Data moves as bytes and sums are taken in rank order, so every
result is bitwise that of ``local``:

    all_reduce = reduce_scatter, all_gather        reduce_scatter = all_to_all, sum in rank order
"""

from __future__ import annotations

import os
import threading
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from queue import SimpleQueue
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import PrefixStore, Store

from piper_runtime.errors import InstructionError, RemoteError
from piper_runtime.instruction import Instruction, Message
from piper_runtime.manifest import Manifest
from piper_runtime.transports.base import Transport, rank_order_sum

__all__ = ["GlooTransport"]

POLL_SECONDS = 0.5
GRACE_SECONDS = 3.0
Groups = dict[str, dist.ProcessGroup]


class GlooTransport(Transport):
    """The rank of this process; ``timeout`` (seconds) bounds every message and collective.

    When an instruction fails, its report goes to the store that all processes share, and every
    rank raises it instead of waiting for a message that will not come.
    """

    name = "gloo"

    def __init__(self, *, timeout: float = 300.0) -> None:
        """Make an idle transport; ``start`` joins the process group."""
        self.device = torch.device("cpu")
        self._timeout = timedelta(seconds=timeout)
        self._groups: Groups = {}
        self._world: dist.ProcessGroup | None = None
        self._store: Store | None = None
        self._queues: dict[str, SimpleQueue[Instruction | None]] = {}
        self._heads: dict[str, Instruction] = {}
        self._changed = threading.Condition()
        self._waiting = 0  # how many threads wait for a change
        self._pending = 0
        self._failure: BaseException | None = None

    def start(self, manifest: Manifest) -> None:
        """Join the world and make one group per communicator; raises ValueError for its size."""
        mesh = manifest.mesh
        world_size = int(os.environ.get("WORLD_SIZE", "1"))
        mesh.check_world(dist.get_world_size() if dist.is_initialized() else world_size)
        if not dist.is_initialized():
            dist.init_process_group("gloo", timeout=self._timeout)
        rank = dist.get_rank()
        self.ranks = (rank,)
        self._world = dist.new_group(backend="gloo", timeout=self._timeout)
        store = dist.distributed_c10d._get_default_store()
        self._store = PrefixStore(f"piper_runtime/{self._world.group_name}", store)
        for spec in manifest.comms:
            for members in mesh.groups(spec):
                if len(members) > 1:
                    self._open(spec.name, members, rank)

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
        """Wait for the workers; raises this rank's failure, or RemoteError with another's."""
        self._wait_until(lambda: not self._pending)

    def broadcast(self, value: Tensor, *, owner: int) -> Tensor:
        """Return the value of rank ``owner`` on every process."""
        flat = value.contiguous().clone()
        self._communicate(lambda: dist.broadcast(_as_bytes(flat), src=owner, group=self._world))
        return flat

    def gather(self, value: Any) -> list[Any]:
        """Return the pickled values of all processes, in rank order."""
        values: list[Any] = [None] * dist.get_world_size()
        self._communicate(lambda: dist.all_gather_object(values, value, group=self._world))
        return values

    def abort(self, error: BaseException) -> None:
        """Publish ``error`` unless another failure was published before; nothing runs after it."""
        self._failure = self._failure or error
        if self._store is None or isinstance(error, RemoteError):
            return
        report = "".join(traceback.format_exception(error))
        text = f"rank {self.ranks[0]} failed:\n{report}"
        self._store.compare_set("report", "", text)

    def close(self) -> None:
        """Stop the workers and drop the communicators; the process group of the world stays."""
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
        work.start()
        return queue

    @torch.no_grad()
    def _work(self, stream: str, queue: SimpleQueue[Instruction | None]) -> None:
        """Execute one stream's instructions in order until one fails."""
        while (instruction := queue.get()) is not None:
            self._heads[stream] = instruction
            try:
                self._wait_for(instruction)
                self._execute(instruction)
            except Exception as error:  # noqa: BLE001 (every failure goes to the trainer)
                self._fail(instruction, error)
                return
            with self._changed:
                self._pending -= 1
                self._changed.notify_all()

    def _compute(self, instruction: Instruction) -> None:
        """Execute an instruction of the compute stream here and now."""
        self._heads[instruction.stream] = instruction
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
            while not holds() and self._failure is None:
                if not self._changed.wait(POLL_SECONDS) and not holds():
                    self._failure = self._failure or self._remote_failure()
                    self._changed.notify_all()
            self._waiting -= 1
        if self._failure is not None:
            raise self._failure

    def _execute(self, instruction: Instruction) -> None:
        message = instruction.message
        assert message is not None
        start = time.perf_counter_ns() if self.observer else 0
        values = [operand.get() for operand in instruction.operands]
        group = self._groups.get(message.comm.name)
        result = _PERFORM[instruction.kind](message, group, *values)
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
        if instruction.message is not None:
            failure = self._await_remote_failure() or failure
        self.abort(failure)
        with self._changed:
            self._failure = self._failure or failure
            self._changed.notify_all()

    def _communicate(self, action: Callable[[], Any]) -> None:
        """Run a collective of the trainer; its failure is another rank's if that rank reported."""
        try:
            action()
        except RuntimeError as error:
            raise self._await_remote_failure() or error from error

    def _await_remote_failure(self) -> RemoteError | None:
        """Return another rank's report; it may come later than the connection it closed."""
        deadline = time.monotonic() + GRACE_SECONDS
        while (failure := self._remote_failure()) is None and time.monotonic() < deadline:
            time.sleep(0.05)
        return failure

    def _remote_failure(self) -> RemoteError | None:
        """Return what another rank has published, if anything."""
        if self._store is None or not self._store.check(["report"]):
            return None
        text = self._store.get("report").decode()
        return None if text.startswith(f"rank {self.ranks[0]} ") else RemoteError(text)

    def _stuck(self) -> str:
        """Return the instruction at the head of every stream of this rank, for a report."""
        heads = [head for head in list(self._heads.values()) if not head.done]
        lines = [f"  stream {head.stream}: {head.describe()}" for head in heads]
        return "\n".join(["streams that were not done:", *lines])


def _as_bytes(tensor: Tensor) -> Tensor:
    """Return a view of a contiguous tensor as bytes: gloo moves these for every dtype."""
    return tensor.view(-1).view(torch.uint8)


def _send(message: Message, group: dist.ProcessGroup | None, value: Tensor) -> None:
    dist.send(_as_bytes(value.contiguous()), dst=message.peer, group=group)


def _recv(message: Message, group: dist.ProcessGroup | None) -> Tensor:
    assert message.buffer is not None
    dist.recv(_as_bytes(message.buffer), src=message.peer, group=group)
    return message.buffer


def _all_reduce(message: Message, group: dist.ProcessGroup | None, value: Tensor) -> Tensor:
    """Sum equal parts in rank order, one per member, then gather the parts."""
    size = len(message.comm.members)
    if group is None:
        return value.clone()
    part = -(-value.numel() // size)
    padded = value.new_zeros(part * size)
    padded[: value.numel()].copy_(value.reshape(-1))
    total = _sum_of_parts(padded, size, group)
    dist.all_gather_single(_as_bytes(padded), _as_bytes(total), group=group)
    return padded[: value.numel()].view(value.shape)


def _reduce_scatter(message: Message, group: dist.ProcessGroup | None, value: Tensor) -> Tensor:
    size, dim = len(message.comm.members), message.dim
    if value.shape[dim] % size:
        raise ValueError(
            f"reduce_scatter expected dim {dim} divisible by {size}, got {value.shape[dim]}"
        )
    if group is None:
        return value.clone()
    parts = torch.stack(value.chunk(size, dim))
    return _sum_of_parts(parts.view(-1), size, group).view(parts.shape[1:])


def _sum_of_parts(flat: Tensor, size: int, group: dist.ProcessGroup) -> Tensor:
    """Return the rank-order sum of this member's part of ``flat``, which has ``size`` parts."""
    received = torch.empty_like(flat)
    dist.all_to_all_single(_as_bytes(received), _as_bytes(flat), group=group)
    return rank_order_sum(received.chunk(size))


def _all_gather(message: Message, group: dist.ProcessGroup | None, value: Tensor) -> Tensor:
    size = len(message.comm.members)
    if group is None:
        return value.clone()
    gathered = value.new_empty((size, *value.shape))
    dist.all_gather_single(_as_bytes(gathered), _as_bytes(value.contiguous()), group=group)
    return torch.cat(list(gathered), message.dim)


def _broadcast(message: Message, group: dist.ProcessGroup | None, value: Tensor) -> Tensor:
    copy = value.clone(memory_format=torch.contiguous_format)
    if group is not None:
        dist.broadcast(_as_bytes(copy), src=message.comm.members[message.root], group=group)
    return copy


_PERFORM: dict[str, Callable[..., Any]] = {
    "send": _send,
    "recv": _recv,
    "all_reduce": _all_reduce,
    "all_gather": _all_gather,
    "reduce_scatter": _reduce_scatter,
    "broadcast": _broadcast,
}
