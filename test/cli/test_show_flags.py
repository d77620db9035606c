"""``piper show``: flagged instructions, what streams are asked for, what ranks share out."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import piper
import pytest
from compiled_mlp import compiled, sgd
from piper.cli import main
from piper.strategy import Directive
from piper_runtime import Program
from piper_runtime.program import seal

RELU = re.compile(r'(torch "aten\.relu\.default"\(%\w+\) facts )<pure, flops = \d+>')


Show = Callable[[Program], dict[str, str]]


def program_of(*more: Directive) -> Program:
    update = piper.update(sgd)
    return compiled("1F1B", pp=2, microbatches=2, dp=2, layers=2, update=update, more=more)


@pytest.fixture
def show(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Show:
    """Print a program and return the sections by title."""

    def run(program: Program) -> dict[str, str]:
        program.save(tmp_path)
        assert main(["show", str(tmp_path)]) == 0
        texts = capsys.readouterr().out.split("\n\n")
        return {text.partition(",")[0].partition(":")[0]: text for text in texts}

    return run


def test_without_flags_and_options_nothing_is_said_of_them(
    show: Show,
) -> None:
    sections = show(program_of())
    assert "flagged instructions" not in sections
    header = sections["communicators"].splitlines()[1]
    assert header.split() == ["communicator", "axes", "coordinates", "used", "for"]


def test_flagged_instructions_are_listed(show: Show) -> None:
    program, name = program_of(), "ir/programs.mlir"
    text = RELU.sub(r"\1<host_sync>", program.texts[name])
    lines = show(Program(seal({**program.texts, name: text}, {})))["flagged instructions"]
    rows = [re.split(r"  +", line.strip()) for line in lines.splitlines()[1:]]
    assert rows == [
        ["entry", "at", "instruction", "times", "flags"],
        ["train", "pp 0", "run layer.0$F", "2", "host_sync"],
        ["train", "pp 1", "run layer.1$F", "2", "host_sync"],
        ["eval", "pp 0", "run layer.0$F.eval", "2", "host_sync"],
        ["eval", "pp 1", "run layer.1$F.eval", "2", "host_sync"],
    ]


@pytest.mark.parametrize(
    ("options", "columns"),
    [
        ({"priority": 0}, {"priority": "0"}),
        ({"sms": 16}, {"sms": "16"}),
        ({"priority": 2, "sms": 4}, {"priority": "2", "sms": "4"}),
    ],
)
def test_options_of_streams_are_columns(
    options: dict[str, int],
    columns: dict[str, str],
    show: Show,
) -> None:
    text = show(program_of(piper.stream("dp", **options)))["communicators"]
    header, *rows = (line for line in text.splitlines()[1:])
    assert re.split(r"  +", header.strip())[3:-1] == list(columns)
    for row in rows:
        for name, value in columns.items():
            cell = row[header.index(name) :].split("  ")[0].strip()
            assert cell == (value if row.strip().startswith("reduce.dp") else "")
    assert [row.split()[0] for row in rows] == [
        "send$0.1",
        "send$1.0",
        "reduce.dp$0",
        "reduce.dp$1",
    ]


@pytest.mark.parametrize(
    ("zero", "held"),
    [
        (0, "gradient float32"),
        (1, "value 1/2 over dp, compute float32, gradient float32"),
        (2, "value 1/2 over dp, compute float32, gradient float32 1/2 over dp"),
        (3, "value 1/2 over dp, gradient float32 1/2 over dp"),
    ],
)
def test_states_say_what_ranks_share_out(show: Show, zero: int, held: str) -> None:
    replicate = piper.replicate(axis="dp", zero=zero)
    program = compiled("1F1B", pp=2, microbatches=2, dp=2, replicate=replicate)
    buckets = [line for line in show(program)["states"].splitlines() if "$b" in line]
    assert buckets
    assert all(line.endswith(held) for line in buckets)
