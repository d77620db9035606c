"""``piper show --memory`` and ``--comm``: what they print, and options without effect."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import piper
import pytest
import torch
from compiled_mlp import Mlp, sgd, square_loss
from piper.cli import main
from piper.simulate import ProgramFacts
from piper.simulate.predicted import entry_memory
from piper_runtime import Program
from piper_runtime.program import seal

MICROBATCHES = 4
PARAMETERS = 2 * (8 * 8 + 8) * 4  # bytes of a stage


def compile_to(folder: Path, *, pp: int, dp: int, **sharing: Any) -> Path:
    place = [piper.place(stages=pp), piper.order("1F1B")] if pp > 1 else []
    strategy = piper.Strategy(
        mesh={"pp": pp, "dp": dp} if pp > 1 else {"dp": dp},
        directives=[
            piper.annotate({"layers.*": "layer"}),
            piper.split(microbatches=MICROBATCHES),
            *place,
            piper.replicate(axis="dp", **sharing),
            piper.update(sgd, clip=1.0),
        ],
    )
    batch = {"x": torch.randn(4 * MICROBATCHES * dp, 8)}
    piper.compile(Mlp(), square_loss, strategy, batch).save(folder)
    return folder


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_to(tmp_path_factory.mktemp("pipeline"), pp=2, dp=2)


Show = Callable[..., dict[str, list[str]]]


@pytest.fixture
def show(compiled: Path, capsys: pytest.CaptureFixture[str]) -> Show:
    """Run the command and return its sections: the lines below each title."""

    def run(*arguments: str) -> dict[str, list[str]]:
        assert main(["show", str(compiled), *arguments]) == 0
        said = capsys.readouterr().out
        sections = [section.splitlines() for section in said.strip().split("\n\n")]
        return {title: lines for title, *lines in sections}

    return run


@pytest.fixture
def refused(compiled: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    def run(*arguments: str) -> str:
        assert main(["show", str(compiled), *arguments]) == 1
        said = capsys.readouterr()
        assert said.out == ""
        return said.err

    return run


# Memory.


def test_memory_has_every_kind_at_the_peak(compiled: Path, show: Show) -> None:
    sections = show("--memory", "--optimizer-bytes", "8")
    assert f"{compiled}: train of pp=2 x dp=2, 4 microbatches" in sections
    header, *ranks = sections["bytes of a rank at its peak, by kind"]
    assert header.split() == [
        "rank", "parameters", "gradients", "optimizer", "batch", "activations", "communication",
        "inside", "peak",
    ]  # fmt: skip
    memory = entry_memory(ProgramFacts.read(compiled), "train", per_parameter=8)
    assert len(ranks) == 2
    for at, line in enumerate(ranks):
        name, parameters, gradients, optimizer, *_, peak = re.split(r"  +", line.strip())
        assert name == f"pp {at}"
        assert (parameters, gradients, optimizer) == ("576B", "576B", "1.1KiB")
        assert peak == f"{memory[at].peak / 1024:.1f}KiB"


def test_memory_names_the_instruction_at_the_peak(compiled: Path, show: Show) -> None:
    lines = show("--memory")["instruction at the peak"]
    rows = ProgramFacts.read(compiled).entry("train")
    for at, line in enumerate(lines):
        found = re.fullmatch(rf"  pp {at}  (\d+) of {len(rows[at])} +(\S.*)", line)
        assert found
        peak = entry_memory(ProgramFacts.read(compiled), "train")[at].at
        assert int(found[1]) == peak + 1


def test_memory_is_shown_over_the_step(show: Show) -> None:
    lines = show("--memory")["over the step: the most in each tenth of the instructions of a rank"]
    assert len(lines) == 2 * 4
    kinds = [re.split(r"  +", line.strip()) for line in lines]
    assert [kind[0] for kind in kinds[:4]] == ["pp 0", "communication", "inside", "all"]
    assert all(len(kind) == 11 for kind in kinds[1:4])
    assert kinds[0][1] == "activations"


def test_an_unknown_optimizer_is_a_question_mark(show: Show) -> None:
    lines = show("--memory")["bytes of a rank at its peak, by kind"]
    assert re.split(r"  +", lines[1].strip())[3] == "?"
    assert "--optimizer-bytes says it" in lines[-1]


def test_another_entry_point_has_no_gradients(show: Show) -> None:
    sections = show("--memory", "--entry", "eval")
    _, *ranks = sections["bytes of a rank at its peak, by kind"]
    assert re.split(r"  +", ranks[0].strip())[:3] == ["pp 0", "576B", "0B"]


def test_memory_is_drawn(show: Show, tmp_path: Path) -> None:
    file = tmp_path / "memory.svg"
    assert f"wrote {file}" in show("--memory", "-o", str(file))
    assert ">pp 1</text>" in file.read_text()


# Communication.


def test_comm_has_the_textbook_beside_the_bytes(show: Show) -> None:
    header, *lines = show("--comm")["bytes that a rank sends in a step, by communicator of n ranks"]
    names = re.split(r"  +", header.strip())
    rows = {
        cells[0]: dict(zip(names, cells, strict=True))
        for cells in (re.split(r"  +", line.strip()) for line in lines)
    }
    message = 4 * 8 * 4  # bytes: rows, width, float32
    assert rows["send$0.1"] == {
        "communicator": "send$0.1", "axes": "pp", "kind": "send", "n": "2", "values": "1",
        "calls": "4", "bytes": f"{MICROBATCHES * message}B",
        "textbook": f"{MICROBATCHES * message}B", "ratio": "1.00",
        "formula": "bytes x microbatches",
    }  # fmt: skip
    reduced = rows["reduce.dp$0"]
    assert (reduced["axes"], reduced["kind"], reduced["n"]) == ("dp", "all_reduce", "2")
    assert (reduced["bytes"], reduced["formula"]) == (f"{PARAMETERS}B", "2(n-1)/n x bytes")
    assert rows["reduce.pp$0.1"]["axes"] == "pp"


def test_comm_adds_up_each_rank(show: Show) -> None:
    header, *lines = show("--comm")["bytes of a rank in a step"]
    assert header.endswith("trained parameters  times over manual axes")
    for line in lines:
        name, sends, receives, _, trained, multiple = re.split(r"  +", line.strip())
        assert (sends, receives) == ("512B", "512B"), name
        assert trained == f"{PARAMETERS}B"
        assert float(multiple) == pytest.approx(2, abs=0.02)


POLICIES = [
    *({"zero": zero, "reduce": reduce} for zero in (1, 2) for reduce in ("last", "each")),
    *(
        {"zero": 3, "reduce": reduce, "gather": gather}
        for reduce in ("last", "each")
        for gather in ("each", "step")
    ),
]


@pytest.mark.parametrize(
    "policy",
    [
        pytest.param(
            policy,
            id="-".join(map(str, policy.values())),
            marks=[] if policy in (POLICIES[0], POLICIES[3], POLICIES[-2]) else pytest.mark.slow,
        )
        for policy in POLICIES
    ],
)
def test_sharing_states_shows(
    policy: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Parts of states in the memory of the first stage, and collectives beside their formulas."""
    compile_to(tmp_path, pp=2, dp=2, **policy)
    assert main(["show", str(tmp_path), "--memory", "--comm", "--optimizer-bytes", "8"]) == 0
    said = capsys.readouterr().out
    parts = {title: lines for title, *lines in map(str.splitlines, said.strip().split("\n\n"))}

    first = parts["bytes of a rank at its peak, by kind"][1]
    states, gradients, optimizer = re.split(r"  +", first.strip())[1:4]
    half = f"{PARAMETERS // 2}B"
    assert states == (half if policy["zero"] == 3 else f"{PARAMETERS}B")
    split = policy["zero"] > 1 and policy["reduce"] == "each"
    assert gradients == (half if split else f"{PARAMETERS}B")
    assert optimizer == f"{PARAMETERS}B"  # of half of the parameters, two moments

    _, *lines = parts["bytes that a rank sends in a step, by communicator of n ranks"]
    rows = {
        (cells[0], cells[2]): cells[6:]
        for cells in (re.split(r"  +", line.strip()) for line in lines)
    }
    assert {ratio for _, _, ratio, _ in rows.values()} == {"1.00"}
    once, reductions = PARAMETERS // 2, MICROBATCHES if policy["reduce"] == "each" else 1
    kind, formula = "reduce_scatter", "(n-1)/n x bytes"
    if policy["zero"] == 1 and policy["reduce"] == "each":
        kind, formula, reductions = "all_reduce", "2(n-1)/n x bytes", 2 * reductions
    assert rows["reduce.dp$0", kind][0] == printed(reductions * once)
    assert rows["reduce.dp$0", kind][3].startswith(formula)
    uses = MICROBATCHES * 3 // 2 if policy.get("gather") == "each" else 1  # one layer only forward
    assert rows["gather.dp$0", "all_gather"][0] == printed(uses * once)
    assert rows["gather.dp$0", "all_gather"][3].startswith("(n-1)/n x bytes")


