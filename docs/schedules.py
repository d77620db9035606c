"""A line per named schedule: what it is defined for, and what it costs on four ranks.

    python docs/schedules.py

Twelve microbatches, chunk times F = I = W = 1 and B = 2. A schedule that cuts the model into more
stages has smaller chunks, so times are those of one rank's share of the model: chunk times are
divided by the number of stages that a rank holds.
"""

from __future__ import annotations

from piper.schedules import SCHEDULES, Schedule
from piper.simulate import Costs, simulate

RANKS, MICROBATCHES = 4, 12
COLUMNS = ("schedule", "stages", "placed", "microbatches", "makespan", "bubble", "span", "chunks")


def _row(schedule: Schedule) -> tuple[str, ...]:
    chunks = schedule.chunks or 2
    share = RANKS / schedule.stages(RANKS, chunks)
    table = schedule.table(RANKS, MICROBATCHES, chunks)
    result = simulate(table, Costs.uniform(F=share, I=share, W=share))
    times = (result.makespan, result.bubble_makespan, result.bubble_span)
    return (
        schedule.name,
        "2p, 3p, ..." if schedule.chunks is None else f"{chunks}p" if share < 1 else "p",
        schedule.placement,
        _microbatches(schedule),
        *(f"{time:g}" for time in times),
        f"{max(result.peak_chunks_until_W) * share:g}",
    )


def _microbatches(schedule: Schedule) -> str:
    """What their number m must be, and what p must be for any to do."""
    words = [f">= {schedule.least}p"] if schedule.least else []
    if schedule.divisor.formula != "1":
        divisor = schedule.divisor.formula.replace("microbatches", "m").replace("ranks", "p")
        words.append(f"multiple of {divisor}")
    if schedule.even_ranks:
        words.append("p even")
    return ", ".join(words) or "any"


def main() -> None:
    """Print the table."""
    rows = [COLUMNS, *map(_row, SCHEDULES.values())]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (text.ljust(width) for text, width in zip(row, widths, strict=True))
        print("  ".join(cells).rstrip())


if __name__ == "__main__":
    main()
