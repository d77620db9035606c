"""``piper trace``: what the steps of a trace took, beside what they were predicted to take."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from piper_runtime import Program

from piper.cli.pricing import add_options, read_network, read_prices
from piper.cli.text import table
from piper.simulate import (
    ProgramFacts,
    ProgramSimulation,
    simulate_program,
)
from piper.simulate.traced import Instruction, Trace, profile_of
from piper.simulate.views import format_seconds

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[argparse.ArgumentParser]

__all__ = ["add_parser"]

_DESCRIPTION = """\
Print what the steps in a trace took, by rank and by instruction, and what took
longest. With a prediction, print that beside it and name what differs most.

  DIR        what piper compile wrote
  TRACE      what a trainer recorded of it:
               with trainer.trace("trace.json", steps=range(10, 13)):
                   for batch in loader: trainer.step(batch)

Times of instructions are medians over the steps, and over the ranks that run
the same program. A message or collective takes from when the last of its ranks
came to it until it has ended on all. The prediction is that of piper simulate:
from a --device, or from a --profile that piper simulate --measure or
--write-profile made, and from --link, or what is known of the device's
machines.

The trace itself is JSON for ui.perfetto.dev.

examples:
  piper trace out trace.json
  piper trace out trace.json --device H100 --link nvlink
  piper trace out trace.json --write-profile run.json
  piper simulate out --profile run.json --link loopback
