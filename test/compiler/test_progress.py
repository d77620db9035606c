"""What ``piper.compile`` shows while it works."""

from __future__ import annotations

import io
import re
import sys

import piper
import pytest
from toy import MESH, Toy, batch_of, directives, loss_fn


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_capture_and_compile_show_how_far_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    for name in ("PIPER_PROGRESS", "RANK"):
        monkeypatch.delenv(name, raising=False)
    strategy = piper.Strategy(mesh=MESH, directives=directives())
    piper.compile(Toy(), loss_fn, strategy, batch_of())
    shown = stream.getvalue().split("\r\x1b[K")[1:]
    steps = [line for line in shown if line.endswith(" ...")]
    assert steps == [
        *(f"piper: capture {n} of 2 ..." for n in range(3)),
        *(f"piper: compile {n} of 4 ..." for n in range(5)),
    ]
    ends = [line for line in shown if not line.endswith(" ...")]
    assert len(ends) == 2
    for line, name in zip(ends, ("capture 2 of 2", "compile 4 of 4"), strict=True):
        assert re.fullmatch(rf"piper: {name} \d+\.\ds\n", line)
