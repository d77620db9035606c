"""Orders as words: the form in which they are searched, and how long one takes.

Microbatches that run at the same places are alike. If an order lets them overtake each other,
numbering them anew as they come through each pass of each stage gives one that is no slower and
holds no more. So a rank's row is told by which pass of which lane comes when: a word of letters.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter, defaultdict, deque
from collections.abc import Iterator, Sequence

from piper.schedules import Action, Cell, Pair, Pass, Table, members
from piper.search.letters import PASSES, Letters
from piper.search.problem import Problem

__all__ = ["Rows", "Words"]

Rows = Sequence[Sequence[int]]
"""A word per rank, of letters by number."""


class Words(Letters):
    """The letters of a problem, and what rows of them take."""

    def __init__(self, problem: Problem) -> None:
        """Number the letters."""
        super().__init__(problem)
        self._group = {k: lane.microbatches for lane in problem.lanes for k in lane.microbatches}
        slack = 1 + 1e-9  # limits and what chunks hold may be sums that rounding has touched
        self._limits = [limit * slack for limit in problem.limits]
        self._plain = [letter[:5] for letter in self.letters]
        # What comes from its own rank has come before: nobody needs to be told.
        self._readers = {
            source: (problem.lanes[letter.what[0][1]].rank, delay)
            for letter in self.letters[: 4 * len(problem.lanes)]
            for own, source, delay in letter.inputs
            if own % 4 == source % 4
        }
        self._reading = {channel: rank for channel, (rank, _) in self._readers.items()}

    def ends(self, rows: Rows) -> list[list[float]] | None:
        """When each letter ends; None for rows that wait for each other or hold too much."""
        made: list[list[float]] = [[] for _ in range(4 * len(self.problem.lanes))]
        ends: list[list[float]] = [[] for _ in rows]
        held = [0.0] * len(rows)
        blocked = [-1] * len(rows)
        ready = list(range(len(rows)))
        limits, plain, reading = self._limits, self._plain, self._reading
        while ready:
            rank = ready.pop()
            done = ends[rank]
            now = done[-1] if done else 0.0
            live = held[rank]
            for letter in rows[rank][len(done) :]:
                time, gain, loss, inputs, outputs = plain[letter]
                for own, source, delay in inputs:
                    entry, entries = len(made[own]), made[source]
                    if entry >= len(entries):
                        blocked[rank] = source
                        break
                    if entries[entry] + delay > now:  # noqa: PLR1730 (max is slower)
                        now = entries[entry] + delay
                else:
                    live += gain
                    if live > limits[rank]:
                        return None
                    live -= loss
                    now += time
                    done.append(now)
                    for channel in outputs:
                        made[channel].append(now)
                        other = reading.get(channel, -1)
                        if other >= 0 and blocked[other] == channel:
                            blocked[other] = -1
                            ready.append(other)
                    continue
                break
            held[rank] = live
        finished = all(len(done) == len(row) for done, row in zip(ends, rows, strict=True))
        return ends if finished else None

    @property
    def size(self) -> int:
        """How much there is to decide: F, I and W of each microbatch, and which may be paired."""
        counts = [len(lane.microbatches) for lane in self.problem.lanes]
        return 3 * sum(counts) + sum(counts[f] * counts[b] for f, b in self.pairs)

    def peaks(self, rows: Rows) -> tuple[float, ...]:
        """What each rank holds at most."""
        return tuple(max(itertools.accumulate(self._changes(row), initial=0.0)) for row in rows)

    def makespan(self, rows: Rows) -> float:
        """When the last letter ends; infinite for rows that `ends` refuses."""
        ends = self.ends(rows)
        return math.inf if ends is None else max(done[-1] for done in ends if done)

    def read(self, table: Table) -> list[list[int]]:
        """The rows of a table of this problem; they take no longer than it does.

        Pairs and whole backwards that save nothing are taken apart.
        """
        rows: list[list[int]] = []
        for cells in table.rows:
            rows.append([letter for cell in cells for letter in self._of_cell(cell)])
        return rows

    def numbered(self, row: Sequence[int]) -> Iterator[list[tuple[Pass, int, int]]]:
        """What each letter of a row does: pass, lane, and which of the lane's microbatches."""
        done: Counter[int] = Counter()
        cut: dict[int, deque[int]] = defaultdict(deque)
        for letter in row:
            parts = []
            for pass_, lane in self.letters[letter].what:
                channel = 4 * lane + (pass_ != "F")
                number = cut[lane].popleft() if pass_ == "W" else done[channel]
                if pass_ == "I":
                    cut[lane].append(number)
                if pass_ != "W":
                    done[channel] += 1
                parts.append((pass_, lane, number))
            yield parts

    def table(self, rows: Rows) -> Table:
        """The table of rows, which numbers the microbatches of each pass in order."""
        return Table([self._cells(row) for row in rows])

    def reader(self, channel: int) -> tuple[int, float] | None:
        """The rank that waits for what a channel carries, and how long that takes to get there."""
        return self._readers.get(channel)

    def _of_cell(self, cell: Cell) -> Iterator[int]:
        parts = [(action.pass_, self._lane_of(action)) for action in members(cell)]
        if len(parts) == 2 and (pair := self.pairs.get((parts[0][1], parts[1][1]))) is not None:
            yield pair
        else:
            for pass_, lane in parts:
                is_cut = pass_ == "B" and not self._is_whole(lane)
                yield from (4 * lane + PASSES.index(part) for part in ("IW" if is_cut else pass_))

    def _lane_of(self, action: Action) -> int:
        return self.lane(action.stage, self._group[action.microbatch])

    def _changes(self, row: Sequence[int]) -> Iterator[float]:
        for letter in row:
            yield self.letters[letter].gain
            yield -self.letters[letter].loss

    def _cells(self, row: Sequence[int]) -> Iterator[Cell]:
        for parts in self.numbered(row):
            actions = []
            for pass_, lane, number in parts:
                home = self.problem.lanes[lane]
                actions.append(Action(home.stage, pass_, home.microbatches[number]))
            yield actions[0] if len(actions) == 1 else Pair(*actions)
