"""What benchmarks work out of what they measure, and what they refuse."""

from __future__ import annotations

import sys

import compile_time
import data_parallel
import pytest
import step_time
from compile_time import LARGEST, SECOND, SLOPE, Measured, bounds
from two_stages import StageTimes, ideal_seconds

GIGA = 10**9


def measured(seconds: float, instructions: int = 1000, peak: int = GIGA) -> Measured:
    inner = {("record", "order"): seconds, ("lower", "lower-programs"): 0.001}
    return Measured({**inner, ("dump", "dump"): 0.5}, instructions, peak)


def test_ideal_of_equal_stages_is_the_formula() -> None:
    stages = [StageTimes(forward=1.0, backward=2.0, update=0.5)] * 2
    assert ideal_seconds(stages, 8) == pytest.approx(8 * 3.0 * (8 + 1) / 8 + 0.5)


def test_ideal_waits_for_the_slower_stage() -> None:
    """Rank 0 starts and ends; in between, rank 1 is never idle."""
    stages = [StageTimes(1.0, 2.0, 0.25), StageTimes(2.0, 4.0, 0.25)]
    assert ideal_seconds(stages, 8) == pytest.approx(1.0 + 8 * 6.0 + 2.0 + 0.25)


def test_last_update_counts_where_it_ends_later() -> None:
    stages = [StageTimes(1.0, 2.0, 0.0), StageTimes(1.0, 2.0, 10.0)]
    assert ideal_seconds(stages, 4) == pytest.approx(1.0 + 4 * 3.0 + 10.0)


def test_bounds_are_of_sizes_that_were_measured() -> None:
    assert not list(bounds({"1F1B:2x4": measured(0.1)}))
    (bound,) = bounds({SECOND: measured(0.1)})
    assert bound.holds
    assert str(bound).startswith(f"holds: {SECOND} from record to verified programs in 0.101 s")


@pytest.mark.parametrize(
    ("size", "found"),
    [
        (SECOND, measured(1.1)),
        (LARGEST, measured(20.0)),  # with the dump
        (LARGEST, measured(1.0, peak=5 * GIGA)),
    ],
)
def test_bounds_fail(size: str, found: Measured) -> None:
    (bound,) = bounds({size: found})
    assert not bound.holds
    assert str(bound).startswith("FAILS")


def test_slope_counts_where_a_pass_takes_long_enough() -> None:
    """Eight times the instructions: 1.15 is a factor of 10.9."""
    for seconds, holds in ((0.0109, True), (0.0111, False)):
        small, large = measured(0.001), measured(seconds, 8000)
        (bound,) = bounds(dict(zip(SLOPE, (small, large), strict=True)))
        assert bound.holds is holds
    small, large = measured(0.0001), measured(0.0019, 8000)  # steep, and short
    (bound,) = bounds(dict(zip(SLOPE, (small, large), strict=True)))
    assert bound.holds
    assert "0 of 1 passes" in bound.text


def test_check_refuses_sizes_without_bounds(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["compile_time.py", "1F1B:2x4", "--check"])
    with pytest.raises(SystemExit):
        compile_time.main()
    assert "expected sizes that have bounds" in capsys.readouterr().err


def test_a_size_prints_its_passes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["compile_time.py", "1F1B:2x4", "1F1B:2x8", "--repeat=1"])
    assert compile_time.main() == 0
    printed = capsys.readouterr().out
    assert "1F1B:2x8x2" in printed
    assert "lower-programs" in printed
    assert "slope" in printed


@pytest.mark.parametrize(
    ("options", "ranks", "wanted"),
    [([], "1", "at least 2, got 1"), (["--memory"], "2", "a multiple of 2 from 4 on, got 2")],
)
def test_data_parallel_refuses_other_numbers_of_ranks(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    options: list[str],
    ranks: str,
    wanted: str,
) -> None:
    monkeypatch.setattr(sys, "argv", ["data_parallel.py", *options])
    monkeypatch.setenv("WORLD_SIZE", ranks)
    with pytest.raises(SystemExit):
        data_parallel.main()
    assert wanted in capsys.readouterr().err


def test_step_time_refuses_more_than_two_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["step_time.py"])
    monkeypatch.setenv("WORLD_SIZE", "3")
    with pytest.raises(ValueError, match="expected 1 or 2 ranks, got 3"):
        step_time.main()
