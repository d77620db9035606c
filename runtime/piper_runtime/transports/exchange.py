"""Messages and collectives over gloo, as bytes, with sums in rank order: bitwise those of ``local``.

all_reduce = reduce_scatter, all_gather        reduce_scatter = all_to_all, sum in rank order
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from piper_runtime.instruction import Instruction, Message
from piper_runtime.transports.base import check_gathered, rank_order_sum, scattered

__all__ = ["PERFORM", "as_bytes", "check_identity"]

IDENTITY_BYTES = 256


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
    """Sum equal parts in rank order, one per member, then gather the parts; perhaps in place."""
    size = len(message.comm.members)
    if group is None:
        return value.clone()
    flat = value.reshape(-1)
    part = -(-flat.numel() // size)
    if part * size == flat.numel():
        total = _sum_of_parts(flat, size, group)
        gathered = value if message.in_place else torch.empty_like(value)
        dist.all_gather_single(as_bytes(gathered), as_bytes(total), group=group)
        return gathered
    padded = flat.new_zeros(part * size)
    padded[: flat.numel()].copy_(flat)
    total = _sum_of_parts(padded, size, group)
    dist.all_gather_single(as_bytes(padded), as_bytes(total), group=group)
    return padded[: flat.numel()].view(value.shape)


def _reduce_scatter(message: Message, group: dist.ProcessGroup | None, value: Tensor) -> Tensor:
    if group is None:
        return value.clone()
    parts = scattered(value, message)
    if message.dim == 0 and len(parts) == message.comm.num_parts:
        flat = value.reshape(-1)  # a part per member, one behind the other
    else:
        flat = torch.stack(parts).view(-1)
    return _sum_of_parts(flat, len(parts), group).view(parts[0].shape)


def _sum_of_parts(flat: Tensor, size: int, group: dist.ProcessGroup) -> Tensor:
    """Return the rank-order sum of this member's part of ``flat``, which has ``size`` parts."""
    received = torch.empty_like(flat)
    dist.all_to_all_single(as_bytes(received), as_bytes(flat), group=group)
    return rank_order_sum(received.chunk(size))


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
    "broadcast": _broadcast,
}
"""What performs each kind of instruction: given the message, its group and the operands."""
