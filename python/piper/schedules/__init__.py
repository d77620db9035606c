"""Pipeline schedules: pure functions from numbers to tables, independent of any IR."""

from piper.schedules.gpipe import gpipe
from piper.schedules.one_f_one_b import one_f_one_b
from piper.schedules.registry import SCHEDULES, Schedule, generate, schedule_name
from piper.schedules.table import Action, Cell, Pass, Table
from piper.schedules.timeline import timeline, with_idle
from piper.schedules.validate import validate

__all__ = [
    "SCHEDULES",
    "Action",
    "Cell",
    "Pass",
    "Schedule",
    "Table",
    "generate",
    "gpipe",
    "one_f_one_b",
    "schedule_name",
    "timeline",
    "validate",
    "with_idle",
]
