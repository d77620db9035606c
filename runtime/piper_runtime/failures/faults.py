"""Faults on purpose: kill, delay or fail one instruction of one rank, to see what happens then.

    PIPER_FAULT="rank=2 step=3 instruction='layer.1_B mb 0' action=sleep:60" torchrun ...

``lookup`` says how instructions are called; the first that fits is meant. Only training steps
count, from 1.
"""

from __future__ import annotations

import math
import os
import shlex
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from piper_runtime.checks import record_program
from piper_runtime.errors import FaultError
from piper_runtime.instruction import Instruction
from piper_runtime.lookup import Name, find_instruction
from piper_runtime.program import LoadedProgram

__all__ = ["VARIABLE", "ArmedFault", "Fault", "arm", "hooked"]

VARIABLE = "PIPER_FAULT"
KEYS = ("rank", "instruction", "action", "step")
ACTIONS = "kill, raise or sleep:SECONDS"
Submit = Callable[[Instruction], None]


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault: what happens to ``instruction`` of ``rank`` in training step ``step``.

    ``action`` is ``kill`` (SIGKILL to the process), ``raise``, or ``sleep:SECONDS`` before the
    instruction. Raises ValueError for another action or numbers that cannot be.
    """

    rank: int
    instruction: str
    action: str
    step: int = 1

    def __post_init__(self) -> None:
        """Check all that can be checked without a program."""
        if self.rank < 0:
            raise ValueError(f"fault expected a rank of at least 0, got {self.rank}")
        if self.step < 1:
            raise ValueError(f"fault expected a step of at least 1, got {self.step}")
        if self.action not in ("kill", "raise"):
            _seconds(self.action)
        Name.parse(self.instruction)

    @staticmethod
    def parse(text: str) -> Fault:
        """Read ``rank=2 step=3 instruction='layer.1_B mb 0' action=kill``; raises ValueError."""
        try:
            words = shlex.split(text)
        except ValueError as error:
            raise ValueError(f"fault expected closed quotes, got {text!r}") from error
        values: dict[str, str] = {}
        for word in words:
            key, equals, value = word.partition("=")
            if key not in KEYS or not equals:
                raise ValueError(
                    f"fault expected {' '.join(f'{k}=...' for k in KEYS)}, got {word!r}"
                )
            if key in values:
                raise ValueError(f"fault expected one {key}, got {values[key]!r} and {value!r}")
            values[key] = value
        missing = [key for key in KEYS[:3] if key not in values]
        if missing:
            raise ValueError(f"fault expected {missing[0]}=..., got {text!r}")
        return Fault(
            rank=_number("rank", values["rank"]),
            instruction=values["instruction"],
            action=values["action"],
            step=_number("step", values.get("step", "1")),
        )


@dataclass(frozen=True, slots=True)
class ArmedFault:
    """A fault whose instruction is known, as a hook of that instruction."""

    fault: Fault
    number: int

    def strikes(self, entry_point: str, step: int) -> bool:
        """Return whether the fault happens in training step ``step``."""
        return entry_point == "train" and step == self.fault.step

    def attach(self, instruction: Instruction) -> None:
        """Become a hook of the instruction if it is the one."""
        if instruction.number == self.number and instruction.rank.home.index == self.fault.rank:
            instruction.hooks += (self,)

    def before(self, instruction: Instruction) -> None:
        """Say so on stderr, then do it."""
        action = self.fault.action
        text = f"fault of step {self.fault.step} at {instruction.describe()}: {action}"
        print(f"piper: {text}", file=sys.stderr, flush=True)
        if action == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif action == "raise":
            raise FaultError("this instruction was told to fail")
        else:
            time.sleep(_seconds(action))

    def after(self, instruction: Instruction, value: Any) -> None:
        """Do nothing."""


def arm(fault: Fault | str | None, loaded: LoadedProgram) -> ArmedFault | None:
    """Find the instruction of a fault, of its text, or of the environment's, if there is one.

    Raises ValueError for one that cannot be read, or that the program does not have.
    """
    if fault is None:
        fault = os.environ.get(VARIABLE)
    if not fault:
        return None
    if isinstance(fault, str):
        fault = Fault.parse(fault)
    mesh = loaded.manifest.mesh
    if fault.rank >= mesh.world_size:
        raise ValueError(f"fault expected a rank of mesh {mesh}, got {fault.rank}")
    instructions = record_program(loaded, "train", fault.rank)
    where = f"the program of rank {fault.rank}"
    found = find_instruction(fault.instruction, instructions, where=f"{where} for the fault")
    return ArmedFault(fault, found.number)


def hooked(submit: Submit, attach: Sequence[Submit]) -> Submit:
    """Return ``submit`` with something that may hook itself to each instruction before."""
    if not attach:
        return submit

    def submit_hooked(instruction: Instruction) -> None:
        for one in attach:
            one(instruction)
        submit(instruction)

    return submit_hooked


def _number(key: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"fault expected a number as {key}, got {text!r}") from None


def _seconds(action: str) -> float:
    """Return the seconds of ``sleep:SECONDS``; raises ValueError for any other action."""
    verb, _, text = action.partition(":")
    try:
        seconds = float(text) if verb == "sleep" else math.nan
    except ValueError:
        seconds = math.nan
    if not 0.0 <= seconds < math.inf:
        raise ValueError(f"fault expected {ACTIONS} as action, got {action!r}")
    return seconds
