"""``Rank``: the instruction set of rank programs. Every method enqueues one instruction."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from piper_runtime.errors import ProgramError
from piper_runtime.instruction import COMPUTE, Handle, Instruction, Message
from piper_runtime.mesh import Comm, Mesh
from piper_runtime.names import dtype_of
from piper_runtime.optimizer import clip_factor
from piper_runtime.state import Bucket

__all__ = ["Rank"]

Events = Sequence[Instruction]
Thunk = Callable[..., Any]


class Rank:
    """One rank during one call of an entry point.

    Methods only enqueue: they return handles (values to come), tuples of handles and events, and
    never block. Instructions go to ``submit`` in program order. Every method takes ``after``, the
    events that the instruction waits for beside its stream's earlier instructions.
    """

    __slots__ = (
        "_buckets", "_comms", "_inputs", "_loss_dtypes", "_mesh", "_submit",
        "coordinate", "device", "file", "index", "name", "outputs", "poison",
    )  # fmt: skip

    def __init__(
        self,
        index: int,
        *,
        mesh: Mesh,
        file: str,
        comms: Mapping[str, Comm],
        buckets: Mapping[str, Bucket],
        inputs: Sequence[Mapping[str, Tensor]],
        loss_dtypes: Mapping[str, torch.dtype],
        submit: Callable[[Instruction], None],
        device: torch.device,
        poison: bool = False,
    ) -> None:
        """Make the rank ``index``; ``inputs`` holds one mapping per microbatch."""
        self.index = index
        self.name = mesh.describe(index)
        self.coordinate = mesh.coordinate(index)
        self.device = device
        self.file = file
        self.poison = poison
        self.outputs: dict[str, Tensor] = {}
        self._mesh = mesh
        self._comms = comms
        self._buckets = buckets
        self._inputs = inputs
        self._loss_dtypes = loss_dtypes
        self._submit = submit

    # Values that enter and leave.

    def read(self, bucket: str, *, slot: str = "value", after: Events = ()) -> Handle:
        """Return the flat tensor of a bucket as it is at entry; ``slot`` is value or grad."""
        thunk = partial(self._bucket(bucket).slot, slot)
        return self._compute("read", bucket, thunk, after=after)

    def input(self, name: str, *, mb: int, after: Events = ()) -> Handle:
        """Return input ``name`` of microbatch ``mb``."""
        return self._compute("input", name, partial(self._take, name, mb), mb=mb, after=after)

    def tangent(
        self,
        loss: str,
        *,
        count: Handle | None = None,
        coeff: float = 1.0,
        dtype: str | None = None,
        after: Events = (),
    ) -> Handle:
        """Return the scalar ``coeff / max(1, count)``, or ``coeff``, in the dtype of the loss."""
        wanted = self._loss_dtypes[loss] if dtype is None else dtype_of(dtype)
        operands = () if count is None else (count,)
        thunk = partial(_tangent, coeff, wanted, self.device)
        return self._compute("tangent", loss, thunk, operands, after=after)

    def output(
        self,
        name: str,
        value: Handle,
        *,
        scale: Handle | None = None,
        mb: int | None = None,
        after: Events = (),
    ) -> None:
        """Report ``value * scale``; several outputs of one name are summed."""
        operands = (value,) if scale is None else (value, scale)
        thunk = partial(self._put, name)
        self._enqueue("output", COMPUTE, name, mb, operands, 0, after, thunk, None)

    # Compute.

    def run(
        self, function: Thunk, *operands: Handle, mb: int | None = None, after: Events = ()
    ) -> Any:
        """Call a chunk; returns None, a handle or a tuple of handles, as the chunk declares."""
        results: int = function.results  # type: ignore[attr-defined]
        name = f"chunk {function.__name__}"
        event = self._enqueue("run", COMPUTE, name, mb, operands, results, after, function, None)
        handles = event.results
        return handles[0] if results == 1 else handles or None

    def sum(self, *operands: Handle, after: Events = ()) -> Handle:
        """Return the sum of tensors of one shape and dtype, added from left to right."""
        return self._compute("sum", "", _sum, operands, after=after)

    def sumsq(self, *operands: Handle, after: Events = ()) -> Handle:
        """Return the scalar sum of squares of all elements: float64 of float64, else float32."""
        return self._compute("sumsq", "", _sumsq, operands, after=after)

    def accumulate(
        self, bucket: str, contribution: Handle, *, onto: Handle | None = None, after: Events = ()
    ) -> Handle:
        """Add a pack or flat tensor into the bucket's flat main gradient, and return that.

        Without ``onto`` the gradient is overwritten; with it, ``onto`` becomes invalid.
        """
        operands = (contribution,) if onto is None else (contribution, onto)
        thunk = self._bucket(bucket).accumulate
        return self._compute("accumulate", bucket, thunk, operands, after=after)

    def update(
        self,
        bucket: str,
        gradient: Handle,
        *,
        norm: Handle | None = None,
        clip: float | None = None,
        after: Events = (),
    ) -> Handle:
        """Step the bucket's optimizer and return the new flat value.

        ``norm`` is the SUM OF SQUARES of all gradients; with ``clip`` the gradient is scaled by
        ``min(1, clip / (sqrt(norm) + 1e-6))`` first.
        """
        if clip is not None and norm is None:
            raise ProgramError(f"update of {bucket!r} with clip={clip} expected a norm, got none")
        operands = (gradient,) if norm is None or clip is None else (gradient, norm)
        thunk = partial(_update, self._bucket(bucket), clip)
        return self._compute("update", bucket, thunk, operands, after=after)

    def free(self, *handles: Handle, after: Events = ()) -> None:
        """Drop the values of ``handles``: using one later is an error."""
        thunk = partial(_free, handles, self.poison)
        event = self._enqueue("free", COMPUTE, "", None, (), 0, after, thunk, None, freed=handles)
        for handle in handles:
            handle.freed_by = handle.freed_by or event

    def record(self, *, after: Events = ()) -> Instruction:
        """Return the event of everything enqueued on the compute stream so far."""
        return self._enqueue("record", COMPUTE, "", None, (), 0, after, _nothing, None)

    # Communication.

    def send(
        self,
        value: Handle,
        *,
        comm: str,
        peer: int,
        stream: str,
        mb: int | None = None,
        after: Events = (),
    ) -> Instruction:
        """Send a tensor to the rank at coordinate ``peer``."""
        message = Message(self._comm(comm), peer=self._mesh.peer(self.index, peer))
        return self._enqueue("send", stream, comm, mb, (value,), 0, after, None, message)

    def recv(
        self,
        *,
        comm: str,
        peer: int,
        shape: tuple[int, ...],
        dtype: str,
        stream: str,
        mb: int | None = None,
        after: Events = (),
    ) -> tuple[Handle, Instruction]:
        """Receive a tensor from the rank at coordinate ``peer``."""
        source = self._mesh.peer(self.index, peer)
        message = Message(self._comm(comm), peer=source, shape=shape, dtype=dtype_of(dtype))
        event = self._enqueue("recv", stream, comm, mb, (), 1, after, None, message)
        return event.results[0], event

    def all_reduce(
        self, value: Handle, *, comm: str, stream: str, mb: int | None = None, after: Events = ()
    ) -> tuple[Handle, Instruction]:
        """Sum over the members; a bucket's main gradient is reduced in place, else a new tensor."""
        message = Message(self._comm(comm), in_place=value.producer.kind == "accumulate")
        event = self._enqueue("all_reduce", stream, comm, mb, (value,), 1, after, None, message)
        return event.results[0], event

    def all_gather(
        self,
        value: Handle,
        *,
        comm: str,
        stream: str,
        dim: int = 0,
        mb: int | None = None,
        after: Events = (),
    ) -> tuple[Handle, Instruction]:
        """Concatenate the members' tensors along ``dim``, in rank order."""
        message = Message(self._comm(comm), dim=dim)
        event = self._enqueue("all_gather", stream, comm, mb, (value,), 1, after, None, message)
        return event.results[0], event

    def reduce_scatter(
        self,
        value: Handle,
        *,
        comm: str,
        stream: str,
        dim: int = 0,
        mb: int | None = None,
        after: Events = (),
    ) -> tuple[Handle, Instruction]:
        """Sum over the members and keep this member's equal part along ``dim``."""
        message = Message(self._comm(comm), dim=dim)
        event = self._enqueue("reduce_scatter", stream, comm, mb, (value,), 1, after, None, message)
        return event.results[0], event

    def broadcast(
        self,
        value: Handle,
        *,
        comm: str,
        stream: str,
        root: int = 0,
        mb: int | None = None,
        after: Events = (),
    ) -> tuple[Handle, Instruction]:
        """Return the tensor of the member with index ``root``; all pass one of its shape."""
        message = Message(self._comm(comm), root=root)
        event = self._enqueue("broadcast", stream, comm, mb, (value,), 1, after, None, message)
        return event.results[0], event

    # How an instruction is made.

    def _compute(
        self,
        kind: str,
        label: str,
        thunk: Thunk,
        operands: tuple[Handle, ...] = (),
        *,
        mb: int | None = None,
        after: Events = (),
    ) -> Handle:
        """Enqueue an instruction of the compute stream with one result."""
        line = sys._getframe(2).f_lineno
        return self._enqueue(
            kind, COMPUTE, label, mb, operands, 1, after, thunk, None, line=line
        ).results[0]

    def _enqueue(
        self,
        kind: str,
        stream: str,
        label: str,
        microbatch: int | None,
        operands: tuple[Handle, ...],
        num_results: int,
        after: Events,
        thunk: Thunk | None,
        message: Message | None,
        *,
        line: int = 0,
        freed: tuple[Handle, ...] = (),
    ) -> Instruction:
        """Make an instruction of the program line that called the method, and submit it."""
        results = tuple([Handle() for _ in range(num_results)])
        instruction = Instruction(
            self, kind, stream, label, line or sys._getframe(2).f_lineno, microbatch,
            operands, results, tuple(after), thunk, message, freed,
        )  # fmt: skip
        for handle in results:
            handle.producer = instruction
        self._submit(instruction)
        return instruction

    def _bucket(self, name: str) -> Bucket:
        bucket = self._buckets.get(name)
        if bucket is None:
            raise ProgramError(
                f"{self.name} expected a bucket of {list(self._buckets)}, got {name!r}"
            )
        return bucket

    def _comm(self, name: str) -> Comm:
        comm = self._comms.get(name)
        if comm is None:
            raise ProgramError(f"{self.name} expected a comm of {list(self._comms)}, got {name!r}")
        return comm

    def _take(self, name: str, microbatch: int) -> Tensor:
        return self._inputs[microbatch][name]

    def _put(self, name: str, value: Tensor, scale: Tensor | None = None) -> None:
        value = value.clone() if scale is None else value * scale
        self.outputs[name] = self.outputs[name] + value if name in self.outputs else value


