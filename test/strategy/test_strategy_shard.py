"""shard: what it says, in text and as a call, and what it refuses."""

from __future__ import annotations

import re
from typing import Any

import piper
import pytest
from piper import order, place, replicate, shard
from piper.mlir import ir
from piper.strategy import Mesh, Shard, Strategy

EXPERTS = "*.experts.*"
MESH = {"pp": 2, "edp": 2, "ep": 2}


@pytest.mark.parametrize(
    ("directive", "op", "call"),
    [
        (
            shard(EXPERTS, axis="ep"),
            '<state = "*.experts.*"> axis = "ep" dim = 0',
            "shard(states='*.experts.*', axis='ep')",
        ),
        (
            shard(EXPERTS, axis="ep", dim=0, capacity=1.25),
            '<state = "*.experts.*"> axis = "ep" dim = 0 capacity = 1.25',
            "shard(states='*.experts.*', axis='ep', capacity=1.25)",
        ),
        (
            shard(EXPERTS, axis="ep", capacity=2),
            '<state = "*.experts.*"> axis = "ep" dim = 0 capacity = 2.0',
            "shard(states='*.experts.*', axis='ep', capacity=2)",
        ),
    ],
)
def test_op_and_call(directive: Shard, op: str, call: str) -> None:
    assert directive.op() == f"piper.do.shard {op}"
    assert repr(directive) == call


def strategy(*directives: Any, mesh: dict[str, int] | None = None, axis: Any = None) -> Strategy:
    axes = ("edp", "ep") if axis is None else axis
    given = [place(stages=2), replicate(axis=axes), order("GPipe"), *directives]
    return Strategy(mesh=MESH if mesh is None else mesh, directives=given)


def test_stands_in_the_strategy_with_its_line() -> None:
    made = strategy(shard(EXPERTS, axis="ep", capacity=1.5))
    op = 'piper.do.shard <state = "*.experts.*"> axis = "ep" dim = 0 capacity = 1.5'
    assert re.search(rf'{re.escape(op)} loc\("[^"]*test_strategy_shard\.py":\d+', made.ir())
    assert 'piper.mesh @mesh ["pp" = 2 unrolled, "edp" = 2 manual, "ep" = 2 manual]' in made.ir()
    with ir.Context():
        assert "capacity = 1.5" in str(ir.Module.parse(made.ir()))


def test_its_axis_is_one_of_the_data_axes() -> None:
    """Ranks along it have batches of their own."""
    made = strategy(shard(EXPERTS, axis="ep"))
    assert made.num_data_shards == 4
    assert made.first(Shard) == piper.shard(EXPERTS, axis="ep")


@pytest.mark.parametrize(
    ("mesh", "axis", "wanted"),
    [
        (MESH, "edp", "('edp', 'ep')"),
        ({"pp": 2, "dp": 2, "ep": 2}, "dp", "('dp', 'ep')"),
    ],
)
def test_an_axis_without_batches_is_refused(mesh: dict[str, int], axis: str, wanted: str) -> None:
    with pytest.raises(
        ValueError,
        match=r"test_strategy_shard\.py:\d+:\d+: shard axis 'ep' must be one along which ranks "
        rf"have batches of their own, expected replicate\(axis={re.escape(wanted)}\)",
    ):
        strategy(shard(EXPERTS, axis="ep"), mesh=mesh, axis=axis)


def test_without_replicate_it_says_what_to_write() -> None:
    with pytest.raises(ValueError, match=r"expected replicate\(axis='ep'\)"):
        Strategy(mesh={"ep": 2}, directives=[shard(EXPERTS, axis="ep")])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"states": ""}, "shard states must be a glob over names of states, got ''"),
        ({"states": 3}, "shard states must be a glob over names of states, got 3"),
        ({"axis": ""}, "shard axis must be a mesh axis, got ''"),
        ({"dim": -1}, "shard dim must be an int of at least 0, got -1"),
        ({"dim": True}, "shard dim must be an int of at least 0, got True"),
        ({"capacity": 0.5}, "shard capacity must be a finite number of at least 1, .* got 0.5"),
        ({"capacity": float("inf")}, "shard capacity must be a finite number .* got inf"),
        ({"capacity": float("nan")}, "shard capacity must be a finite number .* got nan"),
        ({"capacity": True}, "shard capacity must be a finite number .* got True"),
        ({"capacity": "2"}, "shard capacity must be a finite number .* got '2'"),
    ],
)
def test_options_out_of_range(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        shard(**({"states": EXPERTS, "axis": "ep"} | options))


def test_the_axis_must_be_in_the_mesh() -> None:
    with pytest.raises(ValueError, match=r"shard axis 'ep' is not in the mesh, which has pp, edp"):
        strategy(shard(EXPERTS, axis="ep"), mesh={"pp": 2, "edp": 2}, axis="edp")


def test_the_axis_must_be_manual_or_auto() -> None:
    with pytest.raises(
        ValueError,
        match=r"test_strategy_shard\.py:\d+:\d+: shard axis must be manual or auto, got 'pp', "
        "which is unrolled",
    ):
        strategy(shard(EXPERTS, axis="pp"))


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (
            shard(EXPERTS, axis="edp"),
            "sets the axis and dim of '.*' to .'edp', 0., but .* to .'ep'",
        ),
        (shard(EXPERTS, axis="ep", capacity=2), r"sets the capacity of '.*' to 2, but .* to None"),
    ],
)
def test_two_that_differ_contradict_each_other(other: Shard, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        strategy(shard(EXPERTS, axis="ep"), other)


def test_two_that_agree_do_not() -> None:
    strategy(shard(EXPERTS, axis="ep"), shard(EXPERTS, axis="ep"))


def test_the_axes_of_experts_are_manual() -> None:
    mesh = Mesh.of(MESH)
    assert [axis.name for axis in mesh.manual] == ["edp", "ep"]
    assert mesh.num_coordinates == 2
