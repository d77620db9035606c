"""All ranks in one process and one thread: the abstract machine, executed literally.

Each (rank, stream) is a FIFO. A communication instruction arrives when it is at the head of its
queue and its events are done; it is performed when all members have arrived (capacity 0).

    rank 0  compute  | run F0 | record | run F1 | ...        the heads that can go on are executed,
            pp$0.1   | send x0 ------.                       queue by queue, until none is left;
    rank 1  pp$0.1   | recv x0 <-----'                       if queues are then not empty, the
            compute  | run F0 (waits for recv x0) | ...      program has a deadlock
"""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from piper_runtime.errors import DeadlockError, InstructionError
from piper_runtime.instruction import COMPUTE, HOST, Handle, Instruction, Message
from piper_runtime.manifest import Manifest
from piper_runtime.transports.base import (
    Transport,
    check_gathered,
    rank_order_sum,
    rows_of,
    scattered,
)

__all__ = ["LocalTransport"]

Key = tuple[Any, ...]
CONTIGUOUS = torch.contiguous_format


class LocalTransport(Transport):
    """Deterministic scheduler for every rank of the mesh.

    With ``single_queue`` all communication of a rank shares one queue, as on a device that runs
    one message at a time. With ``seed`` the order among instructions that can go on is random, and
    with ``delays`` each stream of a rank has a random speed as well, some a thousandth of others,
    so that its instructions come late: results must not depend on either. With ``poison`` freed
    tensors are filled with NaN, and a chunk whose results share storage with an operand or another
    result is an error.
    """

    name = "local"

    def __init__(
        self,
        *,
        single_queue: bool = False,
        seed: int | None = None,
        delays: bool = False,
        poison: bool = True,
        device: str = "cpu",
    ) -> None:
        """Make an idle transport; raises ValueError for delays without a seed."""
        if delays and seed is None:
            raise ValueError("delays of streams expected a seed, got none")
        self.device = torch.device(device)
        self.poison = poison
        self._single_queue = single_queue
        self._delays = delays
        self._random = None if seed is None else random.Random(seed)
        self._queues: dict[tuple[int, str], deque[Instruction]] = {}
        self._arrived: dict[Key, dict[int, Instruction]] = {}

    def start(self, manifest: Manifest) -> None:
        """Take every rank of the mesh; raises ValueError for streams with priority or SMs."""
        self.refuse_stream_options(manifest)
        self.ranks = tuple(range(manifest.mesh.world_size))

    def submit(self, instruction: Instruction) -> None:
        """Append to the queue of the instruction's rank and stream."""
        stream = instruction.stream
        if self._single_queue and stream not in (COMPUTE, HOST):
            stream = "communication"
        key = (instruction.rank.home.index, stream)
        queue = self._queues.get(key)
        if queue is None:
            queue = self._queues[key] = deque()
        queue.append(instruction)

    def begin(self, entry_point: str, *, step: int) -> None:
        """Start a call; raises RuntimeError while another one is executed step by step."""
        if any(self._queues.values()):
            raise RuntimeError(f"{entry_point} expected no stepper that is not finished or closed")

    def pending(self) -> list[Instruction]:
        """Return what was submitted and is not executed, stream by stream."""
        return [i for queue in self._queues.values() for i in queue if not i.done]

    def drain(self) -> None:
        """Execute until nothing can go on; raises DeadlockError if anything is left."""
        for _ in self.walk():
            pass

    def walk(self) -> Generator[Instruction, None, None]:
        """Execute what was submitted one by one, yielding each instruction before it is executed.

        With the one that is yielded, a message or collective, those of all members are executed,
        once the next is asked for. Raises DeadlockError at the end if anything is left. What an
        iterator that is closed early has not executed is forgotten.
        """
        try:
            yield from self._in_order() if self._random is None else self._at_random(self._random)
            stuck = [queue[0] for queue in self._queues.values() if queue]
            if stuck:
                raise DeadlockError(self._report(stuck))
        finally:
            self._queues.clear()
            self._arrived.clear()

    def members(self, head: Instruction) -> list[Instruction]:
        """Return the instructions that are executed together with ``head``, which can go on."""
        if head.message is None:
            return [head]
        arrived = self._arrived[_rendezvous(head)]
        return [arrived[rank] for rank in sorted(arrived)]

    def broadcast(self, value: Tensor, *, owner: int) -> Tensor:
        """Return ``value``: this process is every rank."""
        return value

    def gather(self, value: Any) -> list[Any]:
        """Return the only process's value."""
        return [value]

    def abort(self, error: BaseException) -> None:
        """Forget what was submitted: the next step starts with empty queues."""
        self._queues.clear()
        self._arrived.clear()

    # The scheduler.

    def _in_order(self) -> Iterator[Instruction]:
        """Sweep over the queues, running each as far as it goes, until a sweep does nothing."""
        moved = True
        while moved:
            moved = False
            for queue in self._queues.values():
                while queue:
                    head = queue[0]
                    if not head.done:
                        if not self._ready(head):
                            break
                        yield head
                        self._fire(head)
                    queue.popleft()
                    moved = True

    def _at_random(self, choice: random.Random) -> Iterator[Instruction]:
        """Execute one random instruction of those that can go on, until there is none."""
        speeds: dict[tuple[int, str], float] = {}
        while True:
            ready, weights = [], []
            for key, queue in self._queues.items():
                while queue and queue[0].done:
                    queue.popleft()
                if queue and self._ready(queue[0]):
                    ready.append(queue[0])
                    if self._delays and key not in speeds:
                        speeds[key] = 10 ** choice.uniform(-3, 0)
                    weights.append(speeds.get(key, 1.0))
            if not ready:
                return
            head = choice.choices(ready, weights)[0]
            yield head
            self._fire(head)

    def _ready(self, head: Instruction) -> bool:
        """Return whether ``head``, at the head of its queue, can be executed."""
        for event in head.waits:
            if not event.done:
                return False
        if head.message is None:
            return True
        arrived = self._arrived.setdefault(_rendezvous(head), {})
        arrived[head.rank.home.index] = head
        return len(arrived) == _num_members(head)

    def _fire(self, head: Instruction) -> None:
        if self.observer is None:
            self._complete(head)
            return
        arrived = self.members(head)
        start = time.perf_counter_ns()
        self._complete(head)
        end = time.perf_counter_ns()
        for member in arrived:
            self.observer(member, start, end)

    def _complete(self, head: Instruction) -> None:
        """Execute a head that is ready: alone, or with all members of its communication."""
        if head.message is None:
            operands, results = head.operands, head.results
            head.execute()
            if self.poison and head.kind == "run":
                _check_aliases(head, operands, results)
            return
        arrived = self._arrived.pop(_rendezvous(head))
        _perform([arrived[rank] for rank in sorted(arrived)])

    # Reports.

    def _report(self, stuck: list[Instruction]) -> str:
        lines = [
            f"  {head.describe()}, stream {head.stream}: {self._reason(head)}" for head in stuck
        ]
        return "\n".join(["deadlock, no stream can go on:", *lines])

    def _reason(self, head: Instruction) -> str:
        late = [event for event in head.waits if not event.done]
        if late:
            return f"waits for {late[0].place()}, stream {late[0].stream}"
        if head.message is None:
            return "can go on"
        arrived = self._arrived.get(_rendezvous(head), {})
        absent = [str(rank) for rank in _members(head) if rank not in arrived]
        return f"waits for rank {', '.join(absent)} to reach {head.message.comm.name}"


