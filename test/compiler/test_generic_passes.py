"""Passes of MLIR that know nothing of Piper leave what programs do as it is."""

from __future__ import annotations

import pytest
from levels import LEVELS, names, ops, run

INSTRUCTIONS = (
    *("launch", "run", "transfer", "all_reduce", "send", "recv", "input", "output", "tangent"),
    *("accumulate", "update", "grad"),
)
SYMBOLS = ("mesh", "schedule", "strategy", "state", "bucket", "stream", "comm")
ENTRIES = ("step", "cluster", "program")
KEPT = [f"piper.{name}" for name in (*INSTRUCTIONS, *SYMBOLS, *ENTRIES)]


@pytest.mark.parametrize("pass_", ["cse", "canonicalize", "symbol-dce"])
@pytest.mark.parametrize("level", LEVELS)
def test_generic_passes_keep_what_happens(level: str, pass_: str, levels: dict[str, str]) -> None:
    before, after = names(levels[level]), names(run(levels[level], pass_))
    assert {name: after[name] for name in KEPT} == {name: before[name] for name in KEPT}


@pytest.mark.parametrize("level", ["chunks", "cluster"])
def test_programs_of_a_cleaned_level_are_the_same_size(level: str, levels: dict[str, str]) -> None:
    rest = {"chunks": "piper-record,piper-materialize,piper-lower", "cluster": "piper-lower"}
    made = names(run(levels[level], f"cse,canonicalize,symbol-dce,{rest[level]}"))
    expected = names(levels["programs"])
    assert {name: made[name] for name in KEPT} == {name: expected[name] for name in KEPT}


@pytest.mark.parametrize("level", LEVELS)
def test_every_op_has_a_location(level: str, levels: dict[str, str]) -> None:
    lost = [name for name, location in ops(levels[level]) if "unknown" in location]
    assert lost == []


def test_instructions_name_their_source(levels: dict[str, str]) -> None:
    """A line of the model or the strategy, or the state or input that they are about."""
    known = ("toy.py", 'loc("embed.weight', 'loc("layers.', 'loc("ids"', 'loc("labels"')
    instructions = {f"piper.{name}" for name in INSTRUCTIONS}
    found = [op for op in ops(levels["programs"]) if op[0] in instructions]
    assert [op for op in found if not any(text in op[1] for text in known)] == []