def _nothing() -> None:
    """Do nothing: a record only marks a point of its stream."""


def _tangent(
    coeff: float, dtype: torch.dtype, device: torch.device, count: Tensor | None = None
) -> Tensor:
    if count is None:
        return torch.tensor(coeff, dtype=dtype, device=device)
    return (coeff / count.clamp(min=1).to(torch.float64)).to(dtype)


def _sum(first: Tensor, *others: Tensor) -> Tensor:
    total = first.clone()
    for other in others:
        total += other
    return total


def _sumsq(*tensors: Tensor) -> Tensor:
    """Add the squares in the accumulation dtype, tensor by tensor."""
    wide = any(tensor.dtype == torch.float64 for tensor in tensors)
    dtype = torch.float64 if wide else torch.float32
    norms = [torch.linalg.vector_norm(tensor, dtype=dtype) for tensor in tensors]
    return torch.stack(norms).square().sum()


def _update(bucket: Bucket, clip: float | None, gradient: Tensor, *norm: Tensor) -> Tensor:
    factor = clip_factor(norm[0], clip) if norm and clip is not None else None
    return bucket.update(gradient, factor)


def _free(handles: Sequence[Handle], poison: bool) -> None:
    for handle in handles:
        handle.get()
        if poison:
            _fill(handle)
        handle.free()


OWNING_KINDS = frozenset(
    {"run", "recv", "sum", "sumsq", "all_gather", "reduce_scatter", "broadcast"}
)


def _fill(handle: Handle) -> None:
    """Overwrite a freed value that nobody else owns, so that a hidden alias of it shows."""
    if handle.producer.kind not in OWNING_KINDS:
        return
    values = handle.value if isinstance(handle.value, tuple) else (handle.value,)
    for value in values:
        if isinstance(value, Tensor) and value.is_floating_point():
            value.fill_(float("nan"))
