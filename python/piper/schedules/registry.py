"""Schedules by name. To add one: write its file, then name it here."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from piper.schedules.gpipe import gpipe
from piper.schedules.one_f_one_b import one_f_one_b
from piper.schedules.table import Table

Schedule = Callable[[int, int], Table]
"""A pure function: stages, microbatches -> table."""

SCHEDULES: Final[Mapping[str, Schedule]] = MappingProxyType({"GPipe": gpipe, "1F1B": one_f_one_b})


def schedule_name(name: str) -> str:
    """The registered spelling of a schedule's name, which is looked up without regard to case.

    Raises:
        ValueError: no such schedule; the message suggests the nearest and lists all.
    """
    spellings = {known.lower(): known for known in SCHEDULES}
    if name.lower() in spellings:
        return spellings[name.lower()]
    near = difflib.get_close_matches(name.lower(), spellings, n=1)
    hint = f", did you mean {spellings[near[0]]!r}?" if near else ","
    raise ValueError(f"unknown schedule {name!r}{hint} known are {', '.join(SCHEDULES)}")


def generate(name: str, stages: int, microbatches: int) -> Table:
    """The table of a named schedule.

    Raises:
        ValueError: unknown name, or a count below 1.
    """
    schedule = SCHEDULES[schedule_name(name)]
    for what, count in (("stages", stages), ("microbatches", microbatches)):
        if count < 1:
            raise ValueError(f"{what} must be at least 1, got {count}")
    return schedule(stages, microbatches)
