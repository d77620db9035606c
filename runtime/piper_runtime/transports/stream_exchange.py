"""Messages and collectives as work of a stream: buffers first, then what fills them.

Buffers are taken when the instruction is issued, out of the memory of the stream that is current
then. The action is issued to the instruction's own stream and takes no memory; torch runs a
collective with ``async_op=False`` on the stream that is current, and a message on one that the
process group has, between two events of the current one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist
from torch import Tensor

from piper_runtime.devices import Device
from piper_runtime.instruction import Message
from piper_runtime.transports.base import check_gathered, rows_of

__all__ = ["Work", "exchange", "pass_message"]

Group = dist.ProcessGroup | None
# What torch 2.13 calls so has an older name, too, and machines with GPUs may have an older torch.
all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


@dataclass(frozen=True, slots=True)
class Work:
    """What an instruction makes, the buffers it takes, and what is to be issued to its stream."""

    result: Any
    buffers: tuple[Tensor, ...]
    action: Callable[[], None]


def exchange(
    kind: str, message: Message, group: Group, values: tuple[Any, ...], *, device: Device
) -> Work:
    """Prepare a communication instruction; ``group`` is None where it has a single member.

    ``values`` are those of its operands. Raises ValueError for a reduce_scatter of parts that are
    not equal, and for an all_to_all whose sizes do not fit or that would receive too many rows.
    """
    return _PREPARE[kind](message, group, device, *values)


def pass_message(kind: str, value: Tensor, *, peer: int, group: dist.ProcessGroup) -> None:
    """Send to, or receive from, a world rank, in order with the current stream."""
    operation = dist.P2POp(dist.isend if kind == "send" else dist.irecv, value, peer, group)
    for work in dist.batch_isend_irecv([operation]):
        work.wait()


def _send(message: Message, group: Group, device: Device, value: Tensor) -> Work:
    assert group is not None
    packed = _room_to_pack(value, device)

    def action() -> None:
        if packed is not value:
            packed.copy_(value)
        pass_message("send", packed, peer=message.peer, group=group)

    return Work(None, () if packed is value else (packed,), action)


def _recv(message: Message, group: Group, device: Device) -> Work:
    assert group is not None
    buffer = device.empty(message.shape, message.dtype)
    return Work(
        buffer,
        (buffer,),
        lambda: pass_message("recv", buffer, peer=message.peer, group=group),
    )


def _all_reduce(message: Message, group: Group, device: Device, value: Tensor) -> Work:
    if message.in_place and value.is_contiguous():

        def reduce() -> None:
            if group is not None:
                dist.all_reduce(value, group=group)

        return Work(value, (), reduce)
    total = device.empty(tuple(value.shape), value.dtype)

    def action() -> None:
        total.copy_(value)
        if group is not None:
            dist.all_reduce(total, group=group)
        if message.in_place:
            value.copy_(total)

    return Work(value if message.in_place else total, (total,), action)


def _all_gather(message: Message, group: Group, device: Device, value: Tensor) -> Work:
    check_gathered(message.comm)
    size, dim = len(message.comm.members), message.dim
    shape, packed = list(value.shape), _room_to_pack(value, device)
    gathered = device.empty((size, *shape), value.dtype)
    shape[dim] *= size
    # Along dim 0 the parts lie as the result has them.
    result = gathered.view(shape) if dim == 0 else device.empty(tuple(shape), value.dtype)

    def action() -> None:
        if packed is not value:
            packed.copy_(value)
        if group is None:
            gathered[0].copy_(packed)
        else:
            all_gather(gathered.view(-1), packed.view(-1), group=group)
        if dim:
            _by_member(result, size, dim).copy_(gathered)

    return Work(result, (gathered, result, packed), action)


def _reduce_scatter(message: Message, group: Group, device: Device, value: Tensor) -> Work:
    size, dim = len(message.comm.members), message.dim
    if message.comm.num_parts != size:
        raise ValueError(
            f"reduce_scatter expected a communicator of one coordinate, got {message.comm.name}"
        )
    if value.shape[dim] % size:
        raise ValueError(
            f"reduce_scatter expected dim {dim} divisible by {size}, got {value.shape[dim]}"
        )
    parts = _by_member(value, size, dim)
    result = device.empty(tuple(parts.shape[1:]), value.dtype)
    packed = _room_to_pack(parts, device)

    def action() -> None:
        if packed is not parts:
            packed.copy_(parts)
        if group is None:
            result.copy_(parts[0])
        else:
            reduce_scatter(result.view(-1), packed.view(-1), group=group)

    return Work(result, (result, packed), action)


def _all_to_all(
    message: Message, group: Group, device: Device, value: Tensor, *sizes: Sequence[int]
) -> Work:
    rows, dim = rows_of(message, value, *sizes), message.dim
    rows_first = value.movedim(dim, 0)
    packed = _room_to_pack(rows_first, device)
    gathered = device.empty((sum(rows.received), *rows_first.shape[1:]), value.dtype)
    result = gathered if dim == 0 else device.empty(rows.shape(value, dim), value.dtype)
    received, sent = (None, None) if rows.equal else ([*rows.received], [*rows.sent])

    def action() -> None:
        if packed is not rows_first:
            packed.copy_(rows_first)
        if group is None:
            gathered.copy_(packed)
        else:
            dist.all_to_all_single(gathered, packed, received, sent, group=group)
        if dim:
            result.copy_(gathered.movedim(0, dim))

    return Work(result, (gathered, result, packed), action)


def _broadcast(message: Message, group: Group, device: Device, value: Tensor) -> Work:
    copy = device.empty(tuple(value.shape), value.dtype)

    def action() -> None:
        copy.copy_(value)
        if group is not None:
            dist.broadcast(copy, src=message.comm.members[message.root], group=group)

    return Work(copy, (copy,), action)


def _room_to_pack(value: Tensor, device: Device) -> Tensor:
    """Return the value if it lies in one piece, else a buffer that it fits into."""
    return value if value.is_contiguous() else device.empty(tuple(value.shape), value.dtype)


def _by_member(tensor: Tensor, size: int, dim: int) -> Tensor:
    """Return a view whose dim 0 counts the members' equal parts along ``dim``."""
    shape = tensor.shape
    return tensor.view(*shape[:dim], size, -1, *shape[dim + 1 :]).movedim(dim, 0)


_PREPARE: dict[str, Callable[..., Work]] = {
    "send": _send,
    "recv": _recv,
    "all_reduce": _all_reduce,
    "all_gather": _all_gather,
    "reduce_scatter": _reduce_scatter,
    "all_to_all": _all_to_all,
    "broadcast": _broadcast,
}
