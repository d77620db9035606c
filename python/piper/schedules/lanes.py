"""Writing a row whose two stages each take their microbatches in order."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from piper.schedules.cell import Action, Pair

__all__ = ["Lane", "LaneRow"]


@dataclass
class Lane:
    """A stage of a rank, and the next microbatch of its forwards and of its backwards."""

    stage: int
    next_forward: int = 0
    next_backward: int = 0

    def forward(self) -> Action:
        """The next F."""
        self.next_forward += 1
        return Action(self.stage, "F", self.next_forward - 1)

    def backward(self) -> Action:
        """The next backward, whole."""
        self.next_backward += 1
        return Action(self.stage, "B", self.next_backward - 1)

    def input(self) -> Action:
        """The next backward, only its input half."""
        self.next_backward += 1
        return Action(self.stage, "I", self.next_backward - 1)


@dataclass
class LaneRow:
    """A row in the making; W halves run in the order of their I halves."""

    cells: list[Action | Pair] = field(default_factory=list)
    _weights: deque[Action] = field(default_factory=deque)

    def forward(self, lane: Lane, *, times: int = 1) -> None:
        """Run the next F of a lane."""
        self.cells += [lane.forward() for _ in range(times)]

    def backward(self, lane: Lane) -> None:
        """Run the next B of a lane."""
        self.cells.append(lane.backward())

    def input(self, lane: Lane) -> None:
        """Run the next I of a lane; its W waits for `weight`."""
        action = lane.input()
        self.cells.append(action)
        self._weights.append(Action(action.stage, "W", action.microbatch))

    def weight(self, *, times: int = 1) -> None:
        """Run the W that has waited longest."""
        self.cells += [self._weights.popleft() for _ in range(times)]

    def pair(self, forward: Lane, backward: Lane) -> None:
        """Run the next F of one lane and the next B of another together."""
        self.cells.append(Pair(forward.forward(), backward.backward()))
