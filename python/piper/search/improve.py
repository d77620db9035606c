"""Local search: rows are changed where their critical path shows that a change could help."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from piper.search.candidate import Candidate, search
from piper.search.letters import B, F, I, W
from piper.search.words import Rows, Words

__all__ = ["improve"]


class Stretch(NamedTuple):
    """Letters of a rank that follow each other on the critical path: their first and last."""

    rank: int
    first: int
    last: int


def improve(words: Words, rows: Rows, *, steps: int, goal: float) -> Rows:
    """The best rows found from the given ones by moving, joining and cutting their letters.

    The time of a step only falls if some stretch of its critical path within a rank begins or ends
    with another letter (van Laarhoven et al., 1992, doi:10.1287/opre.40.1.113). So a move puts a
    letter of a stretch to its begin or end; some swap neighbours. Where pairs or whole backwards
    save time, some moves make or unmake one.
    """
    seen: Candidate[None] | None = None
    stretches: list[Stretch] = []

    def propose(now: Candidate[None], rng: random.Random) -> Candidate[None]:
        nonlocal seen, stretches
        if now is not seen:
            seen, stretches = now, list(_stretches(words, now.rows))
        if not stretches:
            return now
        stretch = rng.choice(stretches)
        row = list(now.rows[stretch.rank])
        if words.has_forms and rng.random() < 0.3:
            _reform(words, row, rng.randint(stretch.first, stretch.last))
        else:
            _move(row, stretch, rng)
        changed = [*now.rows]
        changed[stretch.rank] = row
        return _candidate(words, changed)

    return search(_candidate(words, rows), propose, steps=steps, goal=goal, patience=30).rows


def _candidate(words: Words, rows: Rows) -> Candidate[None]:
    return Candidate(words.makespan(rows), rows, None)


def _move(row: list[int], stretch: Stretch, rng: random.Random) -> None:
    """Put a letter of a stretch to its begin or its end, or swap two neighbours."""
    _, first, last = stretch
    if first == last:
        return
    kind = rng.random()
    if kind < 0.4:
        row.insert(first, row.pop(rng.randint(first + 1, last)))
    elif kind < 0.8:
        row.insert(last, row.pop(rng.randint(first, last - 1)))
    else:
        place = rng.randint(first, last - 1)
        row[place : place + 2] = reversed(row[place : place + 2])


def _reform(words: Words, row: list[int], place: int) -> None:
    """Cut a pair or whole backward, join I and W, or join neighbours to a pair, where that can be."""
    what = words.letters[row[place]].what
    if len(what) == 2:
        (_, forward), (_, backward) = what
        row[place : place + 1] = [4 * forward + F, *words.passes(backward)[1:]]
        return
    pass_, lane = what[0]
    pair = words.overlap(row[place], row[place + 1]) if place + 1 < len(row) else None
    if pair is not None:
        is_cut = any(letter % 4 == I for letter in row[place : place + 2])
        row[place : place + 2] = [pair]
        if is_cut:
            _drop_weight(row, place, words.letters[pair].what[1][1])
    elif pass_ == "I" and words.passes(lane)[1] % 4 == B:
        row[place] = 4 * lane + B
        _drop_weight(row, place, lane)
    elif pass_ == "B":
        row[place : place + 1] = [4 * lane + I, 4 * lane + W]


def _drop_weight(row: list[int], place: int, lane: int) -> None:
    """Remove the W of an I that was at `place`: the next one, since those before it have theirs."""
    del row[row.index(4 * lane + W, place)]


def _stretches(words: Words, rows: Rows) -> Iterator[Stretch]:
    """Those of a critical path, from its end; none of a single letter where it could not change."""
    ends = words.ends(rows)
    assert ends is not None
    least = 1 if words.has_forms else 2
    rank = max(range(len(rows)), key=lambda r: ends[r][-1] if ends[r] else -math.inf)
    place: tuple[int, int] | None = (rank, len(rows[rank]) - 1)
    while place is not None:
        rank, last = place
        first = last
        while not _waits(words, rows, ends, rank, first):
            first -= 1
        if last - first + 1 >= least:
            yield Stretch(rank, first, last)
        place = _awaited(words, rows, ends, rank, first)


def _waits(words: Words, rows: Rows, ends: Sequence[Sequence[float]], rank: int, n: int) -> bool:
    """Whether a letter starts after the one before it in its row has ended, or is the first."""
    if n == 0:
        return True
    start = ends[rank][n] - words.letters[rows[rank][n]].time
    return start > ends[rank][n - 1] + 1e-9 * start


def _awaited(
    words: Words, rows: Rows, ends: Sequence[Sequence[float]], rank: int, n: int
) -> tuple[int, int] | None:
    """The rank and place of the letter whose result a letter starts upon; None if it never waits."""
    letter = words.letters[rows[rank][n]]
    start = ends[rank][n] - letter.time
    for own, source, delay in letter.inputs:
        entry = sum(own in words.letters[other].outputs for other in rows[rank][:n])
        writer, place = _written(words, rows, source, entry)
        if ends[writer][place] + delay >= start - 1e-9 * start:
            return writer, place
    return None


def _written(words: Words, rows: Rows, channel: int, entry: int) -> tuple[int, int]:
    """The rank and place of the letter that writes an entry of a channel."""
    rank = words.problem.lanes[channel // 4].rank
    writers = (n for n, x in enumerate(rows[rank]) if channel in words.letters[x].outputs)
    return rank, next(itertools.islice(writers, entry, None))
