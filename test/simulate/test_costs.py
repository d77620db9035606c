"""Costs of actions and pairs: uniform, by stage, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from piper.schedules import Action, Pair
from piper.simulate import Costs

FORWARD, BACKWARD, INPUT, WEIGHT = (Action(1, p, 0) for p in ("F", "B", "I", "W"))


def test_a_whole_backward_is_both_halves_unless_given() -> None:
    costs = Costs.uniform(2, I=3, W=4)
    assert [costs.of(cell) for cell in (FORWARD, INPUT, WEIGHT, BACKWARD)] == [2, 3, 4, 7]
    assert Costs.uniform(B=5, I=3, W=4).of(BACKWARD) == 5


def test_times_by_stage() -> None:
    costs = Costs.per_stage([1, 2], I=[3, 4], W=5)
    assert [costs.of(cell) for cell in (FORWARD, INPUT, WEIGHT, BACKWARD)] == [2, 4, 5, 9]
    assert costs.of(Action(0, "B", 0)) == 8


def test_a_pair_takes_as_long_as_its_members_unless_given() -> None:
    pair, other = Pair(FORWARD, BACKWARD), Pair(FORWARD, Action(3, "I", 0))
    assert Costs.uniform(2, B=5, I=4).of(pair) == 7
    assert Costs.uniform(2, B=5, I=4).of(other) == 6
    assert Costs.uniform(2, B=5, I=4, pair=6).of(pair) == 6
    by_stage = Costs.per_stage(2, B=5, I=4, pair={(1, 3): 1})
    assert [by_stage.of(pair), by_stage.of(other)] == [7, 1]


@pytest.mark.parametrize("wrong", [-1, float("nan"), float("inf")])
def test_times_are_numbers(wrong: float) -> None:
    with pytest.raises(ValueError, match=r"cost of F must be finite and at least 0, got"):
        Costs.uniform(wrong)
    with pytest.raises(ValueError, match=r"cost of a pair must be finite and at least 0, got"):
        Costs.uniform(pair=wrong)
    with pytest.raises(ValueError, match=r"cost of a pair must be finite and at least 0, got"):
        Costs.per_stage(pair={(0, 0): wrong})


def test_lengths_agree() -> None:
    with pytest.raises(ValueError, match=r"as many as stages, got F 2, B 3, I 3, W 1"):
        Costs.per_stage([1, 2], I=[1, 2, 3])

    with pytest.raises(ValueError, match=r"as many as stages, got F 0, B 1, I 1, W 1"):
        Costs.per_stage([])


@pytest.mark.parametrize("pair", [None, 2.5, {(0, 1): 2.0, (1, 0): 3.5}])
def test_costs_are_written_and_read(
    pair: float | dict[tuple[int, int], float] | None, tmp_path: Path
) -> None:
    costs = Costs.per_stage([1e-7, 2.0], I=[0, 4], W=5, B=[3, 7], pair=pair)
    costs.write(tmp_path / "costs.json")
    assert Costs.read(tmp_path / "costs.json") == costs


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "JSONDecodeError"),
        ("[]", "TypeError"),
        ('{"F": [1], "B": [2], "I": [1]}', "KeyError: 'W'"),
        ('{"F": 1, "B": [2], "I": [1], "W": [1]}', "TypeError"),
        ('{"F": ["x"], "B": [2], "I": [1], "W": [1]}', "ValueError: could not convert"),
        ('{"F": [-1], "B": [2], "I": [1], "W": [1]}', "cost of F must be finite and at least 0"),
        ('{"F": [1], "B": [2], "I": [1], "W": [1], "pair": [[0, 1]]}', "not enough values"),
    ],
)
def test_files_that_hold_no_costs_are_refused(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "wrong.json").write_text(text)
    with pytest.raises(ValueError, match="a list of times for each of F, B, I and W, got") as error:
        Costs.read(tmp_path / "wrong.json")
    assert str(error.value).startswith(f"{tmp_path / 'wrong.json'}: expected costs")
    assert message in str(error.value)


def test_every_stage_has_a_cost() -> None:
    with pytest.raises(ValueError, match=r"costs of F must reach stage 2, got \(1, 2\)"):
        Costs.per_stage([1, 2]).of(Action(2, "F", 0))
