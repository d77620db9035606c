"""Names of instructions that people type: ``layer.1$B mb 0``, ``send layer.1$B#0 mb 0``, a line.

``[KIND] NAME [mb M]``: the method of the rank, then the chunk, bucket, input, output or
communicator, or what a message carries, then the microbatch. Anything that is not a letter or a
digit may be written as ``_``. Or ``FILE:LINE``, such as ``program_pp1.py:57``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from piper_runtime.instruction import Instruction

__all__ = ["Name", "find_instruction"]


@dataclass(frozen=True, slots=True)
class Name:
    """A name that was read; what it leaves open is empty or None."""

    text: str
    kind: str = ""
    name: str = ""
    microbatch: int | None = None
    file: str = ""
    line: int = 0

    @staticmethod
    def parse(text: str) -> Name:
        """Read a name; raises ValueError."""
        place = re.fullmatch(r"([^\s:]+\.py):(\d+)", text.strip())
        if place is not None:
            return Name(text, file=place[1], line=int(place[2]))
        found = re.fullmatch(r"(?:(\w+)\s+)?(\S+?)(?:\s+mb\s+(\d+))?", text.strip())
        if found is None:
            raise ValueError(
                f"instruction expected as '[KIND] NAME [mb M]' or 'FILE:LINE', got {text!r}"
            )
        kind, name, microbatch = found.groups()
        number = None if microbatch is None else int(microbatch)
        return Name(text, kind or "", _plain(name), number)

    def fits(self, instruction: Instruction) -> bool:
        """Return whether the name is one of an instruction."""
        if self.file:
            file = Path(instruction.rank.home.file).name.rstrip(">")
            return (file, instruction.line) == (self.file, self.line)
        return (
            self.kind in ("", instruction.kind)
            and self.name in map(_plain, _names(instruction))
            and self.microbatch in (None, instruction.microbatch)
        )


def find_instruction(text: str, instructions: Iterable[Instruction], *, where: str) -> Instruction:
    """Return the first of ``instructions`` that ``text`` names.

    Raises ValueError with the names that are nearest; ``where`` says what they are of.
    """
    name, known = Name.parse(text), list(instructions)
    for instruction in known:
        if name.fits(instruction):
            return instruction
    names = dict.fromkeys(full for instruction in known for full in _full_names(instruction))
    near = get_close_matches(text, list(names), n=3, cutoff=0.0)
    raise ValueError(
        f"expected an instruction of {where}, such as {', '.join(map(repr, near))}, got {text!r}"
    )


def _names(instruction: Instruction) -> list[str]:
    """Return what an instruction may be called, beside its kind."""
    names = [instruction.label.removeprefix("chunk ")]
    if instruction.message is not None:
        names.insert(0, instruction.message.label)
    return [name for name in names if name]


def _full_names(instruction: Instruction) -> list[str]:
    mb = "" if instruction.microbatch is None else f" mb {instruction.microbatch}"
    kind = "" if instruction.kind == "run" else f"{instruction.kind} "
    return [f"{kind}{name}{mb}" for name in _names(instruction)]


def _plain(name: str) -> str:
    return re.sub(r"\W", "_", name)