def printed(num_bytes: int) -> str:
    """Bytes as the command prints them."""
    return f"{num_bytes}B" if num_bytes < 1024 else f"{num_bytes / 1024:.1f}KiB"


def test_both_are_one_report(show: Show) -> None:
    assert len(show("--memory", "--comm")) == 1 + 3 + 2


def test_one_rank_without_messages(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    compile_to(tmp_path, pp=1, dp=1)
    assert main(["show", str(tmp_path), "--memory", "--comm"]) == 0
    said = capsys.readouterr().out
    assert re.search(r"  all ranks +1\.1KiB +1\.1KiB +\? ", said)
    assert re.search(r"  reduce\.dp\$0 +dp +all_reduce +1 +5 +5 +0B +0B +2\(n", said)  # no ratio
    assert said.endswith("  0.00\n")


# Refusals.


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--entry", "eval"), "--entry expected --memory or --comm, got none"),
        (("--comm", "-o", "a.svg"), "-o expected --memory, got none"),
        (("--comm", "--optimizer-bytes", "8"), "--optimizer-bytes expected --memory, got none"),
        (("--memory", "-o", "a.pdf"), "must be a file .svg or .png, got 'a.pdf'"),
        (("--memory", "-o", "none/a.svg"), "-o expected a file in a directory that exists, got no"),
        (("--memory", "--optimizer-bytes", "-1"), "per parameter must be at least 0, got -1"),
        (("--memory", "--entry", "test"), "entry point must be one of ['train', 'eval'], got"),
        (("--comm", "--entry", "test"), "entry point must be one of ['train', 'eval'], got"),
    ],
)
def test_what_has_no_effect_is_refused(
    arguments: tuple[str, ...], message: str, refused: Callable[..., str]
) -> None:
    assert message in refused(*arguments)


def test_a_program_without_ir_is_refused(
    compiled: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = Program.open(compiled).texts
    bare = {name: text for name, text in texts.items() if "ir/" not in name}
    Program(seal(bare, {})).save(tmp_path)
    assert main(["show", str(tmp_path), "--comm"]) == 1
    assert "expected a program with a file ir/programs.mlir" in capsys.readouterr().err
