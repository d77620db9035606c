"""A transport that says how much collectives move."""

from __future__ import annotations

from collections import Counter

from piper_runtime import LocalTransport
from piper_runtime.instruction import Instruction

__all__ = ["Weighing"]

COLLECTIVES = ("all_reduce", "reduce_scatter", "all_gather", "broadcast")


class Weighing(LocalTransport):
    """Weighs what collectives are handed, by rank and kind, but for the loss and other numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.operands: Counter[tuple[int, str]] = Counter()  # bytes

    def submit(self, instruction: Instruction) -> None:
        """Have this weigh the operands of an instruction when they are there."""
        instruction.hooks = (*instruction.hooks, self)
        super().submit(instruction)

    def before(self, instruction: Instruction) -> None:
        """Weigh."""
        if instruction.kind in COLLECTIVES:
            value = instruction.operands[0].get()
            if value.ndim:
                self.operands[instruction.rank.home.index, instruction.kind] += value.nbytes

    def after(self, instruction: Instruction, value: object) -> None:
        """Do nothing."""
