"""Joining I and W to whole backwards where that costs nothing, so that an order is plain."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet

from piper.search.letters import B
from piper.search.words import Rows, Words

__all__ = ["plain"]

_Chunk = tuple[int, int]
"""A lane, and the number of a microbatch in it."""


def plain(words: Words, rows: Rows, *, steps: int) -> Rows:
    """The rows with B for I and W of as many chunks as leaves their makespan as it is.

    B takes the place of I, in stages where it takes no longer than both. Chunks are tried together,
    and by halves where all is too much, until `steps` orders have been timed.
    """
    most = words.makespan(rows) * (1 + 1e-9)
    joined: frozenset[_Chunk] = frozenset()
    untried = [list(_cut(words, rows))]
    while untried and steps > 0:
        chunks = untried.pop()
        if not chunks:
            continue
        steps -= 1
        more = joined.union(chunks)
        if words.makespan(_joined(words, rows, more)) <= most:
            joined = more
        elif len(chunks) > 1:
            half = len(chunks) // 2
            untried += [chunks[half:], chunks[:half]]
    return _joined(words, rows, joined)


def _cut(words: Words, rows: Rows) -> Iterator[_Chunk]:
    """The chunks that have I and W and could have B, rank by rank, as they come."""
    problem = words.problem
    for row in rows:
        for (pass_, lane, number), *_ in words.numbered(row):
            stage = problem.lanes[lane].stage
            halves = problem.i[stage] + problem.w[stage]
            if pass_ == "I" and problem.b[stage] <= halves * (1 + 1e-9):
                yield lane, number


def _joined(words: Words, rows: Rows, chunks: AbstractSet[_Chunk]) -> Rows:
    return [list(_joined_row(words, row, chunks)) for row in rows]


def _joined_row(words: Words, row: Sequence[int], chunks: AbstractSet[_Chunk]) -> Iterator[int]:
    for letter, parts in zip(row, words.numbered(row), strict=True):
        pass_, lane, number = parts[0]
        if pass_ not in ("I", "W") or (lane, number) not in chunks:
            yield letter
        elif pass_ == "I":
            yield 4 * lane + B
