"""A second model of a pipeline, to compare the simulator with: whole ticks, and nothing clever.

At every tick what has run long enough ends; then every idle rank looks at its next cell and starts
it if what it needs has ended, long enough ago for a message where that was on another rank. Cells
are texts and are read here by other code than the package's.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

Key = tuple[int, str, int]


@dataclass
class Outcome:
    """Start and end of each (stage, pass, microbatch), and what follows from counting ticks."""

    spans: dict[Key, tuple[int, int]]
    busy: list[int]
    makespan: int
    longest_span: int
    alive_until_i: list[int]
    alive_until_w: list[int]


@dataclass
class _Rank:
    queue: list[list[Key]]
    running: list[Key] = field(default_factory=list)
    until: int = -1


def brute_force(
    rows: Sequence[str],
    times: Mapping[str, Sequence[int]],
    *,
    pair: int | None = None,
    latency: int = 0,
) -> Outcome:
    """Run rows of cells; `times[pass][stage]` are at least 1; a pair is the sum of its members."""
    ranks = [_Rank([_read(cell) for cell in row.split() if cell != "."]) for row in rows]
    home = {key: n for n, rank in enumerate(ranks) for cell in rank.queue for key in cell}
    last = max(stage for stage, _, _ in home)
    begun: dict[Key, int] = {}
    ended: dict[Key, int] = {}
    busy = [0] * len(ranks)
    now = 0
    while any(rank.queue or rank.running for rank in ranks):
        if now > 100_000:
            raise AssertionError("nothing ends any more")
        for rank in ranks:
            if rank.running and rank.until == now:
                ended.update(dict.fromkeys(rank.running, now))
                rank.running = []
        for n, rank in enumerate(ranks):
            if rank.running or not rank.queue:
                continue
            needs = [need for key in rank.queue[0] for need in _needs(key, home, last)]
            if all(
                need in ended and now >= ended[need] + (latency if home[need] != n else 0)
                for need in needs
            ):
                rank.running = rank.queue.pop(0)
                cost = sum(times[p][s] for s, p, _ in rank.running)
                if len(rank.running) == 2 and pair is not None:
                    cost = pair
                rank.until = now + cost
                busy[n] += cost
                begun.update(dict.fromkeys(rank.running, now))
        now += 1
    spans = {key: (begun[key], ended[key]) for key in ended}
    of_rank = [[spans[key] for key in spans if home[key] == n] for n in range(len(ranks))]
    return Outcome(
        spans=spans,
        busy=busy,
        makespan=max(ended.values()),
        longest_span=max(max(e for _, e in own) - min(s for s, _ in own) for own in of_rank),
        alive_until_i=[_most_alive(spans, home, n, ("B", "I")) for n in range(len(ranks))],
        alive_until_w=[_most_alive(spans, home, n, ("B", "W")) for n in range(len(ranks))],
    )


def _read(cell: str) -> list[Key]:
    return [(int(s), p, int(m)) for s, p, m in re.findall(r"(\d+)([FBIW])(\d+)", cell)]


def _needs(key: Key, home: Mapping[Key, int], last: int) -> list[Key]:
    stage, what, microbatch = key
    if what == "F":
        return [(stage - 1, "F", microbatch)] if stage > 0 else []
    if what == "W":
        return [(stage, "I", microbatch)]
    needs: list[Key] = [(stage, "F", microbatch)]
    if stage < last:
        whole = (stage + 1, "B", microbatch)
        needs.append(whole if whole in home else (stage + 1, "I", microbatch))
    return needs


def _most_alive(
    spans: Mapping[Key, tuple[int, int]], home: Mapping[Key, int], rank: int, ends: Sequence[str]
) -> int:
    """Count at every tick the chunks that have begun and not ended."""
    lives = []
    for (stage, what, microbatch), (start, _) in spans.items():
        if what == "F" and home[stage, what, microbatch] == rank:
            keys = [(stage, end, microbatch) for end in ends]
            stop = [spans[key][1] for key in keys if key in spans]
            lives.append((start, stop[0]))
    ticks = range(max(stop for _, stop in lives))
    return max(sum(start <= tick < stop for start, stop in lives) for tick in ticks)
