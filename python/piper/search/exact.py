"""The best order, proved, for small problems: a constraint program for OR-tools' CP-SAT.

Times become integers, rounded down where they have no common unit, so that a proven bound holds for
the times as they were. An order that it finds counts by what it takes with those.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from piper.search.scale import Scale
from piper.search.words import Rows, Words

__all__ = ["Proof", "prove"]


@dataclass(frozen=True)
class Proof:
    """A makespan that no order beats, and rows that were found on the way, if any."""

    bound: float
    rows: Rows | None


def prove(words: Words, rows: Rows, *, bound: float, limit: float) -> Proof:
    """Search all orders that are no slower than `rows`, and raise the bound as far as that goes.

    Always gives the same: one worker, a fixed seed, and an end by work instead of by time.

    Args:
        words: of the problem.
        rows: the best order known, to start from.
        bound: a lower bound of the makespan.
        limit: how much work to do, in CP-SAT's deterministic seconds.
    """
    # Only here, because it takes a second to load.
    from ortools.sat.python import cp_model

    from piper.search.model import Model

    most = words.makespan(rows)
    scale = Scale.of(words.problem, most)
    model = Model(words, scale, least=bound, most=most)
    model.hint(rows)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.random_seed = 0
    solver.parameters.max_deterministic_time = limit
    status = solver.solve(model.program)
    found = model.rows(solver) if status in (cp_model.OPTIMAL, cp_model.FEASIBLE) else None
    if found is not None and words.makespan(found) == math.inf:
        found = None  # actions that take no time are in another order than the solution means
    return Proof(max(bound, solver.best_objective_bound / scale.factor), found)
