"""The stream directive: what it accepts, what it refuses, what it becomes."""

from __future__ import annotations

import re
from typing import Any

import pytest
from piper.mlir import ir
from piper.strategy import Strategy, Stream, order, place, replicate, stream

anything: Any = object()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "stream 'dp' must set priority, sms or both, got neither"),
        ({"priority": 1.0}, "stream priority must be an int or None, got 1.0"),
        ({"priority": True}, "stream priority must be an int or None, got True"),
        ({"sms": 0}, "stream sms must be an int of at least 1, got 0"),
        ({"sms": anything}, "stream sms must be an int of at least 1, got <object"),
    ],
)
def test_refuses(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        stream("dp", **options)


@pytest.mark.parametrize(
    ("directive", "op", "call"),
    [
        (stream("dp", priority=-1), "@dp priority = -1", "stream(name='dp', priority=-1)"),
        (stream("pp", sms=4), "@pp sms = 4", "stream(name='pp', sms=4)"),
        (
            stream("pp", priority=0, sms=4),
            "@pp priority = 0 sms = 4",
            "stream(name='pp', priority=0, sms=4)",
        ),
    ],
)
def test_op_and_call(directive: Stream, op: str, call: str) -> None:
    assert directive.op() == f"piper.do.stream {op}"
    assert repr(directive) == call


def strategy(*streams: Stream, mesh: dict[str, int] | None = None) -> Strategy:
    given = [place(stages=2), replicate(axis="dp"), order("GPipe"), *streams]
    return Strategy(mesh={"pp": 2, "dp": 2} if mesh is None else mesh, directives=given)


def test_stands_in_the_strategy_with_its_line() -> None:
    made = strategy(stream("dp", sms=8))
    assert re.search(
        r'piper\.do\.stream @dp sms = 8 loc\("[^"]*test_strategy_stream\.py":\d+', made.ir()
    )
    with ir.Context():
        assert "piper.do.stream @dp sms = 8" in str(ir.Module.parse(made.ir()))


@pytest.mark.parametrize("name", ["ep", "compute", "send$0.1"])
def test_name_must_be_that_of_an_axis(name: str) -> None:
    with pytest.raises(
        ValueError,
        match=r"test_strategy_stream\.py:\d+:\d+: stream name must be that of a mesh axis "
        rf"\(pp, dp\), perhaps with \.gather behind it, got '{re.escape(name)}'",
    ):
        strategy(stream(name, priority=1))


def test_name_on_a_mesh_without_axes() -> None:
    with pytest.raises(ValueError, match=r"a mesh axis \(there is none\), .*got 'dp'"):
        Strategy(mesh={}, directives=[stream("dp", priority=1)])


def test_a_stream_gives_no_use_to_an_axis() -> None:
    with pytest.raises(ValueError, match="'dp' of size 2 is used by no directive"):
        Strategy(mesh={"dp": 2}, directives=[stream("dp", priority=1)])


def test_two_must_agree() -> None:
    strategy(stream("dp", sms=8), stream("dp", priority=1), stream("pp", sms=4))
    with pytest.raises(
        ValueError, match=r"stream sets the sms of 'dp' to 9, but .*:\d+ sets it to 8"
    ):
        strategy(stream("dp", sms=8), stream("dp", sms=9))


def test_gathers_have_a_stream_of_their_own() -> None:
    made = strategy(stream("dp.gather", priority=1))
    assert "piper.do.stream @dp.gather priority = 1" in made.ir()
    with pytest.raises(ValueError, match=r"perhaps with \.gather behind it, got 'tp\.gather'"):
        strategy(stream("tp.gather", priority=1))
