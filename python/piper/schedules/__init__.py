"""Pipeline schedules: pure functions from numbers to tables, independent of any IR."""

from piper.schedules.cell import Action, Cell, Communication, Pair, Pass, members
from piper.schedules.dependences import check_progress
from piper.schedules.halves import halve_pairs
from piper.schedules.homes import Homes, Placement
from piper.schedules.registry import SCHEDULES, Schedule, generate, homes_of, schedule_name
from piper.schedules.table import Row, Table
from piper.schedules.timeline import timeline, with_idle
from piper.schedules.validate import unfinished, validate

__all__ = [
    "SCHEDULES",
    "Action",
    "Cell",
    "Communication",
    "Homes",
    "Pair",
    "Pass",
    "Placement",
    "Row",
    "Schedule",
    "Table",
    "check_progress",
    "generate",
    "halve_pairs",
    "homes_of",
    "members",
    "schedule_name",
    "timeline",
    "unfinished",
    "validate",
    "with_idle",
]
