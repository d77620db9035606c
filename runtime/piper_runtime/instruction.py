"""Instructions: what a rank program enqueues, and the handles through which values flow."""

from __future__ import annotations

import linecache
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from piper_runtime.errors import InstructionError, RemoteError, StallError
from piper_runtime.failures.culprit import find_op
from piper_runtime.mesh import Comm

if TYPE_CHECKING:
    from piper_runtime.rank import Rank

__all__ = ["COMPUTE", "HOST", "Handle", "Hook", "Instruction", "Message"]

COMPUTE = "compute"
HOST = "host"
"""The queue of what the host does: it goes on when that is done."""


class _Absent:
    """A value that is not there: not yet produced, or freed."""

    __slots__ = ("reason",)

    def __init__(self, reason: str) -> None:
        self.reason = reason


UNSET = _Absent("is not ready")
FREED = _Absent("was freed")


class Handle:
    """The future value of one result of an instruction: a tensor, a pack (a tuple of them), or sizes
    (a list of numbers that the host knows).
    """

    __slots__ = ("freed_by", "producer", "value")

    value: Any
    producer: Instruction
    freed_by: Instruction | None

    def __init__(self) -> None:
        """Make a handle whose value is not there yet."""
        self.value = UNSET
        self.freed_by = None

    def get(self) -> Any:
        """Return the value; raises RuntimeError if it is not ready, or was freed."""
        value = self.value
        if value.__class__ is _Absent:
            raise RuntimeError(self._explain(value))
        return value

    def free(self) -> None:
        """Drop the value. A later ``get`` is an error that names the instruction that freed it."""
        self.value = FREED

    def _explain(self, absent: _Absent) -> str:
        cause = self.producer if absent is UNSET else self.freed_by
        verb = "it comes from" if absent is UNSET else "by"
        return f"operand {absent.reason}: {verb} {cause.place() if cause else 'an unknown line'}"


@dataclass(slots=True, eq=False)
class Message:
    """What a communication instruction tells the transport.

    ``peer`` is a world rank (send, recv), ``root`` the index of a member of the communicator
    (broadcast), ``dim`` a tensor dim (all_gather, reduce_scatter, all_to_all); ``shape`` and
    ``dtype`` are those of a received tensor, and ``buffer`` where a transport puts it; ``in_place``
    says that an all_reduce may write its operand. ``label`` is what the program calls the value of
    a message, such as ``layer.0$F#1``, on both ends, or nothing.

    Of an all_to_all, ``own`` is the index of this rank among the members, ``bound`` the most rows
    that it may receive (None: any number), and ``sent``, once that is known, the bytes that it
    gives to other ranks.
    """

    comm: Comm
    peer: int = -1
    root: int = 0
    dim: int = 0
    shape: tuple[int, ...] = ()
    dtype: torch.dtype = torch.float32
    in_place: bool = False
    label: str = ""
    buffer: Tensor | None = None
    own: int = -1
    bound: int | None = None
    sent: int | None = None


class Hook(Protocol):
    """Something that watches instructions, or meddles with them, as they are executed.

    What it raises is the failure of the instruction.
    """

    def before(self, instruction: Instruction) -> None:
        """Act when the instruction is at the head of its stream and its events are done."""

    def after(self, instruction: Instruction, value: Any) -> None:
        """Act on what it made, ``value``, before anyone can use that."""


@dataclass(slots=True, eq=False)
class Instruction:
    """One line of a rank program. It is also the event of its own completion.

    It may start when all earlier instructions of its stream and all of ``waits`` are done.
    ``thunk`` maps operand values to the result (a tuple for several results); a communication
    instruction has a ``message`` instead and is performed by the transport. ``freed`` are the
    handles that a free drops, ``slot`` is that of the bucket which a read or write is about, and
    ``number`` counts the instructions of its program from 0.
    """

    rank: Rank
    kind: str
    stream: str
    label: str
    line: int
    microbatch: int | None
    operands: tuple[Handle, ...]
    results: tuple[Handle, ...]
    waits: tuple[Instruction, ...]
    thunk: Callable[..., Any] | None
    message: Message | None
    freed: tuple[Handle, ...] = ()
    number: int = -1
    slot: str = ""
    hooks: tuple[Hook, ...] = ()
    done: bool = False

    def finish(self) -> None:
        """Mark the event done and let go of values: the last user of one frees it."""
        self.operands = self.results = self.freed = ()
        self.waits = ()
        self.thunk = None
        self.done = True

    def begin(self) -> None:
        """Tell the hooks that the instruction is about to be executed."""
        for hook in self.hooks:
            hook.before(self)

    def execute(self) -> None:
        """Call the thunk and store its results; raises InstructionError."""
        assert self.thunk is not None
        try:
            self.begin()
            self.store(self.thunk(*[operand.get() for operand in self.operands]))
        except (InstructionError, RemoteError, StallError):
            raise  # named already, or brought by a signal
        except Exception as error:
            raise self.failure(error) from error

    def store(self, value: Any) -> None:
        """Give the results their values and finish."""
        for hook in self.hooks:
            hook.after(self, value)
        results = self.results
        if len(results) == 1:
            results[0].value = value
        elif results:
            if not isinstance(value, tuple) or len(value) != len(results):
                got = len(value) if isinstance(value, tuple) else 1
                raise ValueError(f"{self.label} expected {len(results)} results, got {got}")
            for handle, item in zip(results, value, strict=True):
                handle.value = item
        self.finish()

    def text(self) -> str:
        """Return the program line, without its comment."""
        line = linecache.getline(self.rank.home.file, self.line).split("  #")[0].strip()
        return line or f"{self.kind} {self.label}"

    def origin(self) -> str:
        """Return what the program line's comment says: cell, source line, module, directive."""
        return linecache.getline(self.rank.home.file, self.line).partition("  #")[2].strip()

    def place(self) -> str:
        """Return ``program_pp1.py:57: `y_0 = r.run(...)` ``."""
        name = Path(self.rank.home.file).name.rstrip(">")
        return f"{name}:{self.line}: `{self.text()}`"

    def describe(self) -> str:
        """Return rank, place, chunk or bucket, and microbatch in words."""
        label = f", {self.label}" if self.label else ""
        microbatch = "" if self.microbatch is None else f", microbatch {self.microbatch}"
        return f"{self.rank.home.name}, {self.place()}{label}{microbatch}"

    def identity(self) -> str:
        """Return which value a communication instruction is about: the same on all members.

        A message has its label and microbatch, and so has an all_to_all, the reduction of a
        gradient its bucket.
        """
        if self.message is not None and self.kind in ("send", "recv"):
            return f"{self.message.label or 'a message'} of microbatch {self.microbatch}"
        if self.message is not None and self.kind == "all_to_all":
            label = f" {self.message.label}" if self.message.label else ""
            return f"{self.kind}{label} of microbatch {self.microbatch}"
        maker = self.operands[0].producer
        what = f" of {maker.label}" if maker.kind == "accumulate" else ""
        return f"{self.kind}{what}"

    def failure(self, error: BaseException) -> InstructionError:
        """Return the error to raise for ``error``, naming this instruction, where it is from and,
        for an op of a kernel, its line.
        """
        if isinstance(error, InstructionError):
            return error
        origin, op = self.origin(), find_op(error)
        where = f"\nfrom {origin}" if origin else ""
        if op is not None:
            where += f"\nin {op}"
        return InstructionError(f"{self.describe()}: {type(error).__name__}: {error}{where}")
