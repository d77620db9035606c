"""A picture of memory: per rank, what is held by kind, over the instructions of a step.

The height at an instruction is what is there when it runs: what is there all the time below, what
instructions make above it, and what the instruction needs inside on top.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from piper.simulate.memory import Memory
from piper.simulate.views.gantt import check_format

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["KINDS", "draw_memory", "over_step"]

KINDS = {
    "parameters": "#4a5a78",
    "gradients": "#2b6cb0",
    "optimizer": "#7fb3e6",
    "batch": "#b7b3c9",
    "activations": "#f7b267",
    "communication": "#24877a",
    "inside": "#d9772b",
}
"""From bottom to top: kinds and their colours; `inside` is what an instruction needs inside."""
UNITS = {"GiB": 2**30, "MiB": 2**20, "KiB": 2**10}
POINTS = 1000  # at most, in a row of the picture
WIDTH, ROW, LEFT, RIGHT, TOP, BOTTOM = 9.0, 1.15, 0.85, 0.1, 0.3, 0.65  # inches


def draw_memory(memory: Mapping[str, Memory], path: str | Path, *, title: str = "") -> None:
    """Write a chart as SVG or PNG, as the name of the file says, with a row per name in `memory`.

    Raises:
        ValueError: another kind of file, or no memory.
    """
    check_format(path)
    file = Path(path)
    if not memory:
        raise ValueError("a picture of memory must have ranks, got none")
    import matplotlib  # slow to import

    # The same picture is the same file.
    with matplotlib.rc_context({"svg.hashsalt": "piper", "svg.fonttype": "none"}):
        figure = _figure(memory, title)
        metadata = {"Date": None} if file.suffix.lower() == ".svg" else None
        figure.savefig(file, dpi=200, metadata=metadata)


def over_step(memory: Memory, parts: int) -> list[dict[str, int]]:
    """Bytes by kind, in each of so many parts of a step of about as many instructions.

    Of every part it is the instruction at which most is held; a step of fewer instructions has as
    many parts as those.
    """
    curve = memory.curve
    totals = curve.totals
    parts = min(parts, len(totals))
    bounds = [len(totals) * part // parts for part in range(parts + 1)] if parts else []
    found = []
    for first, last in itertools.pairwise(bounds):
        at = max(range(first, last), key=totals.__getitem__)
        found.append(
            {
                "parameters": memory.parameters,
                "gradients": memory.gradients,
                "optimizer": memory.optimizer or 0,
                "batch": memory.batch,
                "activations": curve.activations[at],
                "communication": curve.communication[at],
                "inside": curve.temporaries[at],
            }
        )
    return found


def _figure(memory: Mapping[str, Memory], title: str) -> Figure:
    from matplotlib.figure import Figure

    height = TOP + BOTTOM + ROW * len(memory)
    figure = Figure(figsize=(WIDTH, height))
    most = max(item.peak for item in memory.values())
    unit = next((name for name, size in UNITS.items() if size <= most), "B")
    scale = UNITS.get(unit, 1)
    for index, (name, item) in enumerate(memory.items()):
        bottom = height - TOP - ROW * (index + 1)
        size = (1 - (LEFT + RIGHT) / WIDTH, 0.8 * ROW / height)
        axes = figure.add_axes((LEFT / WIDTH, bottom / height, *size))
        _draw(axes, item, scale)
        axes.set_ylim(0, 1.08 * most / scale)
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}{unit}")
        axes.set_ylabel(name, fontsize=7)
        axes.tick_params(labelsize=6, length=2, color="#888888", labelcolor="#555555")
        axes.spines[["top", "right"]].set_visible(False)
        if index == 0:
            axes.set_title(title, fontsize=8.5, loc="left", pad=5)
    _legend(figure, LEFT / WIDTH, 0.3 / height)
    return figure


def _draw(axes: Axes, memory: Memory, scale: int) -> None:
    """Stack the kinds, and mark the peak."""
    count = len(memory.curve.totals)
    points = over_step(memory, POINTS)
    places = [count * part / len(points) for part in range(len(points))]
    kinds = [[point[kind] / scale for point in points] for kind in KINDS]
    places.append(count)  # the last lasts until the end
    stacked = [[*heights, heights[-1]] if heights else [0.0] for heights in kinds]
    axes.stackplot(places, stacked, colors=[*KINDS.values()], step="post", linewidth=0)
    axes.axhline(memory.peak / scale, color="#222222", linewidth=0.5, linestyle=":")
    axes.set_xlim(0, max(1, count))


def _legend(figure: Figure, x: float, y: float) -> None:
    from matplotlib.patches import Patch

    handles = [Patch(color=colour) for colour in KINDS.values()]
    figure.legend(
        handles,
        [*KINDS],
        loc="upper left",
        bbox_to_anchor=(x, y),
        ncols=len(handles),
        fontsize=7,
        frameon=False,
        borderpad=0,
        columnspacing=1.2,
    )