def _rendezvous(head: Instruction) -> Key:
    """Return what the members of one message or collective have in common."""
    message = head.message
    assert message is not None
    comm = message.comm
    if head.kind == "send":
        return comm.name, comm.members, head.rank.home.index, message.peer
    if head.kind == "recv":
        return comm.name, comm.members, message.peer, head.rank.home.index
    return comm.name, comm.members


def _members(head: Instruction) -> tuple[int, ...]:
    message = head.message
    assert message is not None
    if head.kind in ("send", "recv"):
        return (head.rank.home.index, message.peer)
    return message.comm.members


def _num_members(head: Instruction) -> int:
    return len(_members(head))


def _perform(members: list[Instruction]) -> None:
    """Perform one message or collective of ``members``, in rank order."""
    for member in members:
        _begin(member)
    try:
        _check_alike(members)
        if members[0].kind in ("send", "recv"):
            _pass(members)
        elif members[0].kind == "all_to_all":
            _exchange(members)
        else:
            _collective(members)
    except InstructionError:
        raise
    except Exception as error:
        raise members[0].failure(error) from error


def _begin(member: Instruction) -> None:
    try:
        member.begin()
    except InstructionError:
        raise
    except Exception as error:
        raise member.failure(error) from error


def _check_alike(members: list[Instruction]) -> None:
    """Raise ValueError unless all members do the same with the same value."""
    kinds = {"send" if member.kind == "recv" else member.kind for member in members}
    if len(kinds) > 1:
        report = "; ".join(member.describe() for member in members)
        raise ValueError(f"members of a communicator expected one kind of collective, got {report}")
    values = {member.identity(): member for member in members}
    if len(values) > 1:
        report = "; ".join(f"{name} at {member.describe()}" for name, member in values.items())
        raise ValueError(f"members of a communicator expected one value, got {report}")


