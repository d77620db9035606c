"""``Stepper``: one call on the local transport, instruction by instruction, with a look at values.

stepper = trainer.stepper(batch)
stepper.run_until("layer.1$B mb 0", rank=2)    # the next instruction is that one
stepper.value("from0_m0", rank=2)              # what the variable of its program holds now
stepper.step()                                 # execute it: in a debugger, step into its chunk
stepper.finish()                               # the rest; the outputs
"""

from __future__ import annotations

import ast
import linecache
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from difflib import get_close_matches
from typing import Any

from piper_runtime.instruction import Handle, Instruction
from piper_runtime.lookup import Name, find_instruction
from piper_runtime.rank import Rank
from piper_runtime.transports.local import LocalTransport

__all__ = ["Stepper"]

Outputs = dict[str, float]


class Stepper:
    """A call whose instructions wait to be executed, in the order that the transport chooses.

    Iterating executes one at a time and yields what was executed: an instruction, or all members
    of a message or collective. A message happens at once, with all its members, when all are there.
    """

    def __init__(
        self,
        transport: LocalTransport,
        ranks: Mapping[int, Rank],
        *,
        running: Callable[[], AbstractContextManager[None]],
        finish: Callable[[], Outputs],
    ) -> None:
        """Take what was submitted to the transport; it is executed within ``running``."""
        self._transport, self._running, self._finish = transport, running, finish
        self._pending = transport.pending()
        self._bound = _bind(self._pending)
        self._ranks = tuple(ranks)
        self._walk = transport.walk()
        self.upcoming: Instruction | None = None
        """The instruction that is executed next, None at the end."""
        self._advance()

    def __iter__(self) -> Iterator[list[Instruction]]:
        """Execute what is left, one by one."""
        while self.upcoming is not None:
            yield self.step()

    def __repr__(self) -> str:
        """Return what comes next."""
        head = self.upcoming
        return f"<Stepper: next {head.describe()}>" if head else "<Stepper: at the end>"

    def step(self) -> list[Instruction]:
        """Execute the next instruction and return it, or all members of a communication.

        Raises InstructionError if it fails, DeadlockError if nothing can go on and RuntimeError at
        the end.
        """
        if self.upcoming is None:
            raise RuntimeError("step expected an instruction that is left, got none")
        members = self._transport.members(self.upcoming)
        self._advance()
        return members

    def run_until(self, where: str, *, rank: int | None = None) -> Instruction:
        """Execute until ``where`` is next, on ``rank`` or any, and return it; see ``lookup``.

        Raises ValueError if nothing that is left is called so.
        """
        self._check_rank(rank)
        left = [i for i in self._pending if not i.done and rank in (None, i.rank.home.index)]
        what = "what is left" if rank is None else f"what is left of rank {rank}"
        find_instruction(where, left, where=what)
        name = Name.parse(where)
        while self.upcoming is not None:
            for member in self._transport.members(self.upcoming):
                if name.fits(member) and rank in (None, member.rank.home.index):
                    return member
            self.step()
        raise AssertionError("an instruction that was left was not executed")

    def value(self, name: str, *, rank: int) -> Any:
        """Return what variable ``name`` of a rank's program holds now: a tensor or a tuple.

        A name that is bound several times has the value that was made last. Raises ValueError for a
        name that the program does not have, RuntimeError if its value is not made yet, or freed.
        """
        self._check_rank(rank)
        bound = self._bound[rank]
        if name not in bound:
            near = get_close_matches(name, list(bound), n=3, cutoff=0.0)
            raise ValueError(
                f"expected a variable of the program of rank {rank}, such as "
                f"{', '.join(map(repr, near))}, got {name!r}"
            )
        made = [handle for maker, handle in bound[name] if maker.done]
        return (made[-1] if made else bound[name][0][1]).get()

    def values(self, *, rank: int) -> dict[str, Any]:
        """Return all variables of a rank's program whose values are made and not freed."""
        found = {}
        for name in self._bound[rank]:
            try:
                found[name] = self.value(name, rank=rank)
            except RuntimeError:
                continue
        return found

    def finish(self) -> Outputs:
        """Execute what is left and return all outputs of the entry point."""
        for _ in self:
            pass
        return self._finish()

    def close(self) -> None:
        """Forget what is left: the call is abandoned."""
        self._walk.close()
        self.upcoming = None

    def _advance(self) -> None:
        self.upcoming = None  # also if the instruction fails
        with self._running():
            self.upcoming = next(self._walk, None)

    def _check_rank(self, rank: int | None) -> None:
        if rank is not None and rank not in self._ranks:
            raise ValueError(f"expected a rank of {list(self._ranks)}, got {rank}")


Bound = dict[str, list[tuple[Instruction, Handle]]]


def _bind(instructions: list[Instruction]) -> dict[int, Bound]:
    """Return, by rank, which results each variable of its program is bound to, in program order."""
    targets: dict[str, dict[int, list[str]]] = {}
    bound: dict[int, Bound] = {}
    for instruction in sorted(instructions, key=lambda instruction: instruction.number):
        home = instruction.rank.home
        if home.file not in targets:
            targets[home.file] = _targets("".join(linecache.getlines(home.file)))
        names = targets[home.file].get(instruction.line, [])
        ours = bound.setdefault(home.index, {})
        for name, handle in zip(names, instruction.results, strict=False):  # an event has no handle
            ours.setdefault(name, []).append((instruction, handle))
    return bound


def _targets(text: str) -> dict[int, list[str]]:
    """Return the names that each line assigns, in order."""
    found: dict[int, list[str]] = {}
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            names = [n.id for n in ast.walk(node.targets[0]) if isinstance(n, ast.Name)]
            found[node.value.lineno] = names
    return found
