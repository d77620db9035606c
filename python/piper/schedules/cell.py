"""What a cell of a table can hold, and its text, which is torch's notation."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, cast, get_args

__all__ = [
    "Action",
    "Cell",
    "Communication",
    "CommunicationKind",
    "Pair",
    "Pass",
    "draw_cell",
    "members",
    "parse_cell",
]

Pass = Literal["F", "B", "I", "W"]
"""Forward, whole backward, or its two halves: input gradient and weight gradient."""

CommunicationKind = Literal[
    "SEND_F", "RECV_F", "SEND_B", "RECV_B", "UNSHARD", "RESHARD", "REDUCE_GRAD"
]
"""What else torch's schedules issue: messages, each of a microbatch, and work on parameters."""

_ACTION = re.compile(r"(\d+)([FBIW])(\d+)", re.ASCII)
_COMMUNICATION = re.compile(rf"(\d+)({'|'.join(get_args(CommunicationKind))})(\d*)", re.ASCII)
_PAIR = re.compile(r"\(([^;]*);([^;]*)\)OVERLAP_F_B")
_IDLE = "."
_EXPECTED = (
    "expected an action such as 2F0, a pair such as (0F1;3B0)OVERLAP_F_B or communication such as "
    "1SEND_F0"
)


@dataclass(frozen=True, slots=True)
class Action:
    """One pass of one stage on one microbatch; its text is `2F0`."""

    stage: int
    pass_: Pass
    microbatch: int

    def __str__(self) -> str:
        """Torch's notation."""
        return f"{self.stage}{self.pass_}{self.microbatch}"


@dataclass(frozen=True, slots=True)
class Pair:
    """A forward and a backward that may overlap; its text is `(0F1;3B0)OVERLAP_F_B`.

    Both start when the inputs of both are there, and both end together.

    Raises:
        ValueError: the first is not an F, or the second neither a B nor an I.
    """

    forward: Action
    backward: Action

    def __post_init__(self) -> None:
        """Check the passes."""
        if self.forward.pass_ != "F" or self.backward.pass_ not in ("B", "I"):
            raise ValueError(
                f"a pair must hold one F and one B or I, got {self.forward} and {self.backward}"
            )

    def __str__(self) -> str:
        """Torch's notation."""
        return f"({self.forward};{self.backward})OVERLAP_F_B"


@dataclass(frozen=True, slots=True)
class Communication:
    """An action of torch's that Piper derives by itself: `1SEND_F0`, or `1UNSHARD` of no microbatch.

    Tables hold it so that torch's files can be read and written; no schedule of Piper's has any.

    Raises:
        ValueError: a message without a microbatch, or anything else with one.
    """

    stage: int
    kind: CommunicationKind
    microbatch: int | None = None

    def __post_init__(self) -> None:
        """Check that messages, and only they, have a microbatch."""
        if self.is_message != (self.microbatch is not None):
            right = "a microbatch" if self.is_message else "no microbatch"
            raise ValueError(f"{self.kind} must have {right}, got {self}")

    @property
    def is_message(self) -> bool:
        """Whether it sends or receives."""
        return self.kind.startswith(("SEND", "RECV"))

    def __str__(self) -> str:
        """Torch's notation."""
        return f"{self.stage}{self.kind}{'' if self.microbatch is None else self.microbatch}"


Cell = Action | Pair | Communication | None
"""What a row does in a step; None where it is idle."""


def members(cell: Cell) -> tuple[Action, ...]:
    """The actions of a cell: two of a pair, none of communication or an idle cell."""
    if isinstance(cell, Action):
        return (cell,)
    return (cell.forward, cell.backward) if isinstance(cell, Pair) else ()


def draw_cell(cell: Cell) -> str:
    """A cell as pictures show it: as its text, but a pair as `0F1&3B0` and an idle cell as `.`."""
    if isinstance(cell, Pair):
        return f"{cell.forward}&{cell.backward}"
    return _IDLE if cell is None else str(cell)


def parse_cell(text: str) -> Cell:
    """Read a cell, the whole of its text; nothing or `.` is idle.

    Raises:
        ValueError: the text is not wholly a cell.
    """
    if text in ("", _IDLE):
        return None
    if match := _ACTION.fullmatch(text):
        return Action(int(match[1]), cast(Pass, match[2]), int(match[3]))
    if match := _PAIR.fullmatch(text):
        return _parse_pair(text, match[1], match[2])
    if match := _COMMUNICATION.fullmatch(text):
        microbatch = int(match[3]) if match[3] else None
        return Communication(int(match[1]), cast(CommunicationKind, match[2]), microbatch)
    raise ValueError(f"{_EXPECTED}, got {text!r}")


def _parse_pair(text: str, *parts: str) -> Pair:
    """Read the members in either order."""
    if not all(_ACTION.fullmatch(part) for part in parts):
        raise ValueError(f"a pair must hold one F and one B or I, got {text!r}")
    first, second = (action for part in parts for action in members(parse_cell(part)))
    return Pair(first, second) if first.pass_ == "F" else Pair(second, first)
