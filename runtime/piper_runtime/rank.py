"""``Rank``: the instruction set of rank programs. Every method enqueues one instruction."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from torch import Tensor

from piper_runtime import compute
from piper_runtime.errors import ProgramError
from piper_runtime.home import Home
from piper_runtime.instruction import COMPUTE, HOST, Handle, Instruction, Message
from piper_runtime.names import dtype_of

__all__ = ["Rank"]

Events = Sequence[Instruction]
Thunk = Callable[..., Any]


class Rank:
    """One rank during one call of an entry point.

    Methods only enqueue: they return handles (values to come), tuples of handles and events, and
    never block. Instructions go to ``submit`` in program order. Every method takes ``after``, the
    events that the instruction waits for beside its stream's earlier instructions. What is enqueued
    behind a ``host_wait`` waits for that, too.
    """

    __slots__ = ("_blocked", "_inputs", "_number", "_submit", "home", "loss_scale", "outputs")

    def __init__(
        self,
        home: Home,
        *,
        inputs: Sequence[Mapping[str, Tensor]],
        submit: Callable[[Instruction], None],
        loss_scale: float = 1.0,
    ) -> None:
        """Start a call; ``inputs`` holds one mapping per microbatch.

        ``loss_scale`` is for instructions that are ``scaled``.
        """
        self.home = home
        self.loss_scale = loss_scale
        self.outputs: dict[str, Tensor] = {}
        self._blocked: Instruction | None = None  # the last host_wait, unless it is done
        self._inputs = inputs
        self._number = 0
        self._submit = submit

    # Values that enter and leave.

    def read(self, bucket: str, *, slot: str = "value", after: Events = ()) -> Handle:
        """Return the flat tensor of a bucket as it is now: ``slot`` value, compute or grad."""
        held = self.home.bucket(bucket)
        held.check_slot(slot)
        thunk = partial(held.slot, slot)
        return self._compute("read", bucket, thunk, after=after, slot=slot)

    def write(
        self, bucket: str, value: Handle, *, slot: str = "compute", after: Events = ()
    ) -> None:
        """Set the compute slot of a bucket, in place, to what was derived from its new value."""
        held = self.home.bucket(bucket)
        held.check_slot(slot)
        if slot != "compute":
            raise ProgramError(f"write of {bucket!r} expected slot compute, got {slot!r}")
        self._enqueue(
            "write", COMPUTE, bucket, None, (value,), 0, after, held.write, None, slot=slot
        )

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
        scaled: bool = False,
        after: Events = (),
    ) -> Handle:
        """Return the scalar ``coeff / max(1, count)``, or ``coeff``, in the dtype of the loss.

        If it is ``scaled``, it is multiplied by the loss scale, and so are all gradients.
        """
        wanted = self.home.loss_dtypes[loss] if dtype is None else dtype_of(dtype)
        operands = () if count is None else (count,)
        coeff = coeff * self.loss_scale if scaled else coeff
        thunk = partial(compute.tangent, coeff, wanted, self.home.device)
        return self._compute("tangent", loss, thunk, operands, after=after)

    def output(
        self,
        name: str,
        value: Handle,
        *,
        scale: Handle | None = None,
        scaled: bool = False,
        mb: int | None = None,
        after: Events = (),
    ) -> None:
        """Report ``value * scale``; several outputs of one name are summed.

        If ``scale`` is ``scaled``, as a tangent may be, the loss scale is divided out.
        """
        operands = (value,) if scale is None else (value, scale)
        thunk = partial(self._put, name, self.loss_scale if scaled else None)
        self._enqueue("output", COMPUTE, name, mb, operands, 0, after, thunk, None)

    # Compute.

    def run(
        self, function: Thunk, *operands: Handle, mb: int | None = None, after: Events = ()
    ) -> Any:
        """Call a chunk; returns None, a handle or a tuple of handles, as the chunk declares."""
        results: int = function.results  # type: ignore[attr-defined]
        name = f"chunk {function.__name__}"
        handles, _ = self._enqueue(
            "run", COMPUTE, name, mb, operands, results, after, function, None
        )
        return handles[0] if results == 1 else handles or None

    def sum(self, *operands: Handle, after: Events = ()) -> Handle:
        """Return the sum of tensors of one shape and dtype, added from left to right."""
        return self._compute("sum", "", compute.total, operands, after=after)

    def sumsq(self, *operands: Handle, dtype: str | None = None, after: Events = ()) -> Handle:
        """Return the scalar sum of squares of all elements, zero of none.

        Without ``dtype`` it is float64 of float64, else float32.
        """
        wanted = None if dtype is None else dtype_of(dtype)
        thunk = partial(compute.sumsq, wanted, self.home.device)
        return self._compute("sumsq", "", thunk, operands, after=after)

    def nonfinite(self, value: Handle, *, after: Events = ()) -> Handle:
        """Return whether a scalar is infinite or not a number, as a scalar."""
        return self._compute("nonfinite", "", compute.nonfinite, (value,), after=after)

    def slice(self, value: Handle, *, axis: str, dim: int = 0, after: Events = ()) -> Handle:
        """Return this rank's own of equal parts along ``dim``, one per rank along a mesh axis."""
        index, count = self.home.place(axis)
        thunk = partial(compute.part, dim, index, count)
        return self._compute("slice", axis, thunk, (value,), after=after)

    def convert(self, value: Handle, *, dtype: str, after: Events = ()) -> Handle:
        """Return the values in another dtype."""
        thunk = partial(compute.convert, dtype_of(dtype))
        return self._compute("convert", dtype, thunk, (value,), after=after)

    def accumulate(
        self, bucket: str, contribution: Handle, *, onto: Handle | None = None, after: Events = ()
    ) -> Handle:
        """Add a pack or flat tensor into the bucket's flat main gradient, and return that.

        A flat tensor is of the gradient's size. Without ``onto`` the gradient is overwritten; with
        it, ``onto`` becomes invalid.
        """
        operands = (contribution,) if onto is None else (contribution, onto)
        thunk = self.home.bucket(bucket).accumulate
        return self._compute("accumulate", bucket, thunk, operands, after=after)

    def update(
        self,
        bucket: str,
        gradient: Handle,
        *,
        norm: Handle | None = None,
        clip: float | None = None,
        skip: Handle | None = None,
        scaled: bool = False,
        after: Events = (),
    ) -> Handle:
        """Step the bucket's optimizer and return the new flat value: this rank's part of it.

        ``gradient`` is flat and of the value's size. ``norm`` is the SUM OF SQUARES of all
        gradients; with ``clip`` the gradient is scaled by ``min(1, clip / (sqrt(norm) + 1e-6))``
        first. ``skip`` is a scalar that, when it is not zero, leaves the state as it is; the host
        waits for it. It must be the same on all ranks. Gradient and norm that are ``scaled`` are
        divided by the loss scale before all else.
        """
        if clip is not None and norm is None:
            raise ProgramError(f"update of {bucket!r} with clip={clip} expected a norm, got none")
        operands: tuple[Handle, ...] = (gradient,)
        if norm is not None and clip is not None:
            operands += (norm,)
        if skip is not None:
            operands += (skip,)
        thunk = compute.Update(
            self.home.bucket(bucket),
            clip,
            may_skip=skip is not None,
            scale=self.loss_scale if scaled else None,
        )
        return self._compute("update", bucket, thunk, operands, after=after)

    def free(self, *handles: Handle, after: Events = ()) -> None:
        """Drop the values of ``handles``: using one later is an error."""
        thunk = partial(compute.free, handles, self.home.poison)
        _, event = self._enqueue(
            "free", COMPUTE, "", None, (), 0, after, thunk, None, freed=handles
        )
        for handle in handles:
            handle.freed_by = handle.freed_by or event

    def record(self, *, after: Events = ()) -> Instruction:
        """Return the event of everything enqueued on the compute stream so far."""
        return self._enqueue("record", COMPUTE, "", None, (), 0, after, compute.nothing, None)[1]

    def host_wait(self, *counts: Handle, mb: int | None = None, after: Events = ()) -> Any:
        """Let the host wait for integers of the device; all that is enqueued later waits, too.

        Returns the sizes that an ``all_to_all`` takes, for each operand its sums over all dims but
        the first: a handle, or a tuple of handles.
        """
        needed = (*after, *[handle.producer for handle in counts])
        handles, event = self._enqueue(
            "host_wait", HOST, "", mb, counts, len(counts), needed, compute.sizes, None
        )
        if not event.done:
            self._blocked = event
        return handles[0] if len(counts) == 1 else handles

    # Communication.

    def send(
        self,
        value: Handle,
        *,
        comm: str,
        peer: int,
        stream: str,
        mb: int | None = None,
        label: str = "",
        after: Events = (),
    ) -> Instruction:
        """Send a tensor to the rank at coordinate ``peer``; both ends call it ``label``."""
        message = Message(self.home.comm(comm), peer=self.home.peer(peer), label=label)
        return self._enqueue("send", stream, comm, mb, (value,), 0, after, None, message)[1]

    def recv(
        self,
        *,
        comm: str,
        peer: int,
        shape: tuple[int, ...],
        dtype: str,
        stream: str,
        mb: int | None = None,
        label: str = "",
        after: Events = (),
    ) -> tuple[Handle, Instruction]:
        """Receive a tensor from the rank at coordinate ``peer``; both ends call it ``label``."""
        message = Message(
            self.home.comm(comm),
            peer=self.home.peer(peer),
            shape=shape,
            dtype=dtype_of(dtype),
            label=label,
        )
        results, event = self._enqueue("recv", stream, comm, mb, (), 1, after, None, message)
        return results[0], event

    def all_reduce(
        self, value: Handle, *, comm: str, stream: str, mb: int | None = None, after: Events = ()
    ) -> tuple[Handle, Instruction]:
        """Sum over the members; a bucket's main gradient is reduced in place, else a new tensor."""
        message = Message(self.home.comm(comm), in_place=value.producer.kind == "accumulate")
        results, event = self._enqueue(
            "all_reduce", stream, comm, mb, (value,), 1, after, None, message
        )
        return results[0], event

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
        """Concatenate the members' tensors along ``dim``, in rank order, to a new tensor.

        Rank order is row-major in the mesh, so parts of a bucket that is sharded over the axes of
        ``comm`` make up the whole. The communicator is of one coordinate.
        """
        message = Message(self.home.comm(comm), dim=dim)
        results, event = self._enqueue(
            "all_gather", stream, comm, mb, (value,), 1, after, None, message
        )
        return results[0], event

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
        """Sum over the members and keep this member's equal part along ``dim``, a new tensor.

        There are as many parts as ranks along the axes of ``comm``; of a communicator of several
        coordinates, members at one place of these axes get the same part.
        """
        message = Message(self.home.comm(comm), dim=dim)
        results, event = self._enqueue(
            "reduce_scatter", stream, comm, mb, (value,), 1, after, None, message
        )
        return results[0], event

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
        message = Message(self.home.comm(comm), root=root)
        results, event = self._enqueue(
            "broadcast", stream, comm, mb, (value,), 1, after, None, message
        )
        return results[0], event

    def all_to_all(
        self,
        value: Handle,
        *,
        comm: str,
        stream: str,
        dim: int = 0,
        sizes: tuple[Handle, Handle] | None = None,
        bound: int | None = None,
        mb: int | None = None,
        label: str = "",
        after: Events = (),
    ) -> tuple[Handle, Instruction]:
        """Give part i along ``dim`` to member i; return what all gave to this one, in rank order.

        Parts are equal, or have ``sizes``: how many rows go to each member, and how many come from
        each, as ``host_wait`` knows them. More than ``bound`` rows in all are an error. The
        communicator is of one coordinate; all members call the value ``label``.
        """
        group = self.home.comm(comm)
        own = group.members.index(self.home.index)
        message = Message(group, dim=dim, label=label, own=own, bound=bound)
        results, event = self._enqueue(
            "all_to_all", stream, comm, mb, (value, *(sizes or ())), 1, after, None, message
        )
        return results[0], event

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
        slot: str = "",
    ) -> Handle:
        """Enqueue an instruction of the compute stream with one result."""
        line = self.home.lines.at(sys._getframe(2))
        results, _ = self._enqueue(
            kind, COMPUTE, label, mb, operands, 1, after, thunk, None, line=line, slot=slot
        )
        return results[0]

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
        slot: str = "",
    ) -> tuple[tuple[Handle, ...], Instruction]:
        """Submit an instruction of the program line that called the method.

        Returns its results and itself: a worker may finish it, and drop its results, at once.
        """
        line = line or self.home.lines.at(sys._getframe(2))
        blocked = self._blocked
        if blocked is not None:
            if blocked.done:
                self._blocked = None
            else:
                after = (*after, blocked)
        results = tuple([Handle() for _ in range(num_results)])
        instruction = Instruction(
            self, kind, stream, label, line, microbatch, operands, results, tuple(after), thunk,
            message, freed, self._number, slot,
        )  # fmt: skip
        self._number += 1
        for handle in results:
            handle.producer = instruction
        self._submit(instruction)
        return results, instruction

    def _take(self, name: str, microbatch: int) -> Tensor:
        return self._inputs[microbatch][name]

    def _put(
        self, name: str, loss_scale: float | None, value: Tensor, scale: Tensor | None = None
    ) -> None:
        if scale is None:
            value = value.clone()
        elif loss_scale is None:
            value = value * scale
        else:  # in double precision: a narrow loss times a large scale would overflow
            value = (value.double() * scale.double() / loss_scale).to(value.dtype)
        self.outputs[name] = self.outputs[name] + value if name in self.outputs else value
