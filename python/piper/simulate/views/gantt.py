"""Gantt charts: a row per rank and stream, colour by pass, the microbatch's number in each cell.

A pair is drawn as two halves, the forward above. The stages of a rank differ in shade: the first is
light, the last is dark.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from piper_runtime.instruction import COMPUTE

from piper.schedules import Action
from piper.simulate.views.text import format_seconds
from piper.simulate.views.timeline import Range, Timeline

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["check_format", "draw_gantt"]

FORMATS = (".svg", ".png")
# By pass: the shade of the first stage of a rank and that of its last.
SHADES = {
    "F": ("#f7b267", "#d9772b"),
    "B": ("#7fb3e6", "#2b6cb0"),
    "I": ("#7fd0c4", "#24877a"),
    "W": ("#c3d98b", "#7a9a2e"),
}
MEANINGS = {"F": "forward", "B": "backward", "I": "input gradient", "W": "weight gradient"}
IDLE, OTHER, LINE = "#f2f2f2", "#b7b3c9", "#ffffff"
ROW, STREAM = 0.34, 0.17  # inches


def draw_gantt(timeline: Timeline, path: str | Path, *, title: str = "", width: float = 0) -> None:
    """Write a chart as SVG or PNG, as the name of the file says; `width` in inches, 0 for automatic.

    Raises:
        ValueError: another kind of file, or nothing to draw.
    """
    check_format(path)
    file = Path(path)
    if not timeline.end:
        raise ValueError("a Gantt chart must have something that takes time, got nothing")
    import matplotlib  # slow to import

    # The same picture is the same file.
    with matplotlib.rc_context({"svg.hashsalt": "piper", "svg.fonttype": "none"}):
        figure = _figure(timeline, title, width or _width(timeline))
        metadata = {"Date": None} if file.suffix.lower() == ".svg" else None
        figure.savefig(file, dpi=200, metadata=metadata)


def check_format(path: str | Path) -> None:
    """Check that a chart can be written as a file of this name.

    Raises:
        ValueError: another kind of file.
    """
    if Path(path).suffix.lower() not in FORMATS:
        raise ValueError(
            f"a Gantt chart must be a file {' or '.join(FORMATS)}, got {Path(path).name!r}"
        )


def _width(timeline: Timeline) -> float:
    """Wide enough for two digits in a cell of middle length, within bounds."""
    lengths = sorted(item.end - item.start for item in timeline.ranges if item.actions)
    middle = lengths[len(lengths) // 2] if lengths else timeline.end
    return min(24.0, max(8.0, 1 + 0.2 * timeline.end / middle))


@dataclass(frozen=True)
class _Row:
    """A lane in the picture, in inches from the top."""

    name: str
    is_compute: bool
    top: float
    height: float
    ranges: Sequence[Range]


def _rows(timeline: Timeline) -> Iterator[_Row]:
    top = 0.0
    for (rank, lane), ranges in timeline.lanes().items():
        is_compute = lane == COMPUTE
        height = ROW if is_compute else STREAM
        shown = [item for item in ranges if not item.inside]
        yield _Row(timeline.ranks[rank] if is_compute else lane, is_compute, top, height, shown)
        top += height


def _figure(timeline: Timeline, title: str, width: float) -> Figure:
    from matplotlib.figure import Figure

    rows = list(_rows(timeline))
    has_streams = not all(row.is_compute for row in rows)
    top, bottom, left, right = 0.32 if title else 0.08, 0.62, 0.85 if has_streams else 0.65, 0.1
    size = rows[-1].top + rows[-1].height
    height = size + top + bottom
    figure = Figure(figsize=(width, height))
    box = (left / width, bottom / height, 1 - (left + right) / width, size / height)
    axes = figure.add_axes(box)
    axes.set_xlim(0, 1.001 * timeline.end)
    axes.set_ylim(size, 0)
    axes.set_title(title, fontsize=8.5, loc="left", pad=5)
    _frame(axes, timeline, rows)
    points = 72 * (width - left - right) / timeline.end  # per unit of time
    for row in rows:
        _draw_row(axes, timeline, row, points)
    _legend(figure, timeline, left / width, 0.3 / height)
    return figure


def _frame(axes: Axes, timeline: Timeline, rows: Sequence[_Row]) -> None:
    """Names of the rows, times, and a background where ranks are idle."""
    axes.set_yticks([row.top + row.height / 2 for row in rows], [row.name for row in rows])
    for label, row in zip(axes.get_yticklabels(), rows, strict=True):
        label.set_fontsize(7 if row.is_compute else 5)
    axes.tick_params(axis="y", length=0)
    axes.tick_params(axis="x", labelsize=7, length=2, color="#888888", labelcolor="#555555")
    if timeline.in_seconds:
        axes.xaxis.set_major_formatter(lambda time, _: format_seconds(time))
    for spine in axes.spines.values():
        spine.set_visible(False)
    for row in rows:
        edges = (row.top + 0.03 * row.height, 0.94 * row.height)
        axes.broken_barh([(0, timeline.end)], edges, color=IDLE, linewidth=0)


def _draw_row(axes: Axes, timeline: Timeline, row: _Row, points: float) -> None:
    """The ranges of a lane: bars by colour, then numbers where they fit."""
    bars: dict[tuple[str, float, float], list[tuple[float, float]]] = {}
    for item in row.ranges:
        for colour, share, offset, action in _parts(timeline, item):
            y, size = row.top + row.height * (0.03 + 0.94 * offset), 0.94 * row.height * share
            bars.setdefault((colour, y, size), []).append((item.start, item.end - item.start))
            if action is not None:
                room = points * (item.end - item.start)
                _number(axes, action, item, y + size / 2, room, 72 * size, colour)
    for (colour, y, size), spans in bars.items():
        axes.broken_barh(spans, (y, size), color=colour, edgecolor=LINE, linewidth=0.4)


def _parts(timeline: Timeline, item: Range) -> Iterator[tuple[str, float, float, Action | None]]:
    """Colour, share of the row's height, offset in it and action, of each part of a range."""
    if not item.actions:
        yield OTHER, 1.0, 0.0, None
    for index, action in enumerate(item.actions):
        share = 1 / len(item.actions)
        yield _colour(timeline, item.rank, action), share, index * share, action


