"""Pictures: text, Gantt charts and traces of tables and programs."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from handmade import Rows, chunk, facts, run
from piper.schedules import Action, Table
from piper.simulate import Costs, ProgramSimulation, simulate
from piper.simulate.views import (
    Counter,
    Flow,
    Range,
    Timeline,
    draw_gantt,
    draw_text,
    format_seconds,
    program_timeline,
    table_timeline,
    trace_events,
    write_trace,
)

PAIRED = Table.parse("0F0 0F1 (0F2;0B0)OVERLAP_F_B 0B1 0B2\n1F0 1B0 1F1 1B1 1F2 1B2")


def timeline(text: str = "0F0 0B0\n1F0 1B0", **costs: float) -> Timeline:
    return table_timeline(simulate(Table.parse(text), Costs.uniform(**costs)))


def overlapped() -> ProgramSimulation:
    """Cell 0F0, of two chunks, and a pair whose runs alternate."""
    cells = {name: chunk(name) for name in ("one", "two")}
    backward = chunk("five", pass_="B", size=100)
    rows = Rows()
    value = rows.run(cells["one"].name)
    value = rows.run(cells["two"].name)
    for name, mb in ((cells["one"].name, 1), (backward.name, 0), (cells["two"].name, 1)):
        value = rows.run(name, value, mb=mb)
    rows.run(backward.name, value, mb=0)
    rows.add("free", value)
    rows.send(value, "0.1", after=[rows.record()])
    other = Rows()
    other.recv("0.1")
    return run(facts(rows, other, chunks=[*cells.values(), backward], ways=["0.1"]))


# Text.


def test_text_is_to_scale() -> None:
    assert draw_text(timeline(F=1, B=2)).splitlines() == [
        "rank 0  |0F0............|0B0    |",
        "rank 1  ....|1F0|1B0    |",
        "        0                   5",
    ]


def test_text_shortens_names_where_room_is_scarce() -> None:
    picture = table_timeline(simulate(PAIRED, Costs.uniform(1, B=2)))
    assert draw_text(picture).splitlines()[0].startswith("rank 0  |0F0|0F1........|0F2&0B0    |0B1")
    assert "|F2B0 |0B1" in draw_text(picture, width=40)
    assert "FF..|FB|" in draw_text(picture, width=24)
    for width in (20, 30, 40, 80):
        assert all(len(line) <= width for line in draw_text(picture, width=width).splitlines())


def test_text_of_times_that_are_not_whole_fills_the_width() -> None:
    lines = draw_text(timeline(F=0.5, B=0.25), width=50).splitlines()
    assert len(lines[0]) == 50
    assert lines[0].startswith("rank 0  |0F0")


def test_text_shows_what_is_too_short_for_the_scale() -> None:
    cells = (
        Range(0, "compute", "0F0", 0, 0.01, (Action(0, "F", 0),)),
        Range(0, "compute", "0B0", 50, 50.1, (Action(0, "B", 0),)),
        Range(0, "compute", "0W0", 60, 99, (Action(0, "W", 0),)),
    )
    picture = Timeline(("rank 0",), True, cells, (), (), {})
    assert re.match(r"rank 0  F\.+B\.+\|0W0 +\|\n", draw_text(picture, width=40))


def test_text_of_nothing() -> None:
    assert draw_text(Timeline(("rank 0",), False, (), (), (), {})) == "rank 0  \n        "


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0"),
        (2, "2s"),
        (0.0015, "1.5ms"),
        (1e-6, "1us"),
        (3.5e-9, "3.5ns"),
        (1234.5, "1.23e+03s"),
    ],
)
def test_seconds(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text


# Timelines.


def test_flows_go_between_ranks() -> None:
    picture = timeline()
    named = {
        flow.name: (picture.ranges[flow.source], picture.ranges[flow.target])
        for flow in picture.flows
    }
    assert set(named) == {"0F0", "1B0"}
    assert [item.name for item in named["1B0"]] == ["1B0", "0B0"]
    assert timeline("0F0 1F0 1B0 0B0").flows == ()


def test_stages_of_a_rank_are_counted() -> None:
    picture = timeline("0F0 3F0 3B0 0B0\n1F0 2F0 2B0 1B0")
    assert picture.chunks == {(0, 0): 0, (0, 3): 1, (1, 1): 0, (1, 2): 1}


def test_the_runs_of_a_cell_are_one_range() -> None:
    picture = program_timeline(overlapped())
    cells = [item for item in picture.ranges if item.actions]
    assert [(item.name, item.start, item.end) for item in cells] == [
        ("0F0", 0, 3),
        ("0F1&0B0", 3, 16),
    ]
    assert cells[1].actions == (Action(0, "F", 1), Action(0, "B", 0))
    inside = [item for item in picture.ranges if item.inside]
    assert [item.name for item in inside[:3]] == ["one.0$F", "two.0$F", "one.0$F"]
    assert all(item.lane == "compute" for item in inside)
    assert inside[0].details == {"line": "model.py:7", "module": "layers.0", "directive": "order"}


def test_messages_and_memory_of_a_program() -> None:
    picture = program_timeline(overlapped())
    [flow] = picture.flows
    ends = picture.ranges[flow.source], picture.ranges[flow.target]
    assert [(item.rank, item.lane, item.start) for item in ends] == [
        (0, "send$0.1", 16),
        (1, "send$0.1", 16),
    ]
    here, there = picture.counters
    assert here.points[0] == (0, 8)
    assert here.points[-1][1] == here.points[-2][1] - 8  # the free
    assert there.points == ((0, 8),)
    assert list(picture.lanes()) == [(0, "compute"), (0, "send$0.1"), (1, "send$0.1")]


# Traces.


def test_a_trace_has_a_process_per_rank_and_a_thread_per_stream(tmp_path: Path) -> None:
    picture = program_timeline(overlapped())
    write_trace(picture, tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert events == list(trace_events(picture))
    names: Any = [(e["pid"], e["tid"], e["args"].get("name")) for e in events if e["ph"] == "M"]
    assert {name for *_, name in names} >= {"pp 0", "pp 1", "compute", "send$0.1"}
    threads = {(e["pid"], e["tid"]) for e in events if e["ph"] == "X"}
    assert len(threads) == len(picture.lanes())
    [pair] = [e for e in events if e["ph"] == "X" and e["name"] == "PP:0F1&0B0"]
    assert (pair["ts"], pair["dur"], pair["cat"]) == (3e6, 13e6, "F,B")
    start, finish = (next(e for e in events if e["ph"] == phase) for phase in "sf")
    assert start["id"] == finish["id"]
    assert (start["pid"], finish["pid"]) == (0, 1)
    counted = [e for e in events if e["ph"] == "C"]
    assert counted[0]["args"] == {"bytes": 8}


def test_a_unit_of_a_table_is_a_millisecond() -> None:
    events = list(trace_events(timeline(F=2)))
    cells = {e["name"]: e for e in events if e["ph"] == "X"}
    assert (cells["PP:1F0"]["ts"], cells["PP:1F0"]["dur"]) == (2000, 2000)
    flows = [e for e in events if e["ph"] in "sf" and e["name"] == "0F0"]
    assert [(e["pid"], e["ts"]) for e in flows] == [(0, 2000), (1, 2000)]


# Gantt charts.


def texts(svg: str) -> list[str]:
    return re.findall(r"<text[^>]*>([^<]*)</text>", svg)


def test_a_chart_names_ranks_passes_and_microbatches(tmp_path: Path) -> None:
    picture = table_timeline(simulate(PAIRED, Costs.uniform(1, B=2)))
    draw_gantt(picture, tmp_path / "chart.svg", title="a title")
    svg = (tmp_path / "chart.svg").read_text()
    found = texts(svg)
    assert {"rank 0", "rank 1", "forward", "backward", "a title"} <= set(found)
    assert "weight gradient" not in found
    # Six forwards and six backwards, those of the pair among them.
    assert sum(text in ("0", "1", "2") for text in found) >= 12
    draw_gantt(picture, tmp_path / "again.svg", title="a title")
    assert (tmp_path / "again.svg").read_text() == svg


def test_shades_tell_the_stages_of_a_rank_apart(tmp_path: Path) -> None:
    draw_gantt(timeline("0F0 1F0 1I0 0I0 1W0 0W0"), tmp_path / "chart.svg")
    svg = (tmp_path / "chart.svg").read_text()
    assert "darker: a later stage of the rank" in texts(svg)
    for shade in ("#f7b267", "#d9772b", "#7fd0c4", "#24877a", "#c3d98b", "#7a9a2e"):
        assert shade in svg


def test_a_chart_of_a_program_has_its_streams(tmp_path: Path) -> None:
    draw_gantt(program_timeline(overlapped()), tmp_path / "chart.svg")
    found = texts((tmp_path / "chart.svg").read_text())
    assert {"pp 0", "send$0.1", "communication, updates"} <= set(found)
    assert any(text.endswith("s") and text[0].isdigit() for text in found)


def test_a_chart_can_be_a_png(tmp_path: Path) -> None:
    draw_gantt(timeline(), tmp_path / "chart.png")
    assert (tmp_path / "chart.png").read_bytes().startswith(b"\x89PNG")


def test_charts_of_another_kind_or_of_nothing_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"must be a file \.svg or \.png, got 'chart\.pdf'"):
        draw_gantt(timeline(), tmp_path / "chart.pdf")
    nothing = Timeline(("rank 0",), False, (), (), (), {})
    with pytest.raises(ValueError, match="must have something that takes time, got nothing"):
        draw_gantt(nothing, tmp_path / "chart.svg")


def test_timelines_are_data() -> None:
    item = Range(0, "compute", "0F0", 0, 1)
    picture = Timeline(("rank 0",), True, (item,), (Flow("x", 0, 0),), (Counter(0, "b", ()),), {})
    assert picture.end == 1
    assert picture.lanes() == {(0, "compute"): [item]}
