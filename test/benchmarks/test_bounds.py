"""Bounds: what holds, what the exit status is, which each benchmark checks; nothing is timed."""

from __future__ import annotations

import math
import sys
from types import ModuleType
from typing import Any

import data_parallel
import kernel_host_time
import pytest
import runtime_overhead
import step_time
import torch.distributed as dist
from bound import Bound, verdict
from paired import Ratio

HELD, BROKEN = Bound("one", holds=True), Bound("two", holds=False)


def ratio(high: float) -> Ratio:
    """Low and in the middle it would hold."""
    return Ratio(0.9, 0.8, high)


@pytest.mark.parametrize(
    ("found", "holds"), [(1.01, True), (1.02, True), (1.021, False), (math.nan, False)]
)
def test_a_number_is_compared_with_the_most_it_may_be(found: float, holds: bool) -> None:
    bound = Bound.of("the ratio is", found, 1.02)
    assert bound.holds is holds
    assert str(bound) == f"{'holds' if holds else 'FAILS'}: the ratio is {found:.3f}, at most 1.02"


def test_the_end_of_the_interval_counts() -> None:
    assert Ratio(0.9, 0.8, 1.02).bound("it", 1.02).holds
    bound = Ratio(1.0, 0.9, 1.021).bound("it", 1.02)
    assert str(bound) == "FAILS: it: the interval of the ratio ends at 1.021, at most 1.02"


@pytest.mark.parametrize("check", [False, True])
def test_a_bound_that_fails_decides_only_if_it_is_asked_for(
    check: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    assert verdict([BROKEN, HELD], check=check) == int(check)
    assert capsys.readouterr().out == "FAILS: two\nholds: one\n"
    assert verdict([HELD, HELD], check=check) == 0


def test_rank_0_decides(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RANK", "1")
    assert verdict([BROKEN], check=True) == 0
    assert capsys.readouterr().out == ""


class Script:
    """A benchmark that finds what a test says, on so many ranks."""

    def __init__(
        self, module: ModuleType, measure: str, *, ranks: int = 1, most: float, parts: int = 1
    ) -> None:
        self.module, self.measure, self.ranks = module, measure, ranks
        self.most, self.parts = most, parts

    def found(self, worst: float) -> Any:
        """What the script measures: `worst`, of several the last."""
        if self.module is runtime_overhead:
            return 1000, worst * 1e-3  # instructions, seconds
        if self.module is kernel_host_time:
            return ratio(worst)
        ratios = [ratio(0.9)] * (self.parts - 1) + [ratio(worst)]
        return {f"case {number}": one for number, one in enumerate(ratios)}

    def run(self, patch: pytest.MonkeyPatch, worst: float, *words: str) -> int:
        """The exit status."""
        patch.setattr(self.module, self.measure, lambda *_: self.found(worst))
        patch.setattr(sys, "argv", [f"{self.module.__name__}.py", *words])
        patch.setenv("WORLD_SIZE", str(self.ranks))
        patch.setattr(dist, "init_process_group", lambda _: None)
        patch.setattr(dist, "destroy_process_group", lambda: None)
        status: int = self.module.main()
        return status


SCRIPTS = {
    "step_time": Script(step_time, "compare_all", most=1.03, parts=2),
    "step_time on two ranks": Script(step_time, "compare_all", ranks=2, most=1.02, parts=2),
    "kernel_host_time": Script(kernel_host_time, "measure", most=1.1),
    "runtime_overhead": Script(runtime_overhead, "measure", most=20.0),
    "data_parallel": Script(data_parallel, "compare_times", ranks=2, most=1.02, parts=6),
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_checks_its_bounds(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    script = SCRIPTS[name]
    for worst, failed in ((script.most - 0.001, 0), (script.most + 0.001, 1)):
        assert script.run(monkeypatch, worst, "--check") == failed
        lines = capsys.readouterr().out.splitlines()
        assert sum(line.startswith("FAILS: ") for line in lines) == failed
        assert sum(line.startswith("holds: ") for line in lines) == script.parts - failed
        assert f"at most {script.most:g}" in lines[-1]
    assert script.run(monkeypatch, script.most + 0.001) == 0
    assert "FAILS: " in capsys.readouterr().out


@pytest.mark.parametrize("name", SCRIPTS)
def test_help_says_the_bounds(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    with pytest.raises(SystemExit) as ended:
        SCRIPTS[name].run(monkeypatch, 0.0, "--help")
    assert ended.value.code == 0
    description, _, options = capsys.readouterr().out.partition("options:")
    (check,) = (line for line in options.splitlines() if "exit with 1 unless" in line)
    for text in (description, check):
        assert f"{SCRIPTS[name].most:g}" in text


@pytest.mark.parametrize("name", ["step_time", "kernel_host_time", "data_parallel"])
def test_other_sizes_have_no_bounds(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    script = SCRIPTS[name]
    assert script.run(monkeypatch, 9.0, "--width", "128") == 0
    printed = capsys.readouterr().out
    assert "FAILS" not in printed
    assert "holds" not in printed
    with pytest.raises(SystemExit):
        script.run(monkeypatch, 9.0, "--width", "128", "--check")
    expected = script.module.DEFAULT.width
    assert f"--check expected --width {expected}, which the bounds" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("ranks", "words", "got"),
    [("4", [], "got 4 ranks"), ("4", ["--memory"], "got 4 ranks and --memory")],
)
def test_memory_and_more_ranks_have_no_bounds(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    ranks: str,
    words: list[str],
    got: str,
) -> None:
    monkeypatch.setattr(sys, "argv", ["data_parallel.py", "--check", *words])
    monkeypatch.setenv("WORLD_SIZE", ranks)
    with pytest.raises(SystemExit):
        data_parallel.main()
    assert f"--check expected 2 ranks and no --memory, {got}\n" in capsys.readouterr().err
