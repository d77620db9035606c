"""Pictures of what was simulated: text, Gantt charts, traces for Perfetto."""

from piper.simulate.views.gantt import check_format, draw_gantt
from piper.simulate.views.memory import draw_memory, over_step
from piper.simulate.views.programs import program_timeline
from piper.simulate.views.text import draw_text, format_bytes, format_seconds
from piper.simulate.views.timeline import Counter, Flow, Range, Timeline, table_timeline
from piper.simulate.views.trace import trace_events, write_trace

__all__ = [
    "Counter",
    "Flow",
    "Range",
    "Timeline",
    "check_format",
    "draw_gantt",
    "draw_memory",
    "draw_text",
    "format_bytes",
    "format_seconds",
    "over_step",
    "program_timeline",
    "table_timeline",
    "trace_events",
    "write_trace",
]
