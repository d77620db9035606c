"""``piper trace``: measured beside predicted, the worst by name, profiles for the simulator."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import piper
import pytest
import torch
from compiled_mlp import Mlp, sgd, square_loss
from piper.cli import main
from piper.emit.names import identifier
from piper.simulate import Network, Profile, ProgramFacts, ProgramSimulation, link, simulate_program
from piper.simulate.traced import Trace, profile_of
from piper_runtime import Program, Trainer
from piper_runtime.listing import Listing
from piper_runtime.observe.clocks import Clock
from piper_runtime.observe.spans import Span
from piper_runtime.observe.trace import Recording, write_trace
from piper_runtime.program import seal

MICROBATCHES, SECOND = 4, 1_000_000_000
NETWORK = Network(link("loopback"))
Place = tuple[int, int]


def compiled(folder: Path, pp: int) -> Path:
    strategy = piper.Strategy(
        mesh={"pp": pp},
        directives=[
            piper.annotate({"layers.*": "layer"}),
            piper.split(microbatches=MICROBATCHES),
            piper.place(stages=pp),
            piper.order("1F1B"),
            piper.update(sgd, clip=1.0),
        ],
    )
    piper.compile(Mlp(), square_loss, strategy, batch()).save(folder)
    return folder


def batch() -> dict[str, torch.Tensor]:
    return {"x": torch.randn(4 * MICROBATCHES, 8)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled(tmp_path_factory.mktemp("program"), pp=2)


@pytest.fixture(scope="module")
def profile(folder: Path) -> Profile:
    """Kernels of 1, 2, 3, ... milliseconds."""
    kernels = sorted(ProgramFacts.read(folder).kernels)
    return Profile("nothing real", {name: 1e-3 * (n + 1) for n, name in enumerate(kernels)}, 1e6)


@pytest.fixture(scope="module")
def simulation(folder: Path, profile: Profile) -> ProgramSimulation:
    return simulate_program(ProgramFacts.read(folder), profile, NETWORK)


def pretend(
    path: Path, folder: Path, simulation: ProgramSimulation, later: Mapping[Place, float]
) -> Path:
    """Write a trace of two steps that took what was predicted, but for what ends ``later``."""
    program = Program.open(folder)
    listing, recordings = Listing(program), []
    for at, rows in simulation.facts.entry("train").items():
        spans = []
        for step in (1, 2):
            for index, row in enumerate(rows):
                start, end = simulation.times[at][index]
                end += later.get((at, index), 0.0)
                times = [round((step * 10 + time) * SECOND) for time in (start, end)]
                spans.append(
                    Span(
                        rank=at,
                        step=step,
                        stream=row.get("stream", "compute"),
                        kind=row["op"],
                        label=f"chunk {identifier(row['chunk'])}" if row["op"] == "run" else "",
                        line=listing.entry_lines(at, "train")[index],
                        microbatch=row.get("mb"),
                        start=times[0],
                        end=times[1],
                        comm=row.get("stream", ""),
                        members=(0, 1) if "stream" in row else (),
                        peer=row.get("peer", -1),
                    )
                )
        bounds = tuple((step, step * 10 * SECOND, step * 10 * SECOND + SECOND) for step in (1, 2))
        recordings.append(Recording((at,), bounds, tuple(spans)))
    write_trace(path, recordings, [Clock(0, 0)] * 2, program=program, transport="gloo")
    return path


@pytest.fixture(scope="module")
def exact(
    folder: Path, simulation: ProgramSimulation, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A trace in which everything took what was predicted."""
    return pretend(tmp_path_factory.mktemp("trace") / "exact.json", folder, simulation, {})


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Run the command line and return what it says on standard error."""

    def run(*arguments: object) -> str:
        assert main(["trace", *map(str, arguments)]) == 1
        said = capsys.readouterr()
        assert said.err.startswith("piper: error: ")
        assert "Traceback" not in said.err
        return said.err

    return run


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    assert main([*map(str, arguments)]) == 0
    return capsys.readouterr().out


def test_what_was_predicted_is_what_was_measured(
    folder: Path,
    exact: Path,
    profile: Profile,
    simulation: ProgramSimulation,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    profile.write(tmp_path / "profile.json")
    arguments = ("--profile", tmp_path / "profile.json", "--link", "loopback", "--most", 1000)
    text = run(capsys, "trace", folder, exact, *arguments)
    assert "steps 1 to 2 of pp=2, transport gloo" in text
    assert re.search(r"of a step (\S+), predicted \1: 1\.00x\n", text)
    ratios = re.findall(r"(\d+\.\d\d)x", text)
    assert len(ratios) > 50
    assert set(ratios) == {"1.00"}
    ranks = re.findall(r"rank \d \(pp \d\) +(\S+) +(\S+) +(\S+) +(\S+)\n", text)
    assert len(ranks) == 2
    for work, predicted_work, exposed, predicted_exposed in ranks:
        assert work == predicted_work
        assert exposed == predicted_exposed


def test_the_worst_is_named(
    folder: Path,
    profile: Profile,
    simulation: ProgramSimulation,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    rows = simulation.facts.entry("train")[1]
    slow = next(
        index
        for index, row in enumerate(rows)
        if row["op"] == "run" and row["chunk"] == "layer.3$B" and row["mb"] == 2
    )
    trace = pretend(tmp_path / "slow.json", folder, simulation, {(1, slow): 0.5})
    profile.write(tmp_path / "profile.json")
    arguments = ("--profile", tmp_path / "profile.json", "--link", "loopback")
    text = run(capsys, "trace", folder, trace, *arguments)
    worst = re.search(
        r"worst: layer\.3\$B of microbatch 2 at pp 1: \S+ms, predicted \S+ms\n"
        r"  program_pp1\.py:(\d+), from \S*compiled_mlp\.py:\d+, order\n",
        text,
    )
    assert worst is not None
    lines = Listing(Program.open(folder)).entry_lines(1, "train")
    assert int(worst[1]) == lines[slow]
    kinds = text.partition("by what they add")[2].splitlines()
    assert re.match(r"  layer\.3\$B +pp 1 +4 .* \+500ms$", kinds[2])


def test_a_profile_of_the_trace_predicts_it(
    folder: Path, exact: Path, profile: Profile, simulation: ProgramSimulation, tmp_path: Path
) -> None:
    program, facts = Program.open(folder), simulation.facts
    got = profile_of(Trace.read(exact, program, facts), machine="made up")
    launched = {name: got.kernels[name] for name in got.kernels}
    assert launched == pytest.approx({name: profile.kernels[name] for name in launched}, rel=1e-4)
    assert got.memory_bandwidth == pytest.approx(profile.memory_bandwidth, rel=1e-4)
    again = simulate_program(facts, got, NETWORK)
    assert again.makespan == pytest.approx(simulation.makespan, rel=1e-4)


@pytest.mark.parametrize("pp", [1, 2])
def test_a_trace_of_real_steps(pp: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program = compiled(tmp_path / "program", pp=pp)
    model = Mlp()
    trainer = Trainer(program, model=model, optimizer=sgd)
    with trainer.trace(tmp_path / "trace.json", steps=[2, 3]):
        for _ in range(3):
            trainer.step(batch())
    text = run(capsys, "trace", program, tmp_path / "trace.json")
    turns = "took turns" in text
    assert turns == (pp == 2)
    assert ("exposed" in text) == (not turns)
    assert "predicted" not in text
    assert "layer.0$F" in text
    written = run(
        capsys, "trace", program, tmp_path / "trace.json", "--write-profile", tmp_path / "p.json"
    )
    assert f"wrote {tmp_path / 'p.json'}: piper simulate {program} --profile takes it" in written
    simulated = run(
        capsys, "simulate", program, "--profile", tmp_path / "p.json", "--link", "loopback"
    )
    assert "measured on trace" in simulated
    compared = run(
        capsys, "trace", program, tmp_path / "trace.json", "--device", "H100", "--link", "nvlink"
    )
    assert "predicted: roofline of h100 at 100%" in compared
    assert "worst: " in compared


def test_help_teaches(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["trace", "--help"])
    assert "piper trace out trace.json --device H100 --link nvlink" in capsys.readouterr().out


def test_files_that_are_none_are_refused(
    folder: Path, exact: Path, tmp_path: Path, refused: Callable[..., str]
) -> None:
    assert "expected a compiled program" in refused(tmp_path, exact)
    absent = tmp_path / "absent"
    assert f"expected a trace that trainer.trace wrote, got {absent}" in refused(folder, absent)
    other = tmp_path / "other.json"
    for text, what in (("{", "JSONDecodeError"), ("[]", "TypeError"), ("{}", "KeyError")):
        other.write_text(text)
        assert f"trainer.trace wrote, got {what}" in refused(folder, other)
    raw: dict[str, Any] = json.loads(exact.read_text())
    raw["otherData"]["piper"]["program"] = "0" * 64
    other.write_text(json.dumps(raw))
    assert "got one of another program: its hash starts with 000000000000, not" in refused(
        folder, other
    )
    raw["otherData"]["piper"]["version"] = 9
    other.write_text(json.dumps(raw))
    assert "expected version 1, got 9" in refused(folder, other)
    assert f"--profile expected a file, got {absent}" in refused(
        folder, exact, "--profile", absent, "--link", "loopback"
    )
    assert "--write-profile expected a file in a directory that exists" in refused(
        folder, exact, "--write-profile", absent / "p.json"
    )


def test_options_that_make_no_sense_are_refused(
    folder: Path, exact: Path, refused: Callable[..., str]
) -> None:
    for options, said in [
        (["--device", "H100", "--profile", "x"], "expected one of --device and --profile, got bot"),
        (["--efficiency", "0.5"], "--efficiency expected --device, got none"),
        (["--link", "loopback"], "--link expected a prediction with --device or --profile"),
        (["--issue", "1e-6"], "--issue expected a prediction with --device or --profile"),
        (["--optimizer-bytes", "8"], "--optimizer-bytes expected a prediction with --device or"),
        (["--node", "8"], "--node expected a prediction with --device or --profile, got none"),
        (
            ["--device", "CPU"],
            "a prediction expected --link NAME for all axes, or a --device whose",
        ),
        (["--device", "CPU", "--link", "pp=loopback"], "expected --link NAME for all axes, or a -"),
        (["--device", "H900", "--link", "nvlink"], "unknown device 'H900'"),
        (["--most", "0"], "--most expected at least 1, got 0"),
    ]:
        assert said in refused(folder, exact, *options)


def test_a_trace_without_kernels_makes_no_profile(
    folder: Path, exact: Path, tmp_path: Path, refused: Callable[..., str]
) -> None:
    raw: dict[str, Any] = json.loads(exact.read_text())
    kept = [event for event in raw["traceEvents"] if event.get("cat") != "instruction,run"]
    assert len(kept) < len(raw["traceEvents"])
    (tmp_path / "t.json").write_text(json.dumps(raw | {"traceEvents": kept}))
    said = refused(folder, tmp_path / "t.json", "--write-profile", tmp_path / "p.json")
    assert "expected kernels and updates to measure, got none" in said


def test_programs_and_ir_that_differ_are_refused(
    folder: Path, exact: Path, tmp_path: Path, refused: Callable[..., str]
) -> None:
    program = Program.open(folder)
    name = "ir/programs.mlir"
    shorter = re.sub(r"\n *free [^\n]*", "", program.texts[name], count=1)
    changed = Program(seal({**program.texts, name: shorter}, program.constants))
    changed.save(tmp_path)
    trace = tmp_path / "trace.json"
    trace.write_text(exact.read_text().replace(program.manifest.hash, changed.manifest.hash))
    said = refused(tmp_path, trace)
    assert "expected a line per instruction of coordinate 0, got" in said
