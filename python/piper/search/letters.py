"""The letters that orders are written with: what a rank can do in one go."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Final, NamedTuple

from piper.schedules import Pass
from piper.search.problem import Problem

__all__ = ["PASSES", "B", "F", "I", "Input", "Letter", "Letters", "W"]

PASSES: Final[Sequence[Pass]] = ("F", "I", "W", "B")
F, I, W, B = range(4)


class Input(NamedTuple):
    """A letter that writes entry n of channel `own` waits for entry n of channel `source`."""

    own: int
    source: int
    delay: float


class Letter(NamedTuple):
    """What a letter takes, holds from its start, releases at its end, reads and writes."""

    time: float
    gain: float
    loss: float
    inputs: tuple[Input, ...]
    outputs: tuple[int, ...]
    what: tuple[tuple[Pass, int], ...]
    """Each pass with its lane; the forward of a pair comes first."""


class Letters:
    """The letters of a problem.

    Letter `4 * lane + pass` is F, I, W or B of that lane; behind those come pairs. What is made
    goes through channels, four per lane: of F, of I or B, of I alone, of W.
    """

    letters: Sequence[Letter]

    def __init__(self, problem: Problem) -> None:
        """Number the letters."""
        self.problem = problem
        lanes = problem.lanes
        self._lanes = {(lane.stage, lane.microbatches): n for n, lane in enumerate(lanes)}
        self.letters = letters = []
        for lane in range(len(lanes)):
            letters += [self._forward(lane), *self._backward(lane)]
        self._singles = len(letters)
        self.pairs: dict[tuple[int, int], int] = {}  # by lanes of forward and backward
        for f, forward in enumerate(lanes):
            for b, backward in enumerate(lanes):
                is_here = forward.rank == backward.rank
                if is_here and problem.saved(forward.stage, backward.stage) > 0:
                    self.pairs[f, b] = len(letters)
                    letters.append(self._pair(f, b))

    def lane(self, stage: int, microbatches: tuple[int, ...]) -> int:
        """The number of a lane."""
        return self._lanes[stage, microbatches]

    def overlap(self, first: int, second: int) -> int | None:
        """The pair of two letters, a forward and any backward in either order, if it saves time."""
        for forward, backward in ((first, second), (second, first)):
            if forward % 4 == F and backward % 4 in (I, B) and max(first, second) < self._singles:
                return self.pairs.get((forward // 4, backward // 4))
        return None

    def passes(self, lane: int) -> tuple[int, ...]:
        """The letters that do all the work of a lane: F, I, W, or F, B where that is less work."""
        first = 4 * lane
        return (first + F, first + B) if self._is_whole(lane) else (first + F, first + I, first + W)

    @cached_property
    def has_wholes(self) -> bool:
        """Whether any whole backward takes less time than its halves."""
        return any(self._is_whole(lane) for lane in range(len(self.problem.lanes)))

    @property
    def has_forms(self) -> bool:
        """Whether any pair or whole backward takes less time than its parts."""
        return self.has_wholes or bool(self.pairs)

    def _is_whole(self, lane: int) -> bool:
        s = self.problem.lanes[lane].stage
        return self.problem.b[s] < self.problem.i[s] + self.problem.w[s]

    def _forward(self, lane: int) -> Letter:
        problem, here = self.problem, self.problem.lanes[lane]
        inputs: tuple[Input, ...] = ()
        before = self._next(lane, -1)
        if before is not None:
            delay = problem.message(here.stage - 1, here.microbatches[0])
            inputs = (Input(4 * lane, 4 * before, delay),)
        gain = problem.held[here.stage]
        return Letter(problem.f[here.stage], gain, 0.0, inputs, (4 * lane,), (("F", lane),))

    def _backward(self, lane: int) -> tuple[Letter, Letter, Letter]:
        """I, W and B."""
        problem, here = self.problem, self.problem.lanes[lane]
        s, held = here.stage, problem.held[here.stage]
        forward, back, cut, weight = range(4 * lane, 4 * lane + 4)
        inputs = [Input(back, forward, 0.0)]
        behind = self._next(lane, 1)
        if behind is not None:
            delay = problem.message(s, here.microbatches[0])
            inputs.append(Input(back, 4 * behind + 1, delay))
        waits = (Input(weight, cut, 0.0),)
        return (
            Letter(problem.i[s], 0.0, 0.0, tuple(inputs), (back, cut), (("I", lane),)),
            Letter(problem.w[s], 0.0, held, waits, (weight,), (("W", lane),)),
            Letter(problem.b[s], 0.0, held, tuple(inputs), (back,), (("B", lane),)),
        )

    def _pair(self, forward: int, backward: int) -> Letter:
        f, b = self.letters[4 * forward + F], self.letters[4 * backward + B]
        stages = [self.problem.lanes[lane].stage for lane in (forward, backward)]
        return Letter(
            self.problem.pair(*stages),
            f.gain,
            b.loss,
            f.inputs + b.inputs,
            f.outputs + b.outputs,
            f.what + b.what,
        )

    def _next(self, lane: int, step: int) -> int | None:
        """The lane of the same microbatches in the stage before or behind."""
        here = self.problem.lanes[lane]
        return self._lanes.get((here.stage + step, here.microbatches))
