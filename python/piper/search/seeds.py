"""Named schedules as orders to start a search from."""

from __future__ import annotations

from piper.schedules import SCHEDULES, Schedule, Table
from piper.search.problem import Problem

__all__ = ["named_tables"]


def named_tables(problem: Problem) -> dict[str, Table]:
    """The named schedules that put stages where the problem does, up to the names of ranks."""
    tables = {name: _table(schedule, problem) for name, schedule in SCHEDULES.items()}
    return {name: table for name, table in tables.items() if table is not None}


def _table(schedule: Schedule, problem: Problem) -> Table | None:
    ranks, microbatches = problem.ranks, problem.microbatches
    try:
        chunks = schedule.chunks_of(ranks, problem.stages)
        homes = schedule.homes(ranks, microbatches, chunks)
        table = schedule.table(ranks, microbatches, chunks)
    except ValueError:  # it is not defined for these numbers
        return None
    names = homes.renaming(problem.homes)
    return None if names is None else Table(table.rows[names.index(r)] for r in range(ranks))