"""
_MOST = 10


def add_parser(commands: Commands) -> None:
    """Add the sub-command."""
    parser = commands.add_parser(
        "trace",
        help="what the instructions of real steps took, beside the prediction",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("folder", metavar="DIR", help="the compiled program")
    parser.add_argument("trace", metavar="TRACE", help="what trainer.trace wrote")
    add_options(parser)
    parser.add_argument(
        "--most", type=int, default=_MOST, metavar="N", help=f"rows per table (default: {_MOST})"
    )
    parser.add_argument(
        "--write-profile", metavar="FILE", help="write seconds per kernel for piper simulate"
    )
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> None:
    _check(options)
    program = Program.open(options.folder)
    facts = ProgramFacts.read(program)
    trace = Trace.read(options.trace, program, facts)
    prediction = _predict(options, trace) if options.device or options.profile else None
    print("\n".join(_report(trace, prediction, options.most)))
    if options.write_profile:
        profile_of(trace, machine=f"trace {options.trace}").write(options.write_profile)
        print(f"wrote {options.write_profile}: piper simulate {options.folder} --profile takes it")


def _check(options: argparse.Namespace) -> None:
    """Refuse options that contradict each other or have no effect, before any work."""
    if options.device and options.profile:
        raise ValueError("a prediction expected one of --device and --profile, got both")
    if options.efficiency is not None and not options.device:
        raise ValueError("--efficiency expected --device, got none")
    predicted = options.device or options.profile
    for name in ("link", "across", "node", "issue", "optimizer_bytes"):
        if getattr(options, name) is not None and not predicted:
            flag = name.replace("_", "-")
            raise ValueError(f"--{flag} expected a prediction with --device or --profile, got none")
    if options.profile and not Path(options.profile).is_file():
        raise ValueError(f"--profile expected a file, got {options.profile}")
    if options.most < 1:
        raise ValueError(f"--most expected at least 1, got {options.most}")
    folder = Path(options.write_profile).parent if options.write_profile else Path()
    if not folder.is_dir():
        raise ValueError(
            f"--write-profile expected a file in a directory that exists, got "
            f"{options.write_profile}"
        )


# The prediction.


@dataclass(frozen=True)
class _Prediction:
    """A simulated step, and where its prices come from."""

    simulation: ProgramSimulation
    source: str

    def seconds(self, instruction: Instruction) -> float:
        start, end = self.simulation.times[instruction.at][instruction.row]
        return end - start


def _predict(options: argparse.Namespace, trace: Trace) -> _Prediction:
    prices, source = read_prices(options, trace.facts)
    simulation = simulate_program(
        trace.facts,
        prices,
        read_network(options, what="a prediction"),
        entry=trace.about["entry"],
        issue=options.issue or 0.0,
        optimizer=options.optimizer_bytes,
    )
    return _Prediction(simulation, source)


# The report.


def _report(trace: Trace, prediction: _Prediction | None, most: int) -> Iterator[str]:
    yield from _title(trace, prediction)
    yield from _ranks(trace, prediction)
    # A message is there twice, with one time: it is shown where it is received.
    instructions = [one for one in trace.instructions() if one.kind != "send"]
    yield from _kinds(trace, instructions, prediction, most)
    yield from _singles(trace, instructions, prediction, most)


def _title(trace: Trace, prediction: _Prediction | None) -> Iterator[str]:
    steps, mesh = trace.about["steps"], trace.facts.manifest.mesh
    numbers = f"step {steps[0]}" if len(steps) == 1 else f"steps {steps[0]} to {steps[-1]}"
    yield f"{trace.path}: {numbers} of {mesh}, transport {trace.about['transport']}"
    if prediction is not None:
        yield f"predicted: {prediction.source}"
    if not trace.together:
        yield "ranks of one process took turns: only the times of single instructions mean something"
        return
    measured = f"from first to last instruction of a step {format_seconds(trace.makespan)}"
    if prediction is None:
        yield measured
        return
    predicted = prediction.simulation.makespan
    ratio = _ratio(trace.makespan, predicted)
    yield f"{measured}, predicted {format_seconds(predicted)}: {ratio}"


def _ranks(trace: Trace, prediction: _Prediction | None) -> Iterator[str]:
    exposed = ["exposed"] if trace.together else []
    header = ["rank", "work", *exposed]
    if prediction is not None:
        header = ["rank", "work", "predicted", *(["exposed", "predicted"] if exposed else [])]
    rows: list[Sequence[str]] = [header]
    mesh = trace.facts.manifest.mesh
    for share in trace.shares():
        cells = [share.work, *([share.exposed] if exposed else [])]
        if prediction is not None:
            at = mesh.coordinate(share.rank)
            simulation = prediction.simulation
            pairs = [(share.work, simulation.busy_per_coordinate[at])]
            pairs += [(share.exposed, simulation.exposed[at])] if exposed else []
            cells = [seconds for pair in pairs for seconds in pair]
        rows.append([mesh.describe(share.rank), *map(format_seconds, cells)])
    what = " and of exposed communication" if exposed else ""
    yield from ("", f"ranks: seconds of work{what} in a step")
    yield from table(rows, numbers=len(header) - 1)


def _kinds(
    trace: Trace, instructions: Sequence[Instruction], prediction: _Prediction | None, most: int
) -> Iterator[str]:
    """Yield a row per thing that instructions of a coordinate do."""
    kinds: dict[tuple[int, str], list[Instruction]] = {}
    for instruction in instructions:
        kinds.setdefault((instruction.at, instruction.name), []).append(instruction)
    measured = {kind: sum(one.typical for one in ones) for kind, ones in kinds.items()}
    predicted: dict[tuple[int, str], float] = dict.fromkeys(kinds, 0.0)
    if prediction is not None:
        predicted = {kind: sum(map(prediction.seconds, ones)) for kind, ones in kinds.items()}
    order = sorted(kinds, key=lambda kind: -abs(measured[kind] - predicted[kind]))
    rows: list[Sequence[str]] = [["instruction", "at", "times", "each", "in all"]]
    if prediction is not None:
        rows = [["instruction", "at", "times", "each", "predicted", "ratio", "adds"]]
    for kind in order[:most]:
        at, name = kind
        ones = kinds[kind]
        cells = [name, trace.facts.place(at), str(len(ones))]
        cells.append(format_seconds(measured[kind] / len(ones)))
        if prediction is None:
            cells.append(format_seconds(measured[kind]))
        else:
            cells.append(format_seconds(predicted[kind] / len(ones)))
            cells.append(_ratio(measured[kind], predicted[kind]))
            cells.append(_signed(measured[kind] - predicted[kind]))
        rows.append(cells)
    by = "what they take" if prediction is None else "what they add to the prediction of a step"
    yield from ("", f"kinds of instructions, by {by} ({len(rows) - 1} of {len(kinds)})")
    yield from table(rows, numbers=len(rows[0]) - 2)


def _singles(
    trace: Trace, instructions: Sequence[Instruction], prediction: _Prediction | None, most: int
) -> Iterator[str]:
    """Yield a row per instruction, and what is to be said of the first."""
    predicted = dict.fromkeys(instructions, 0.0)
    if prediction is not None:
        predicted = {one: prediction.seconds(one) for one in instructions}
    order = sorted(instructions, key=lambda one: -abs(one.typical - predicted[one]))
    rows: list[Sequence[str]] = [["instruction", "mb", "at", "line", "from", "took"]]
    if prediction is not None:
        rows = [[*rows[0], "predicted", "ratio"]]
    for one in order[:most]:
        cells = [one.name, "" if one.microbatch is None else str(one.microbatch)]
        cells += [trace.facts.place(one.at), one.line.place, one.line.source]
        cells.append(format_seconds(one.typical))
        if prediction is not None:
            cells += [format_seconds(predicted[one]), _ratio(one.typical, predicted[one])]
        rows.append(cells)
    by = "what they take" if prediction is None else "difference from the prediction"
    yield from ("", f"single instructions, by {by} ({len(rows) - 1} of {len(instructions)})")
    yield from table(rows, numbers=len(rows[0]) - 5)
    worst = order[0]
    beside = "" if prediction is None else f", predicted {format_seconds(predicted[worst])}"
    yield from ("", f"worst: {_describe(worst, trace)}: {format_seconds(worst.typical)}{beside}")
    origin = ", ".join(filter(None, [worst.line.source, worst.line.module, worst.line.directive]))
    yield f"  {worst.line.place}{f', from {origin}' if origin else ''}"


def _describe(one: Instruction, trace: Trace) -> str:
    microbatch = "" if one.microbatch is None else f" of microbatch {one.microbatch}"
    return f"{one.name}{microbatch} at {trace.facts.place(one.at)}"


def _ratio(measured: float, predicted: float) -> str:
    return f"{measured / predicted:.2f}x" if predicted else ""


def _signed(seconds: float) -> str:
    if abs(seconds) < 1e-9:
        return "0"
    return f"{'+' if seconds >= 0 else '-'}{format_seconds(abs(seconds))}"
