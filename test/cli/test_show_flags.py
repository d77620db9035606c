"""``piper show``: flagged instructions, and what streams are asked for, where there is any."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import piper
import pytest
import torch
from piper.cli import main
from piper.strategy import Directive
from piper_runtime import Program
from piper_runtime.program import seal
from torch import nn

RELU = re.compile(r'(torch "aten\.relu\.default"\(%\w+\) facts )<pure, flops = \d+>')


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x).relu()
        return x


def sgd(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1)


def compiled(*more: Directive) -> Program:
    strategy = piper.Strategy(
        mesh={"pp": 2, "dp": 2},
        directives=[
            piper.annotate({"layers.*": "layer"}),
            piper.split(microbatches=2),
            piper.place(stages=2),
            piper.replicate(axis="dp"),
            piper.order("1F1B"),
            piper.update(sgd),
            *more,
        ],
    )
    batch = {"x": torch.randn(8, 4)}
    return piper.compile(Mlp(), lambda model, b: model(b["x"]).square().sum(), strategy, batch)


@pytest.fixture
def show(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[[Program], dict[str, str]]:
    """Print a program and return the sections by title."""

    def run(program: Program) -> dict[str, str]:
        program.save(tmp_path)
        assert main(["show", str(tmp_path)]) == 0
        texts = capsys.readouterr().out.split("\n\n")
        return {text.partition(",")[0].partition(":")[0]: text for text in texts}

    return run


def test_without_flags_and_options_nothing_is_said_of_them(
    show: Callable[[Program], dict[str, str]],
) -> None:
    sections = show(compiled())
    assert "flagged instructions" not in sections
    header = sections["communicators"].splitlines()[1]
    assert header.split() == ["communicator", "axes", "coordinates", "used", "for"]


def test_flagged_instructions_are_listed(show: Callable[[Program], dict[str, str]]) -> None:
    program, name = compiled(), "ir/programs.mlir"
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
    show: Callable[[Program], dict[str, str]],
) -> None:
    text = show(compiled(piper.stream("dp", **options)))["communicators"]
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
