"""Messages and collectives over gloo, as bytes, with sums in rank order: bitwise those of ``local``.

reduce_scatter = swap parts, sum in rank order        all_reduce = that in place, swap the sums

A sum of two does not depend on their order, so gloo itself may add those.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from piper_runtime.instruction import Instruction, Message
from piper_runtime.transports.base import check_gathered, rank_order_sum, rows_of, scattered

__all__ = ["PERFORM", "as_bytes", "check_identity", "sum_into"]

IDENTITY_BYTES = 256
_ADDED_BY_GLOO = (torch.float32, torch.float64)
"""As torch adds them; narrower ones gloo may round at other places."""


def check_identity(instruction: Instruction, group: dist.ProcessGroup) -> None:
    """Exchange what the members think they exchange; raises ValueError if they differ."""
    name = instruction.identity()
    mine = torch.zeros(IDENTITY_BYTES, dtype=torch.uint8)
    text = name.encode()[:IDENTITY_BYTES]
    mine[: len(text)] = torch.frombuffer(bytearray(text), dtype=torch.uint8)
    message = instruction.message
    assert message is not None
    if instruction.kind == "send":
        dist.send(mine, dst=message.peer, group=group)
        return
    if instruction.kind == "recv":
        theirs = torch.empty_like(mine)
        dist.recv(theirs, src=message.peer, group=group)
        found = {message.peer: theirs}
    else:
        gathered = torch.empty(len(message.comm.members), IDENTITY_BYTES, dtype=torch.uint8)
        dist.all_gather_single(gathered.view(-1), mine, group=group)
        found = dict(zip(message.comm.members, gathered, strict=True))
    for rank, other in found.items():
        if not torch.equal(other, mine):
            got = bytes(other.tolist()).rstrip(b"\0").decode()
            raise ValueError(
                f"members of a communicator expected one value, got {name} here and "
                f"{got} of rank {rank}"
            )
    if len(instruction.operands) > 1:
        sent, received = (sizes.get() for sizes in instruction.operands[1:])
        _check_sizes(message, sent, received, group)


def _check_sizes(
    message: Message, sent: Sequence[int], received: Sequence[int], group: dist.ProcessGroup
) -> None:
    """Exchange how many rows each member sends to each; raises ValueError if another number is
    expected.
    """
    theirs = torch.empty(len(received), dtype=torch.int64)
    dist.all_to_all_single(theirs, torch.tensor(sent, dtype=torch.int64), group=group)
    for rank, want, got in zip(message.comm.members, received, theirs.tolist(), strict=True):
        if want != got:
            raise ValueError(f"expected {want} rows of rank {rank}, which sends {got}")


def as_bytes(tensor: Tensor) -> Tensor:
    """Return a view of a contiguous tensor as bytes: gloo moves these for every dtype."""
    return tensor.view(-1).view(torch.uint8)


def _send(message: Message, group: dist.ProcessGroup | None, value: Tensor) -> None:
    dist.send(as_bytes(value.contiguous()), dst=message.peer, group=group)


def _recv(message: Message, group: dist.ProcessGroup | None) -> Tensor:
    assert message.buffer is not None
    dist.recv(as_bytes(message.buffer), src=message.peer, group=group)
    return message.buffer


def _all_reduce(message: Message, group: dist.ProcessGroup | None, value: Tensor) -> Tensor:
    """Sum one part per member, then share the sums; perhaps in place."""
    total = value if message.in_place else value.clone(memory_format=torch.contiguous_format)
    if group is None:
        return total
    if len(message.comm.members) == 2 and total.dtype in _ADDED_BY_GLOO:
        dist.all_reduce(total, group=group)
        return total
    parts = total.view(-1).tensor_split(len(message.comm.members))
    own = parts[dist.get_rank(group)]
    sum_into(own, _swap(parts, message, group))
    _swap([own] * len(parts), message, group, into=parts)
    return total


def _reduce_scatter(message: Message, group: dist.ProcessGroup | None, value: Tensor) -> Tensor:
    if group is None:
        return value.clone()
    parts = [part.contiguous() for part in scattered(value, message)]
    return rank_order_sum(_swap(parts, message, group))


def _swap(
    parts: Sequence[Tensor],
    message: Message,
    group: dist.ProcessGroup,
    *,
    into: Sequence[Tensor] | None = None,
) -> Sequence[Tensor]:
    """Send each other member its part and return, by member, what came, and the own part.

    It comes ``into`` tensors, by default new ones like the own part.
    """
    me, works = dist.get_rank(group), list[dist.Work | None]()
    own = parts[me]
    if into is None:
        into = [own if index == me else torch.empty_like(own) for index in range(len(parts))]
    for index, rank in enumerate(message.comm.members):
        if index == me:
            continue
        for move, tensor in ((dist.irecv, into[index]), (dist.isend, parts[index])):
            if tensor.numel():
                works.append(move(as_bytes(tensor), rank, group=group))
    for work in works:
        assert work is not None, "this rank is a member"
        work.wait()
    return into


def sum_into(own: Tensor, parts: Sequence[Tensor]) -> None:
    """Write the rank-order sum of ``parts``, which may be overwritten, to ``own``, one of them."""
    total = parts[0]
    for part in parts[1:-1]:
        total += part
    torch.add(total, parts[-1], out=own)


def _all_gather(message: Message, group: dist.ProcessGroup | None, value: Tensor) -> Tensor:
    size = len(message.comm.members)
    check_gathered(message.comm)
    if group is None:
        return value.clone()
    gathered = value.new_empty((size, *value.shape))
    dist.all_gather_single(as_bytes(gathered), as_bytes(value.contiguous()), group=group)
    if message.dim == 0:
        return gathered.flatten(0, 1)  # they lie one behind the other
    return torch.cat(list(gathered), message.dim)


def _all_to_all(
    message: Message, group: dist.ProcessGroup | None, value: Tensor, *sizes: Sequence[int]
) -> Tensor:
    rows, dim = rows_of(message, value, *sizes), message.dim
    rows_first = value.movedim(dim, 0).contiguous()
    received = rows_first.new_empty((sum(rows.received), *rows_first.shape[1:]))
    if group is None:
        received.copy_(rows_first)
    else:
        width = value.itemsize * prod(rows_first.shape[1:])
        dist.all_to_all_single(
            as_bytes(received),
            as_bytes(rows_first),
            [size * width for size in rows.received],
            [size * width for size in rows.sent],
            group=group,
        )
    return received.movedim(0, dim).contiguous()


def _broadcast(message: Message, group: dist.ProcessGroup | None, value: Tensor) -> Tensor:
    copy = value.clone(memory_format=torch.contiguous_format)
    if group is not None:
        dist.broadcast(as_bytes(copy), src=message.comm.members[message.root], group=group)
    return copy


PERFORM: dict[str, Callable[..., Any]] = {
    "send": _send,
    "recv": _recv,
    "all_reduce": _all_reduce,
    "all_gather": _all_gather,
    "reduce_scatter": _reduce_scatter,
    "all_to_all": _all_to_all,
    "broadcast": _broadcast,
}
"""What performs each kind of instruction: given the message, its group and the operands."""
