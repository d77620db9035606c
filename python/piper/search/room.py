"""Whether memory lets a forward start now without a deadlock later."""

from __future__ import annotations

from collections.abc import Sequence

from piper.search.problem import Lane, Problem

__all__ = ["Room"]


class Room:
    """What ranks hold while an order is being made.

    A rank with several stages must not fill up with chunks that wait for each other's room. So a
    forward may start only if, after it, all microbatches that have started could still end, one
    after the other (the banker's algorithm; Dijkstra, 1965). Those that run at the same places come
    in order, so that only the oldest of each group need be asked.
    """

    def __init__(self, problem: Problem) -> None:
        """Start with nothing held."""
        self._problem = problem
        self._free = [limit * (1 + 1e-9) for limit in problem.limits]
        self._group = {group: n for n, group in enumerate(problem.groups)}
        self._is_simple = len(problem.lanes) == problem.ranks
        self._needs = [_needs(problem, group) for group in problem.groups]
        # By group and microbatch: how many stages have run F, and the lanes that hold a chunk.
        self._run = [[0] * len(group) for group in problem.groups]
        self._chunks: list[list[list[Lane]]] = [[[] for _ in group] for group in problem.groups]
        self._started = [0] * len(problem.groups)
        self._ended = [0] * len(problem.groups)

    def admits(self, lane: Lane, number: int) -> bool:
        """Whether F of the microbatch that is `number` in a lane may start."""
        if self._problem.held[lane.stage] > self._free[lane.rank]:
            return False
        if self._is_simple:
            return True
        group = self._group[lane.microbatches]
        started = self._started[group]
        self.start(lane, number)
        is_safe = self._is_safe()
        self._take_back(lane, number)
        self._run[group][number] -= 1
        self._started[group] = started
        return is_safe

    def start(self, lane: Lane, number: int) -> None:
        """Note an F."""
        group = self._group[lane.microbatches]
        self._free[lane.rank] -= self._problem.held[lane.stage]
        self._run[group][number] += 1
        self._chunks[group][number].append(lane)
        self._started[group] = max(self._started[group], number + 1)

    def release(self, lane: Lane, number: int) -> None:
        """Note a W or B."""
        self._take_back(lane, number)
        group = self._group[lane.microbatches]
        while self._ended[group] < self._started[group] and self._is_over(group):
            self._ended[group] += 1

    def _take_back(self, lane: Lane, number: int) -> None:
        self._free[lane.rank] += self._problem.held[lane.stage]
        self._chunks[self._group[lane.microbatches]][number].remove(lane)

    def _is_over(self, group: int) -> bool:
        number = self._ended[group]
        return self._run[group][number] == self._problem.stages and not self._chunks[group][number]

    def _is_safe(self) -> bool:
        """Whether all that have started can end."""
        free = list(self._free)
        ended = list(self._ended)
        moved = True
        while moved:
            if _fits(self._problem.least, free):
                return True
            moved = False
            for group, number in enumerate(ended):
                if number < self._started[group] and self._ends(group, number, free):
                    ended[group] += 1
                    moved = True
        return ended == self._started

    def _ends(self, group: int, number: int, free: list[float]) -> bool:
        """Let a microbatch run to its end, if there is room, and give back all that it holds."""
        if not _fits(self._needs[group][self._run[group][number]], free):
            return False
        for lane in self._chunks[group][number]:
            free[lane.rank] += self._problem.held[lane.stage]
        return True


def _fits(needs: Sequence[float], free: Sequence[float]) -> bool:
    return all(need <= room for need, room in zip(needs, free, strict=True))


def _needs(problem: Problem, group: Sequence[int]) -> list[list[float]]:
    """What a microbatch still needs on each rank, by how many stages have run its F."""
    needs = [[0.0] * problem.ranks]
    for stage in reversed(range(problem.stages)):
        more = list(needs[0])
        more[problem.homes.of(stage, group[0])] += problem.held[stage]
        needs.insert(0, more)
    return needs
