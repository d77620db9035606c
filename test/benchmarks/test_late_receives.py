"""What moving receives down costs, at the size of two ranks."""

from __future__ import annotations

import late_receives
import pytest


@pytest.mark.slow
def test_receives_at_their_cell_hold_up_senders(capsys: pytest.CaptureFixture[str]) -> None:
    sizes = ["--ranks", "2", "--microbatches", "4"]
    late_receives.main([*sizes, "--schedules", "1F1B", "DualPipeV", "--ahead", "0"])
    _, _, *lines = capsys.readouterr().out.splitlines()
    usual, late, kept, pairs, stuck, _ = (line.split() for line in lines)
    assert usual[:4] == ["1F1B", "as", "it", "is"]
    assert usual[4:6] == pairs[4:6] == ["yes", "yes"]
    assert late[:6] == ["1F1B", "0", "ahead", "yes", "no", "0.0"]
    assert kept[:7] == ["1F1B", "0", "ahead,", "kept", "yes", "no", "0.0"]
    assert stuck == ["DualPipeV", "0", "ahead", "deadlock", "deadlock", *["-"] * 8]