def _check_aliases(
    head: Instruction, operands: Sequence[Handle], results: Sequence[Handle]
) -> None:
    """Raise InstructionError if results of a chunk share storage with operands or each other."""
    taken = {_storage(tensor) for handle in operands for tensor in _tensors(handle)}
    for index, handle in enumerate(results):
        for tensor in _tensors(handle):
            storage = _storage(tensor)
            if tensor.numel() and storage in taken:
                text = f"result {index} expected a storage of its own, got one that is shared"
                raise head.failure(ValueError(text))
            taken.add(storage)


def _tensors(handle: Handle) -> list[Tensor]:
    values = handle.value if isinstance(handle.value, tuple) else (handle.value,)
    return [value for value in values if isinstance(value, Tensor)]


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _pass(members: list[Instruction]) -> None:
    sender, receiver = sorted(members, key=lambda member: member.kind == "recv")
    value, message = sender.operands[0].get(), receiver.message
    assert message is not None
    expected, got = (message.shape, message.dtype), (tuple(value.shape), value.dtype)
    if expected != got:
        raise ValueError(f"{receiver.describe()} expected {expected}, got {got}")
    sender.store(None)
    receiver.store(value.clone(memory_format=torch.contiguous_format))


def _exchange(members: list[Instruction]) -> None:
    """Give each member what all others have for it; an error is that of the member at fault."""
    values: list[Tensor] = [member.operands[0].get() for member in members]
    parts: list[Sequence[Tensor]] = []
    received: list[Sequence[int]] = []
    for member, value in zip(members, values, strict=True):
        message = member.message
        assert message is not None
        try:
            _check_fits(value, values[0], message.dim)
            rows = rows_of(message, value, *[sizes.get() for sizes in member.operands[1:]])
        except Exception as error:
            raise member.failure(error) from error
        parts.append(value.split_with_sizes(rows.sent, message.dim))
        received.append(rows.received)
    for index, (member, expected) in enumerate(zip(members, received, strict=True)):
        message = member.message
        assert message is not None
        for other, part in enumerate(parts):
            got = part[index].shape[message.dim]
            if got != expected[other]:
                report = f"{member.describe()} expected {expected[other]} rows of rank "
                raise ValueError(f"{report}{message.comm.members[other]}, which sends {got}")
        member.store(torch.cat([part[index] for part in parts], message.dim))


def _check_fits(value: Tensor, other: Tensor, dim: int) -> None:
    """Raise ValueError unless tensors differ in their rows along a dim at most."""
    shapes = [list(tensor.shape) for tensor in (value, other)]
    for shape in shapes:
        shape[dim] = 0
    if shapes[0] != shapes[1] or value.dtype != other.dtype:
        want, got = f"{other.dtype} {tuple(other.shape)}", f"{value.dtype} {tuple(value.shape)}"
        raise ValueError(f"all_to_all expected {want} as others, but for dim {dim}, got {got}")


def _collective(members: list[Instruction]) -> None:
    """Compute the result once and give each member a copy of its own."""
    values: list[Tensor] = [member.operands[0].get() for member in members]
    for member, value in zip(members, values, strict=True):
        if member.kind != "all_gather" and value.shape != values[0].shape:
            want, got = tuple(values[0].shape), tuple(value.shape)
            raise ValueError(f"{member.describe()} expected shape {want} as others, got {got}")
    message = members[0].message
    assert message is not None
    results = _RESULTS[members[0].kind](values, message)
    for member, value, result in zip(members, values, results, strict=True):
        in_place = member.message is not None and member.message.in_place
        made = value.copy_(result) if in_place else result.clone(memory_format=CONTIGUOUS)
        member.store(made)


def _all_reduce(values: list[Tensor], message: Message) -> list[Tensor]:
    return [rank_order_sum(values)] * len(values)


def _all_gather(values: list[Tensor], message: Message) -> list[Tensor]:
    check_gathered(message.comm)
    return [torch.cat(values, message.dim)] * len(values)


def _reduce_scatter(values: list[Tensor], message: Message) -> list[Tensor]:
    return scattered(rank_order_sum(values), message)


def _broadcast(values: list[Tensor], message: Message) -> list[Tensor]:
    return [values[message.root]] * len(values)


_RESULTS = {
    "all_reduce": _all_reduce,
    "all_gather": _all_gather,
    "reduce_scatter": _reduce_scatter,
    "broadcast": _broadcast,
}
