"""The job with experts: short runs with their closing check, and what is refused."""

from __future__ import annotations

import piper
import pytest
import train_moe

SIZES = {"steps": 2, "layers": 2, "width": 16, "context": 8, "batch": 8}
SMALL = [f"--{name}={value}" for name, value in SIZES.items()]


@pytest.mark.parametrize(
    "options",
    [
        [],
        ["--model=deepseek_v3", "--zero=2", "--capacity=2"],
        pytest.param(["--mesh=pp=2,edp=2,ep=2", "--batch=16"], marks=pytest.mark.slow),
        pytest.param(["--mesh=pp=2,ep=4", "--batch=16", "--schedule=1F1B"], marks=pytest.mark.slow),
    ],
    ids=lambda options: " ".join(options) or "default",
)
def test_run_passes_its_check(options: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert train_moe.main([*SMALL, *options]) == 0
    out = capsys.readouterr().out
    assert "step: 2 loss: " in out
    assert "validation loss: " in out
    assert "check: passed" in out


def test_failed_check_is_the_exit_status(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(train_moe, "TOLERANCE", -1.0)
    arguments = ["--mesh=pp=1,ep=2", "--schedule=1F1B", "--microbatches=1"]
    assert train_moe.main([*SMALL, *arguments]) == 1
    assert "check: FAILED" in capsys.readouterr().out


def test_experts_must_be_divisible() -> None:
    """Eight experts on three ranks."""
    with pytest.raises(
        piper.CompileError, match=r"train_moe.py:\d+: .*3 ranks of axis 'ep' divide"
    ):
        train_moe.main([*SMALL, "--mesh=pp=1,ep=3", "--schedule=1F1B", "--batch=12"])
