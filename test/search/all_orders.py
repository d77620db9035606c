"""The least makespan by trying every order: slow, independent of `piper.search`, for tiny sizes.

It assumes nothing about microbatches: any may overtake any other.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from piper.schedules import Action, Homes, Pair, members
from piper.simulate import Costs

Done = frozenset[Action]
Ends = dict[Action, float]


@dataclass(frozen=True)
class Pipeline:
    """What is ordered; `limits` per rank, in the unit of what a chunk of each stage holds."""

    homes: Homes
    microbatches: int
    costs: Costs
    latency: float
    limits: Sequence[float]
    held: Sequence[float]

    def least(self) -> float:
        """The least makespan, infinite if no order keeps to the limits.

        Rows grow a cell at a time, in every way. Of states in which the same actions have run, one
        that is nowhere earlier than another is dropped.
        """
        total = 3 * self.homes.stages * self.microbatches
        states: list[dict[Done, list[Ends]]] = [{} for _ in range(total + 1)]
        states[0][frozenset()] = [{}]
        best = math.inf
        for layer in states:
            for done, all_ends in layer.items():
                if self._is_complete(done):
                    best = min(best, *(max(ends.values()) for ends in all_ends))
                for cell in self._cells(done):
                    after = done.union(members(cell))
                    kept = states[len(after)].setdefault(after, [])
                    for ends in all_ends:
                        self._add(kept, self._after(ends, cell))
        return best

    def _is_complete(self, done: Done) -> bool:
        return all(self._is_released(done, s, k) for s, k in self._works())

    def _works(self) -> Iterator[tuple[int, int]]:
        for stage in range(self.homes.stages):
            yield from ((stage, k) for k in range(self.microbatches))

    def _is_released(self, done: Done, stage: int, k: int) -> bool:
        return not done.isdisjoint({Action(stage, "W", k), Action(stage, "B", k)})

    def _cells(self, done: Done) -> Iterator[Action | Pair]:
        """What can run next."""
        able = [a for a in self._actions(done) if self._has_inputs(done, a)]
        yield from able
        for f in able:
            for b in able:
                same = self.homes.of(f.stage, f.microbatch) == self.homes.of(b.stage, b.microbatch)
                if f.pass_ == "F" and b.pass_ == "B" and same:
                    yield Pair(f, b)

    def _actions(self, done: Done) -> Iterator[Action]:
        """What has not run and has its turn in its own stage, and room."""
        for s, k in self._works():
            f, i, w, b = (Action(s, pass_, k) for pass_ in ("F", "I", "W", "B"))
            if f not in done:
                if self._has_room(done, s, k):
                    yield f
            elif i in done:
                if w not in done:
                    yield w
            elif b not in done:
                yield i
                yield b

    def _has_room(self, done: Done, stage: int, k: int) -> bool:
        rank = self.homes.of(stage, k)
        live = sum(
            self._held_now(done, s, other)
            for s, other in self._works()
            if self.homes.of(s, other) == rank
        )
        return live + self.held[stage] <= self.limits[rank]

    def _held_now(self, done: Done, stage: int, k: int) -> float:
        is_live = Action(stage, "F", k) in done and not self._is_released(done, stage, k)
        return self.held[stage] if is_live else 0.0

    def _has_inputs(self, done: Done, action: Action) -> bool:
        return all(not done.isdisjoint(choice) for choice in self._inputs(action))

    def _inputs(self, action: Action) -> list[set[Action]]:
        """What an action waits for on other ranks or in other stages, each in any of its forms."""
        s, k = action.stage, action.microbatch
        if action.pass_ == "F":
            return [{Action(s - 1, "F", k)}] if s > 0 else []
        if action.pass_ == "W" or s + 1 == self.homes.stages:
            return []
        return [{Action(s + 1, "I", k), Action(s + 1, "B", k)}]

    def _after(self, ends: Ends, cell: Action | Pair) -> Ends:
        """The ends of all actions once a cell has run too."""
        rank = self._rank(members(cell)[0])
        starts = [end for action, end in ends.items() if self._rank(action) == rank]
        for action in members(cell):
            for choice in self._inputs(action):
                made = next(other for other in choice if other in ends)
                delay = 0.0 if self._rank(made) == rank else self.latency
                starts.append(ends[made] + delay)
        end = max(starts, default=0.0) + self.costs.of(cell)
        return {**ends, **dict.fromkeys(members(cell), end)}

    def _rank(self, action: Action) -> int:
        return self.homes.of(action.stage, action.microbatch)

    def _add(self, kept: list[Ends], ends: Ends) -> None:
        new = self._open(ends)
        if not any(_is_nowhere_later(self._open(old), new) for old in kept):
            kept[:] = [old for old in kept if not _is_nowhere_later(new, self._open(old))]
            kept.append(ends)

    def _open(self, ends: Ends) -> list[float]:
        """The times that still matter: when ranks are free, and results that are yet to be used."""
        free = [0.0] * self.homes.ranks
        for action, end in ends.items():
            free[self._rank(action)] = max(free[self._rank(action)], end)
        unused = [
            end
            for action, end in sorted(ends.items(), key=lambda item: str(item[0]))
            if self._is_wanted(action, ends)
        ]
        return free + unused

    def _is_wanted(self, action: Action, ends: Ends) -> bool:
        s, k = action.stage, action.microbatch
        if action.pass_ == "F":
            return s + 1 < self.homes.stages and Action(s + 1, "F", k) not in ends
        backward = {Action(s - 1, "I", k), Action(s - 1, "B", k)}
        return action.pass_ != "W" and s > 0 and ends.keys().isdisjoint(backward)


def _is_nowhere_later(one: Sequence[float], other: Sequence[float]) -> bool:
    return all(a <= b for a, b in zip(one, other, strict=True))