def _colour(timeline: Timeline, rank: int, action: Action) -> str:
    """From light to dark over the stages of a rank."""
    last = max(place for (other, _), place in timeline.chunks.items() if other == rank)
    light, dark = SHADES[action.pass_]
    return _mix(light, dark, timeline.chunks[rank, action.stage] / last if last else 0.0)


def _mix(first: str, second: str, share: float) -> str:
    pairs = zip(bytes.fromhex(first[1:]), bytes.fromhex(second[1:]), strict=True)
    return "#" + bytes(round(a + (b - a) * share) for a, b in pairs).hex()


def _number(
    axes: Axes, action: Action, item: Range, y: float, width: float, height: float, colour: str
) -> None:
    """Write the microbatch, as large as fits into points of width and height."""
    text = str(action.microbatch)
    size = min(7.0, 0.85 * height, 1.5 * width / len(text))
    if size >= 2.5:
        dark = sum(bytes.fromhex(colour[1:])) < 3 * 150
        axes.text(
            (item.start + item.end) / 2,
            y,
            text,
            fontsize=size,
            color="white" if dark else "#222222",
            ha="center",
            va="center_baseline",
        )


def _legend(figure: Figure, timeline: Timeline, x: float, y: float) -> None:
    """A swatch per pass that the chart shows, in all of its shades."""
    from matplotlib.legend_handler import HandlerTuple
    from matplotlib.patches import Patch

    passes = {action.pass_ for item in timeline.ranges for action in item.actions}
    most = max(timeline.chunks.values(), default=0)
    handles: list[tuple[Patch, ...]] = []
    labels = []
    for pass_ in (name for name in MEANINGS if name in passes):
        shares = [place / most for place in range(most + 1)] if most else [0.0]
        handles.append(tuple(Patch(color=_mix(*SHADES[pass_], share)) for share in shares))
        labels.append(MEANINGS[pass_])
    if any(not item.actions and not item.inside for item in timeline.ranges):
        handles.append((Patch(color=OTHER),))
        labels.append("communication, updates")
    if most:
        handles.append((Patch(color="none"),))
        labels.append("darker: a later stage of the rank")
    figure.legend(  # type: ignore[call-overload]  # tuples, which the handler knows
        handles,
        labels,
        handler_map={tuple: HandlerTuple(ndivide=None, pad=0.2)},
        loc="upper left",
        bbox_to_anchor=(x, y),
        ncols=len(handles),
        fontsize=7,
        frameon=False,
        handlelength=1 + most,
        handleheight=1,
        borderpad=0,
        columnspacing=1.2,
    )
