"""The interface of a transport, and the arithmetic of collectives that all of them share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from piper_runtime.instruction import Instruction, Message
from piper_runtime.manifest import Manifest
from piper_runtime.mesh import Comm, Mesh
from piper_runtime.program import LoadedProgram

__all__ = [
    "Observer",
    "Rows",
    "Transport",
    "check_gathered",
    "rank_order_sum",
    "rows_of",
    "scattered",
]

T = TypeVar("T")

Observer = Callable[[Instruction, int, int], None]
"""Called when an instruction has finished, with when it started and ended (``perf_counter_ns``).

Streams of one process may call it from threads of their own.
"""


class Transport(ABC):
    """Executes the instructions of the ranks that live in this process.

    Life: ``start`` once, then per step ``submit`` in program order and ``drain``. The methods
    ``broadcast`` and ``gather`` serve the trainer between steps. ``observer`` is told of every
    instruction. With ``identify``, which all ranks set or none, messages and collectives say which
    value they carry, and it is an error if their members mean different ones.
    """

    name: str
    device: torch.device
    ranks: tuple[int, ...] = ()
    poison: bool = False
    identify: bool = False
    observer: Observer | None = None

    @abstractmethod
    def start(self, manifest: Manifest) -> None:
        """Check the mesh against the world, set ``ranks`` and open the communicators."""

    def refuse_stream_options(self, manifest: Manifest) -> None:
        """Raise ValueError if a stream has a priority or SMs; for a transport that has neither."""
        for comm in manifest.comms:
            options = {"priority": comm.priority, "sms": comm.sms}
            asked = [f"{name}={value}" for name, value in options.items() if value is not None]
            if asked:
                raise ValueError(
                    f"transport {self.name} expected streams without priority and sms, since it "
                    f"has neither, got {' and '.join(asked)} of communicator {comm.name!r}"
                )

    def guard(self, loaded: LoadedProgram) -> None:
        """Begin to watch over the ranks, which run ``loaded``, if they can wait for each other."""
        return

    def begin(self, entry_point: str, *, step: int) -> None:
        """Take note that a call of an entry point begins, in or behind training step ``step``."""
        return

    def end(self) -> None:
        """Take note that a call is over."""
        return

    @abstractmethod
    def submit(self, instruction: Instruction) -> None:
        """Put an instruction at the end of its stream; does not block."""

    @abstractmethod
    def drain(self) -> None:
        """Return when every submitted instruction is done; raises the first error."""

    @abstractmethod
    def broadcast(self, value: Tensor, *, owner: int) -> Tensor:
        """Return the value of world rank ``owner``; others pass one of its shape and dtype."""

    @abstractmethod
    def gather(self, value: Any) -> list[Any]:
        """Return the values of all processes, in rank order."""

    def together(self, action: Callable[[dist.ProcessGroup | None], T]) -> T:
        """Return what ``action`` returns, which communicates over a group of all processes, on the
        CPU; the group is None if there is only this one.
        """
        return action(None)

    def abort(self, error: BaseException) -> None:
        """Tell the other processes, if there are any, that this one cannot go on."""
        return

    def close(self) -> None:
        """Release threads and communicators, if there are any."""
        return

    def describe(self, mesh: Mesh) -> str:
        """Return one line that says which transport runs which ranks, and on which device."""
        here = f"{len(self.ranks)} of {mesh.world_size} ranks here"
        return f"transport {self.name} on {self.device}, mesh {mesh}, {here}"


def rank_order_sum(parts: Sequence[Tensor]) -> Tensor:
    """Return the sum of ``parts`` added from first to last, as a new tensor."""
    total = parts[0].clone(memory_format=torch.contiguous_format)
    for part in parts[1:]:
        total += part
    return total


def scattered(value: Tensor, message: Message) -> list[Tensor]:
    """Return, by member, its part of a tensor along the dim of a reduce_scatter, as views."""
    dim, count = message.dim, message.comm.num_parts
    size = value.shape[dim]
    if size % count:
        raise ValueError(f"reduce_scatter expected dim {dim} divisible by {count}, got {size}")
    parts = value.chunk(count, dim)
    return [parts[index] for index in message.comm.parts]


def check_gathered(comm: Comm) -> None:
    """Raise ValueError unless every member of a communicator has a part of its own."""
    if comm.num_parts != len(comm.members):
        raise ValueError(
            f"all_gather expected a communicator of one coordinate, got {comm.name}: its "
            f"{len(comm.members)} members hold {comm.num_parts} parts"
        )


@dataclass(frozen=True, slots=True)
class Rows:
    """How many rows of an all_to_all a rank gives to each member, and gets from each.

    Rows are parts along the message's dim; ``equal`` says that all are of one size by themselves.
    """

    sent: tuple[int, ...]
    received: tuple[int, ...]
    equal: bool

    def shape(self, value: Tensor, dim: int) -> tuple[int, ...]:
        """Return the shape of what is received instead of ``value``."""
        return (*value.shape[:dim], sum(self.received), *value.shape[dim + 1 :])


def rows_of(message: Message, value: Tensor, *sizes: Sequence[int]) -> Rows:
    """Return how an all_to_all of ``value`` is cut, and let the message know the bytes it sends.

    ``sizes`` are those sent and received, or nothing for equal parts. Raises ValueError for sizes
    that do not fit the value or the communicator, and for more rows than the message's bound.
    """
    comm, dim, size = message.comm, message.dim, value.shape[message.dim]
    count = len(comm.members)
    if comm.num_parts != count:
        raise ValueError(
            f"all_to_all expected a communicator of one coordinate, got {comm.name}: its {count} "
            f"members have {comm.num_parts} places along its axes"
        )
    if sizes:
        rows = _given_rows(message, size, *sizes)
    elif size % count:
        raise ValueError(f"all_to_all expected dim {dim} divisible by {count}, got {size}")
    else:
        rows = Rows((size // count,) * count, (size // count,) * count, True)
    others = sum(rows.sent) - rows.sent[message.own]
    message.sent = others * value.itemsize * prod(value.shape[:dim]) * prod(value.shape[dim + 1 :])
    return rows


def _given_rows(message: Message, size: int, sent: Sequence[int], received: Sequence[int]) -> Rows:
    count, bound = len(message.comm.members), message.bound
    for what, given in (("send", sent), ("receive", received)):
        if len(given) != count or min(given) < 0:
            raise ValueError(
                f"all_to_all expected sizes to {what} of at least 0, one for each of {count} "
                f"members, got {list(given)}"
            )
    if sum(sent) != size:
        raise ValueError(
            f"all_to_all expected sizes to send that add up to {size}, its rows, got {list(sent)}"
        )
    if bound is not None and sum(received) > bound:
        ranks = ", ".join(map(str, message.comm.members))
        raise ValueError(
            f"all_to_all expected at most {bound} rows, got {sum(received)}: {list(received)} from "
            f"ranks {ranks}; a larger capacity in piper.shard(capacity=) raises the bound"
        )
    return Rows(tuple(sent), tuple(received), False)
