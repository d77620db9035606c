"""``python -m piper.opt`` prints what piper-opt prints."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from levels import FLAGS, LEVELS, tool
from piper.opt import main

STREAMS = """\
piper.stream @a
piper.stream @b priority = 1
"""


@pytest.mark.parametrize("level", FLAGS)
def test_makes_each_level(
    level: str, levels: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "before.mlir"
    file.write_text(levels[LEVELS[LEVELS.index(level) - 1]])
    assert main([str(file), *FLAGS[level]]) == 0
    assert capsys.readouterr().out == levels[level]


def test_says_what_piper_opt_says(tmp_path: Path) -> None:
    """Also where ops without a location of their own are from."""
    file, out = tmp_path / "streams.mlir", tmp_path / "out.mlir"
    file.write_text(STREAMS)
    for flags in ([], ["--cse", "--piper-verify"], ["--pass-pipeline=builtin.module(cse)"]):
        assert main([str(file), *flags, "-o", str(out)]) == 0
        expected = subprocess.check_output([tool(), str(file), *flags], text=True)
        assert out.read_text() == expected


def test_reads_standard_input(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "streams.mlir"
    file.write_text(STREAMS)
    usual = os.dup(0)
    try:
        with file.open() as stream:
            os.dup2(stream.fileno(), 0)
        assert main(["--cse"]) == 0
    finally:
        os.dup2(usual, 0)
        os.close(usual)
    expected = subprocess.check_output([tool(), "--cse"], input=STREAMS, text=True)
    assert capsys.readouterr().out == expected


@pytest.mark.parametrize(
    ("text", "flags", "message"),
    [
        ("piper.nonsense", [], "nonsense"),
        ("piper.stream @a piper.stream @a", [], "redefinition of symbol named 'a'"),
        (STREAMS, ["--piper-nonsense"], "'piper-nonsense' does not refer to a registered pass"),
        (STREAMS, ["--pass-pipeline=cse"], "expected pass pipeline to be wrapped"),
        (STREAMS, ["-x"], "expected --NAME of a pass or pipeline, got '-x'"),
    ],
)
def test_failure_is_a_message(
    text: str,
    flags: list[str],
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = tmp_path / "wrong.mlir"
    file.write_text(text)
    assert main([str(file), *flags]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert message in said.err


def test_missing_file_is_a_message(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["no/such.mlir"]) == 1
    assert "No such file or directory: 'no/such.mlir'" in capsys.readouterr().err
