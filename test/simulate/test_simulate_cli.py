"""``piper simulate``, and the pairs of ``piper show``."""

from __future__ import annotations

import json
import re
from pathlib import Path
from statistics import median
from typing import Any

import piper
import pytest
import torch
from compiled_mlp import Mlp, adamw, compiled, square_loss
from handmade import Rows, chunk, facts, run
from piper.cli import main
from piper.cli.report import program_report
from piper.cli.show import pair_up
from piper.schedules import Homes, Table, generate
from piper.simulate import Costs, Profile, ProgramFacts, simulate
from piper.simulate.views import program_timeline
from piper_runtime import Program, Trainer
from piper_runtime.listing import Listing


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("program")
    compiled("1F1B", pp=2, microbatches=2).save(path)
    return path


@pytest.fixture
def say(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    """Run the command and return what it prints."""
    monkeypatch.setenv("COLUMNS", "120")

    def run(*arguments: object) -> str:
        assert main(["simulate", *map(str, arguments)]) == 0
        return str(capsys.readouterr().out)

    return run


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Any:
    """Run the command and return what it says on standard error."""

    def run(*arguments: object) -> str:
        assert main(["simulate", *map(str, arguments)]) == 1
        said = capsys.readouterr()
        assert said.out == ""
        assert "Traceback" not in said.err
        return str(said.err)

    return run


def test_help_teaches(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["simulate", "--help"])
    said = capsys.readouterr().out
    assert "piper simulate 1F1B --ranks 4 --microbatches 8 --cost F=1,I=1,W=1" in said
    assert "piper simulate out --device H100 --link nvlink" in said
    assert "a100, cpu, h100, h200, h800" in said


def test_a_named_schedule(say: Any) -> None:
    said = say("1f1b", "--ranks", 2, "--microbatches", 2, "--cost", "F=1,I=1,W=1", "--latency", 0)
    assert said == (
        "1F1B, 2 ranks, 2 microbatches; F 1, B 2, I 1, W 1\n"
        "\n"
        "rank 0  |0F0|0F1........|0B0    ....|0B1    |\n"
        "rank 1  ....|1F0|1B0    |1F1|1B1    |\n"
        "        0                   5\n"
        "\n"
        "makespan 9, busy 6\n"
        "bubble 3 of the makespan (33.3%), 3 of the longest span of a rank\n"
        "\n"
        "ranks: work, and chunks alive at most\n"
        "  rank  work  until I  until W\n"
        "     0     6        2        2\n"
        "     1     6        1        1\n"
        "\n"
        "critical path\n"
        "  from  takes  on      what\n"
        "  0     1      rank 0  0F0\n"
        "  1     6      rank 1  1F0 1B0 1F1 1B1\n"
        "  7     2      rank 0  0B1\n"
    )


def test_costs_by_stage_and_of_pairs(say: Any) -> None:
    cost = "F=1:2:1:1,B=3,pair=2.5"
    said = say("DualPipeV", "--ranks", 2, "--microbatches", 4, "--cost", cost, "--latency", 0.5)
    assert said.startswith(
        "DualPipeV, 2 ranks, 4 microbatches; F 1:2:1:1, B 3, I 1, W 1, pair 2.5, message 0.5\n"
    )
    assert "|0F3&3B1" in said
    assert re.search(r"^  \S+ +0\.5 +0F0 to rank 1$", said, re.MULTILINE)


def test_chunks_of_a_schedule(say: Any) -> None:
    said = say("Interleaved1F1B", "--ranks", 2, "--microbatches", 4, "--chunks", 3)
    assert "5B3" in said


def test_long_stretches_of_the_critical_path_are_cut(say: Any) -> None:
    said = say("1F1B", "--ranks", 2, "--microbatches", 8)
    assert "1F0 1B0 1F1 1B1 ... 1B7 (16)" in said


def test_a_table_and_its_pictures(say: Any, tmp_path: Path) -> None:
    generate("ZBH1", ranks=2, microbatches=4).write_csv(tmp_path / "table.csv")
    picture, trace = tmp_path / "table.svg", tmp_path / "table.json"
    said = say(tmp_path / "table.csv", "--gantt", picture, "--trace", trace)
    assert said.splitlines()[-2:] == [
        f"wrote {picture}",
        f"wrote {trace}: open it in ui.perfetto.dev",
    ]
    assert "weight gradient" in picture.read_text()
    assert any(e["name"] == "PP:1W3" for e in json.loads(trace.read_text())["traceEvents"])


def test_what_a_table_lacks_is_said(say: Any, tmp_path: Path) -> None:
    file = tmp_path / "table.csv"
    file.write_text("0F0,0I0,0F1\n1F0,1I0,\n")
    assert [line for line in say(file).splitlines() if line.startswith("incomplete")] == [
        "incomplete: no W after 0I0 1I0",
        "incomplete: no B, or I and W after 0F1",
        "incomplete: no 1F1",
    ]
    file.write_text("0F0,0F1,0F2,0F3\n1F0,1F1,1F2,1F3\n")
    assert "\nincomplete: no B, or I and W after 0F0 1F0 0F1 1F1 ... 1F3 (8)\nmakespan" in say(file)
    assert "incomplete" not in say("ZBH1", "--ranks", 2, "--microbatches", 4)


def test_a_ragged_table_is_read_if_asked(say: Any, refused: Any, tmp_path: Path) -> None:
    file = tmp_path / "torch.csv"
    file.write_text("0F0,,,0B0\n,1F0,1B0\n")
    assert "row 1 expected 4 cells, as row 0 has, got 3; Table.read_csv(path, rag" in refused(file)
    assert "--ragged of piper simulate" in refused(file)
    assert "makespan 6, busy 3\n" in say(file, "--ragged")


def overlap(*programs: Rows) -> str:
    """What the report says of programs that follow each other."""
    chunks = [chunk("one"), chunk("ten", stage=1)]
    simulation = run(facts(*programs, chunks=chunks, ways=["0.1", "1.0"]))
    lines = program_report(simulation, program_timeline(simulation), None)
    return next(line for line in lines if line.startswith("from step to step")).partition(": ")[2]


def test_why_steps_do_not_overlap() -> None:
    first, second = Rows(), Rows()
    first.send(first.run("one.0$F"), "0.1", after=[first.record()])
    value, event = second.recv("0.1")
    result = second.run("ten.1$F", value, after=[event])
    assert overlap(first, second) == "steps overlap by 1s"
    second.output(result)
    because = "steps do not overlap, since "
    assert overlap(first, second) == because + "all ranks wait for the loss of pp 1"
    alone = Rows()
    alone.output(alone.run("one.0$F"))
    assert overlap(alone) == because + "a rank runs from the first start to the last end"


def test_a_program_by_a_roofline(say: Any, folder: Path, tmp_path: Path) -> None:
    options = ("--device", "H100", "--link", "nvlink", "--link", "dp=infiniband")
    said = say(folder, *options, "--optimizer-bytes", 8, "--gantt", tmp_path / "out.png")
    assert said.startswith(f"{folder}: train of pp=2 x dp=1, roofline of h100 at 100%\n")
    assert re.search(r"^makespan \S+s, busy \S+s, bubble \S+s of the makespan", said, re.MULTILINE)
    assert re.search(
        r"^from step to step \S+s, of which the trainer loses \S+s \(", said, re.MULTILINE
    )
    # Two layers of 8 x 8 and 8 in float32, thrice with AdamW's two moments; two microbatches of 4.
    row = r"^  pp 0 +\S+s +\S+s +576B +576B +1\.1KiB +256B +"
    assert re.search(row, said, re.MULTILINE)
    assert "fits into the 74.5GiB of h100" in said
    assert (tmp_path / "out.png").is_file()
    slower = say(folder, *options, "--efficiency", 0.5, "--issue", 1)
    assert "roofline of h100 at 50%" in slower
    assert re.search(r"^makespan \d+\.?\d*s,", slower, re.MULTILINE)  # a second per instruction
    assert "--optimizer-bytes says it" in slower


def links(said: str) -> list[str]:
    """The links that messages went over, by what the report says."""
    [row] = [line.split() for line in said.splitlines() if line.startswith("  messages ")]
    return row[-1:]


def test_links_follow_from_where_ranks_are(say: Any, folder: Path) -> None:
    """Two ranks of one node of eight, or of two nodes."""
    assert links(say(folder, "--device", "H800")) == ["nvlink4-h800"]
    assert links(say(folder, "--device", "H800", "--node", 1)) == ["infiniband-ndr"]
    other = say(folder, "--device", "H800", "--node", 1, "--across", "infiniband-hdr")
    assert links(other) == ["infiniband-hdr"]
    assert links(say(folder, "--device", "H800", "--node", 2, "--link", "pcie")) == ["pcie5"]
    assert links(say(folder, "--device", "H800", "--link", "pp=pcie")) == ["pcie5"]
    every = ("--device", "CPU", "--link", "loopback", "--across", "pcie4")
    assert links(say(folder, *every, "--node", 2)) == ["loopback"]
    assert links(say(folder, *every, "--node", 1)) == ["pcie4"]


def test_a_program_as_measured(say: Any, folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "profile.json"
    assert "measured on" in say(folder, "--measure", file, "--link", "loopback")
    facts = ProgramFacts.read(folder)
    assert Profile.read(file).kernels.keys() == facts.kernels.keys()
    Profile("a made-up machine", dict.fromkeys(facts.kernels, 1.0), 1e15).write(file)
    said = say(folder, "--profile", file, "--link", "loopback", "--entry", "eval")
    assert said.startswith(f"{folder}: eval of pp=2 x dp=1, measured on a made-up machine\n")
    assert "|0F0" in said


def test_costs_of_stages(say: Any, refused: Any, folder: Path, tmp_path: Path) -> None:
    """What a program with halves costs is printed and written, and a schedule takes it."""
    halves, file = tmp_path / "halves", tmp_path / "costs.json"
    compiled("ZBH1", pp=2, microbatches=2).save(halves)
    facts = ProgramFacts.read(halves)
    Profile("", dict.fromkeys(facts.kernels, 1.0), 1e15).write(tmp_path / "profile.json")
    options = ("--profile", tmp_path / "profile.json", "--link", "pcie4", "--write-costs", file)
    said = say(halves, *options)
    assert (
        "\n\nstages: seconds of a microbatch\n"
        "  stage   F   B   I   W\n"
        "      0  2s  3s  1s  2s\n"
        "      1  2s  4s  2s  2s\n"
        f'wrote {file}: piper.order("auto", costs="{file}", latency=5.7e-06) takes it\n'
    ) in said
    said = say("ZBH1", "--ranks", 2, "--microbatches", 2, "--cost", file)
    assert said.startswith("ZBH1, 2 ranks, 2 microbatches; F 2:2, B 3:4, I 1:2, W 2:2\n")
    Profile("", dict.fromkeys(ProgramFacts.read(folder).kernels, 1.0), 1).write(file)
    wrong = ("--profile", file, "--link", "pcie4", "--write-costs", tmp_path / "none.json")
    assert "as order ZBH1 does, got one that runs only whole ones at stage 0" in refused(
        folder, *wrong
    )
    assert not (tmp_path / "none.json").exists()


def test_costs_of_traced_steps_order_the_next_program(say: Any, tmp_path: Path) -> None:
    """Compile, train, trace, profile, costs, search, compile, train: by commands and files."""
    folder, trace = tmp_path / "program", tmp_path / "trace.json"
    profile, file = tmp_path / "profile.json", tmp_path / "costs.json"
    compiled("ZBH1", pp=2, microbatches=4).save(folder)
    batch = {"x": torch.linspace(-1, 1, 4 * 4 * 8).reshape(16, 8)}
    trainer = Trainer(folder, model=Mlp(), optimizer=adamw)
    with trainer.trace(trace, steps=[2, 3]):
        for _ in range(3):
            trainer.step(batch)
    assert main(["trace", str(folder), str(trace), "--write-profile", str(profile)]) == 0
    said = say(folder, "--profile", profile, "--link", "loopback", "--write-costs", file)
    assert "measured on trace" in said
    taken = re.search(rf'piper\.order\("auto", costs="{file}", latency=(\S+)\) takes it', said)
    assert taken is not None
    costs, latency = Costs.read(file), float(taken[1])
    # A stage has two layers, and all forwards but the last one's are of one kernel.
    took = {number: forwards(trace, f"layer.{number}$F") for number in range(4)}
    usual, last = median([*took[0], *took[1], *took[2]]), median(took[3])
    assert costs.passes["F"] == pytest.approx((2 * usual, usual + last), rel=1e-3)
    found = piper.order("auto", costs=str(file), latency=latency, memory=2, effort=0.1)
    program = compiled(found, pp=2, microbatches=4)
    table = issued(program)
    assert table == found.table(Homes.each(2), 4)
    named = generate("ZBH1", ranks=2, microbatches=4)
    makespans = [simulate(each, costs, latency=latency).makespan for each in (table, named)]
    assert makespans[0] <= makespans[1]
    model = Mlp()
    loss = square_loss(model, batch).item()
    assert Trainer(program, model=model).step(batch).loss == pytest.approx(loss, rel=1e-5)


def forwards(trace: Path, chunk: str) -> list[float]:
    """The seconds that each launch of a chunk took."""
    events = json.loads(trace.read_text())["traceEvents"]
    return [event["dur"] / 1e6 for event in events if event["name"] == chunk]


def issued(program: Program) -> Table:
    """The cells of a program in the order in which its ranks run them."""
    listing = Listing(program)
    rows = []
    for at in range(program.manifest.mesh.num_coordinates):
        lines = (listing.line(at, number) for number in listing.entry_lines(at, "train"))
        rows.append(" ".join(dict.fromkeys(line.cell for line in lines if line.cell)))
    return Table.of(rows)


SIZES = ("--ranks", "2", "--microbatches", "2")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("1F1C", *SIZES), "unknown schedule '1F1C', did you mean '1F1B'?"),
        (("1F1B", "--ranks", "2"), "schedule 1F1B expected --microbatches, got none"),
        (("1F1B", "--microbatches", "2"), "schedule 1F1B expected --ranks, got none"),
        (("table.csv",), "expected a table in a file, got table.csv"),
        (("1F1B", *SIZES, "--device", "h100"), "--device expected a compiled directory, got 1F1B"),
        (("1F1B", *SIZES, "--optimizer-bytes", "8"), "--optimizer-bytes expected a compiled"),
        (
            ("1F1B", *SIZES, "--cost", "G=1"),
            "--cost expected F, B, I, W, pair such as F=1, got 'G=1'",
        ),
        (("1F1B", *SIZES, "--cost", "F"), "--cost expected F, B, I, W, pair such as F=1, got 'F'"),
        (("1F1B", *SIZES, "--cost", "F=x"), "--cost of F expected numbers, got 'x'"),
        (("1F1B", *SIZES, "--cost", "pair=1:2"), "--cost of pair expected one number, got 1.0:2.0"),
        (("1F1B", *SIZES, "--cost", "F=-1"), "cost of F must be finite and at least 0, got -1.0"),
        (("1F1B", *SIZES, "--write-costs", "x"), "--write-costs expected a compiled directory"),
        (("1F1B", *SIZES, "--node", "8"), "--node expected a compiled directory, got 1F1B"),
        (("1F1B", *SIZES, "--across", "pcie4"), "--across expected a compiled directory, got 1F1B"),
        (("1F1B", *SIZES, "--load", "2"), "--load expected a compiled directory, got 1F1B"),
        (("1F1B", *SIZES, "--cost", "no.json"), "--cost expected a file that exists, got no.json"),
        (("1F1B", *SIZES, "--cost", "F=1,F=2"), "--cost expected F once, got 'F=1,F=2'"),
        (
            ("1F1B", *SIZES, "--cost", "F=1:2:3"),
            "costs of F must be of 2 stages, got (1.0, 2.0, 3.0)",
        ),
        (("1F1B", *SIZES, "--latency", "nan"), "latency must be finite and at least 0, got nan"),
        (("1F1B", *SIZES, "--ragged"), "--ragged expected a file, got 1F1B"),
        (("1F1B", *SIZES, "--gantt", "x.pdf"), "a Gantt chart must be a file .svg or .png"),
        (("1F1B", *SIZES, "--gantt", "no/x.svg"), "--gantt expected a file in a directory that"),
        (("1F1B", *SIZES, "--trace", "no/x.json"), "--trace expected a file in a directory that"),
    ],
)
def test_wrong_words_about_tables(
    arguments: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["simulate", *arguments]) == 1
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((), "a program expected --link NAME for all axes, or a --device whose nodes are known, g"),
        (("--device", "cpu"), "NAME for all axes, or a --device whose nodes are known, got cpu"),
        (
            ("--link", "dp=pcie4"),
            "expected --link NAME for all axes, or a --device whose nodes are",
        ),
        (("--link", "pcie4", "--node", "8"), "a program expected --across NAME, or a --device"),
        (("--across", "pcie4"), "a program expected --link NAME for all axes and --node N, or a"),
        (("--device", "h100", "--node", "0"), "a node expected at least 1 rank, got 0"),
        (("--device", "h100", "--load", "2"), "whose ranks exchange rows by counts, got 2 for one"),
        (("--link", "pcie4"), "expected one of --device, --profile and --measure, got none"),
        (
            ("--link", "pcie4", "--device", "h100", "--profile", __file__),
            "expected one of --device, --profile and --measure, got --device and --profile",
        ),
        (
            ("--link", "pcie4", "--profile", __file__, "--efficiency", "0.5"),
            "--efficiency expected --device, got --profile",
        ),
        (("--link", "pcie4", "--profile", "no.json"), "--profile expected a file, got no.json"),
        (("--link", "pcie4", "--measure", "no/x.json"), "--measure expected a file in a directory"),
        (("--link", "pcie4", "--write-costs", "no/x.json"), "--write-costs expected a file in a"),
        (("--link", "pcie4", "--ranks", "2"), "--ranks expected a schedule, got"),
        (("--link", "pcie4", "--ragged"), "--ragged expected a schedule, got"),
        (("--link", "nvlink", "--device", "cpu"), "unknown link 'nvlink'"),
        (
            ("--link", "pcie4", "--device", "h100", "--efficiency", "0"),
            "efficiency must be above 0",
        ),
    ],
)
def test_wrong_words_about_programs(
    options: tuple[str, ...], message: str, folder: Path, refused: Any
) -> None:
    assert message in refused(folder, *options)


def test_a_table_has_its_own_size(tmp_path: Path, refused: Any) -> None:
    file = tmp_path / "table.csv"
    generate("1F1B", ranks=2, microbatches=2).write_csv(file)
    said = refused(file, "--ranks", 2)
    assert f"--ranks expected a schedule's name, got {file}" in said


def test_a_directory_must_hold_a_program(tmp_path: Path, refused: Any) -> None:
    said = refused(tmp_path, "--link", "pcie4", "--device", "h100")
    assert f"expected a compiled program with a manifest.json, got {tmp_path}" in said


def test_show_pairs_what_may_overlap() -> None:
    ordered = Table.parse("0F0 (0F1;1B0)OVERLAP_F_B (0F2;1B1)OVERLAP_F_B 1B2")
    issued = Table.parse("0F0 1B0 0F1 0F2 1B2")
    # The second pair has lost its backward: nothing is trained there.
    assert pair_up(issued, ordered) == Table.parse("0F0 (0F1;1B0)OVERLAP_F_B 0F2 1B2")


def test_show_still_shows(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", str(folder)]) == 0
    assert "pp 0  0F0  0F1   .   0B0   .   0B1\n" in capsys.readouterr().out
