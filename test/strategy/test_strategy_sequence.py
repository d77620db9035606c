"""sequence: what it says, in text and as a call, and what it refuses."""

from __future__ import annotations

import re
from typing import Any

import piper
import pytest
from piper import order, place, replicate, sequence, shard
from piper.mlir import ir
from piper.strategy import Strategy
from piper_runtime.inputs.batch import SequenceSpec

DIMS = {"ids": 1, "labels": 1}
MESH = {"pp": 2, "dp": 2, "cp": 2}
HERE = r"test_strategy_sequence\.py:\d+:\d+: sequence "


def strategy(*directives: Any, mesh: dict[str, int] | None = None, axis: Any = None) -> Strategy:
    axes = ("dp", "cp") if axis is None else axis
    given = [place(stages=2), replicate(axis=axes), order("GPipe"), *directives]
    return Strategy(mesh=MESH if mesh is None else mesh, directives=given)


def test_op_and_call() -> None:
    directive = sequence("cp", DIMS)
    assert directive.op() == 'piper.do.sequence axis = "cp" dims = {"ids" = 1, "labels" = 1}'
    assert repr(directive) == "sequence(axis='cp', dims={'ids': 1, 'labels': 1})"


def test_stands_in_the_strategy_with_its_line() -> None:
    text = strategy(sequence("cp", DIMS)).ir()
    op = 'piper.do.sequence axis = "cp" dims = {"ids" = 1, "labels" = 1}'
    assert re.search(rf'{re.escape(op)} loc\("[^"]*test_strategy_sequence\.py":\d+', text)
    with ir.Context():
        assert 'piper.do.sequence axis = "cp"' in str(ir.Module.parse(text))


def test_ranks_along_its_axis_have_the_same_examples() -> None:
    """So that the batch has a part for each of the others only."""
    made = strategy(sequence("cp", DIMS))
    assert made.num_data_shards == 2
    assert made.sequence == SequenceSpec("cp", DIMS, 2)
    assert strategy().num_data_shards == 4
    assert strategy().sequence is None


def test_along_tp_all_ranks_have_the_whole_batch() -> None:
    made = Strategy(
        mesh={"tp": 2}, directives=[shard("up.*", axis="tp"), sequence("tp", {"ids": 1})]
    )
    assert made.sequence is None


@pytest.mark.parametrize(
    ("dims", "message"),
    [
        ({}, "sequence dims must name the batch inputs that have one, got none"),
        ({"ids": -1}, "sequence dim of input 'ids' must be an int of at least 0, got -1"),
        ({"ids": True}, "sequence dim of input 'ids' must be an int of at least 0, got True"),
        ({"ids": "1"}, "sequence dim of input 'ids' must be an int of at least 0, got '1'"),
    ],
)
def test_dims_out_of_range(dims: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        sequence("cp", dims)


def test_the_axis_must_be_in_the_mesh() -> None:
    with pytest.raises(ValueError, match=HERE + "axis 'cp' is not in the mesh, which has pp, dp"):
        strategy(sequence("cp", DIMS), mesh={"pp": 2, "dp": 2}, axis="dp")


def test_the_axis_must_be_manual_or_auto() -> None:
    with pytest.raises(
        ValueError, match=HERE + "axis must be manual or auto, got 'pp', which is unrolled"
    ):
        strategy(sequence("pp", DIMS))


def test_gradients_must_be_summed_over_the_axis() -> None:
    with pytest.raises(
        ValueError,
        match=HERE + "axis 'cp' must be one over which gradients are summed, expected replicate to "
        r"name it, too, as in replicate\(axis='cp'\)",
    ):
        strategy(sequence("cp", DIMS), axis="dp")


def test_along_tp_ranks_must_share_out_states() -> None:
    with pytest.raises(
        ValueError,
        match=HERE + "axis 'tp' must be one along which ranks share out states, expected "
        r"shard\('layers.\*.weight', axis='tp'\) beside it",
    ):
        Strategy(mesh={"tp": 2}, directives=[sequence("tp", DIMS)])


def test_sequences_are_shared_out_once() -> None:
    with pytest.raises(
        ValueError,
        match=HERE + r"axis must be the one along which ranks have parts of sequences, 'cp' by "
        r".*test_strategy_sequence\.py:\d+:\d+, got 'dp'",
    ):
        strategy(sequence("cp", DIMS), sequence("dp", DIMS))


@pytest.mark.parametrize("other", [{"ids": 0, "labels": 1}, {"ids": 1}])
def test_two_that_differ_contradict_each_other(other: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=r"sets the dims along 'cp' to .*, but .* sets it to"):
        strategy(sequence("cp", DIMS), sequence("cp", other))


def test_two_that_agree_do_not() -> None:
    made = strategy(sequence("cp", DIMS), sequence("cp", dict(reversed(DIMS.items()))))
    assert made.sequence == SequenceSpec("cp", DIMS, 2)


def test_it_is_one_of_the_directives_of_the_package() -> None:
    assert piper.sequence is sequence
