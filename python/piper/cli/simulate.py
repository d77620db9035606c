"""``piper simulate``: what a schedule or a compiled program costs, before anything runs."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from piper_runtime.program import MANIFEST

from piper.cli.pricing import add_options, read_network, read_prices
from piper.cli.report import costs_report, program_report, table_report
from piper.cli.text import plural
from piper.schedules import Table, generate, schedule_name
from piper.simulate import (
    Costs,
    Prices,
    ProgramFacts,
    device,
    measure_kernels,
    simulate,
    simulate_program,
    stage_costs,
)
from piper.simulate.devices import device_names, link_names
from piper.simulate.views import (
    Timeline,
    check_format,
    draw_gantt,
    program_timeline,
    table_timeline,
    write_trace,
)

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[argparse.ArgumentParser]

__all__ = ["add_parser"]

_DESCRIPTION = f"""\
Run a schedule or a compiled program in simulated time and print what it costs.
SOURCE is one of

  NAME       a schedule such as 1F1B or DualPipeV, with --ranks and
             --microbatches; times are those of --cost, in a unit of your choice
  FILE.csv   a table in torch's notation: a row per rank, a cell per step
  DIR        what piper compile wrote; times come from a --device, or from a
             --profile that --measure made, and are in seconds

and the output

  picture    a row per rank to scale: 2F0 is stage 2, forward, microbatch 0;
             below it what a table lacks, such as backward passes
  bubbles    makespan: from the first start to the last end, less the work of
             the busiest rank; span: the same from the first start to the last
             end of one rank. A trainer whose steps end in a barrier loses the
             first, one whose ranks go on at once the second. Of a program, what
             its trainer loses from step to step is simulated, too
  memory     chunks alive at once, until I and until W; of a program, bytes
  exposed    of a program: communication that ranks wait for with nothing to
             compute, by kind and by the axis along which its ranks differ
  path       the critical path: what would have to be faster

The link of a message or collective follows from where its ranks are: rank is
the row-major index in the mesh, outermost axis first, and a node has as many
as machines of the --device have (8 of all that are known), or --node. Without
--link, ranks of a node talk over what these machines have within a node
(nvlink), others over what they have between nodes (infiniband). --link alone
is for all ranks wherever they are.

devices: {", ".join(device_names())}
links:   {", ".join(link_names())},
         or a kind that the device has, such as nvlink

examples:
  piper simulate 1F1B --ranks 4 --microbatches 8 --cost F=1,I=1,W=1
  piper simulate DualPipeV --ranks 4 --microbatches 10 --gantt dualpipev.svg
  piper simulate ZBH1 --ranks 2 --microbatches 8 --cost F=1:2,I=1:2,W=1
  piper simulate table.csv --ragged --latency 0.1 --trace table.json
  piper simulate out --device H800
  piper simulate out --device H100 --node 4 --across infiniband-hdr
  piper simulate out --device H100 --link nvlink --link dp=infiniband
  piper simulate out --measure cpu.json --link loopback
  piper simulate out --profile cpu.json --link loopback --trace out.json
  piper simulate out --profile cpu.json --link loopback --write-costs costs.json
  piper simulate ZBH2 --ranks 4 --microbatches 8 --cost costs.json
"""
_PASSES = ("F", "B", "I", "W", "pair")


def add_parser(commands: Commands) -> None:
    """Add the sub-command."""
    parser = commands.add_parser(
        "simulate",
        help="time, bubbles and memory of a schedule or a program, as text, Gantt chart or trace",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("source", metavar="SOURCE", help="a schedule's name, FILE.csv or DIR")
    parser.add_argument("--gantt", metavar="FILE", help="write a Gantt chart: .svg or .png")
    parser.add_argument("--trace", metavar="FILE", help="write a trace for ui.perfetto.dev")
    named = parser.add_argument_group("of a named schedule")
    named.add_argument("--ranks", type=int, metavar="N", help="how many ranks (rows)")
    named.add_argument("--microbatches", type=int, metavar="N", help="how many microbatches")
    named.add_argument("--chunks", type=int, metavar="N", help="how many stages a rank holds")
    tables = parser.add_argument_group("of a schedule or table")
    tables.add_argument(
        "--cost",
        metavar="F=1,I=1,W=1",
        help="times of F, B (default: I + W), I, W and pair (default: F + B); "
        "1:2:1 gives one per stage; or a FILE.json of --write-costs",
    )
    tables.add_argument(
        "--ragged",
        action="store_true",
        default=None,
        help="take what is missing at the end of a row of FILE.csv as idle, as torch writes it",
    )
    tables.add_argument("--latency", type=float, metavar="T", help="time of a message (default: 0)")
    programs = parser.add_argument_group("of a compiled program")
    programs.add_argument("--entry", metavar="NAME", help="entry point (default: train)")
    add_options(programs)
    programs.add_argument(
        "--load",
        type=float,
        metavar="F",
        help="of experts: the busiest rank has F times the rows that it expects (default: 1)",
    )
    programs.add_argument("--measure", metavar="FILE", help="measure kernels here, write a profile")
    programs.add_argument(
        "--write-costs",
        metavar="FILE",
        help="write seconds per stage and pass, for --cost and for order('auto', costs=FILE)",
    )
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> None:
    source = Path(options.source)
    _check_files(options)
    if source.is_dir():
        of_tables = ("ranks", "microbatches", "chunks", "cost", "latency", "ragged")
        _refuse(options, "a schedule", *of_tables)
        lines, timeline = _program(options)
    else:
        of_prices = ("device", "efficiency", "profile", "measure", "issue", "load")
        _refuse(options, "a compiled directory", "entry", *of_prices)
        of_links = ("link", "across", "node")
        _refuse(options, "a compiled directory", "optimizer_bytes", "write_costs", *of_links)
        lines, timeline = _table(options)
    print("\n".join(lines))
    if options.gantt is not None:
        draw_gantt(timeline, options.gantt, title=lines[0])
        print(f"wrote {options.gantt}")
    if options.trace is not None:
        write_trace(timeline, options.trace)
        print(f"wrote {options.trace}: open it in ui.perfetto.dev")


def _check_files(options: argparse.Namespace) -> None:
    """Refuse files that cannot be read or written, before any work."""
    for name in ("gantt", "trace", "measure", "write_costs"):
        path = getattr(options, name)
        if path is not None and not Path(path).parent.is_dir():
            flag = name.replace("_", "-")
            raise ValueError(f"--{flag} expected a file in a directory that exists, got {path}")
    if options.gantt is not None:
        check_format(options.gantt)
    if options.profile is not None and not Path(options.profile).is_file():
        raise ValueError(f"--profile expected a file, got {options.profile}")
    if options.source.lower().endswith(".csv") and not Path(options.source).is_file():
        raise ValueError(f"expected a table in a file, got {options.source}")


def _refuse(options: argparse.Namespace, wanted: str, *names: str) -> None:
    """Refuse options that have no effect on the source."""
    for name in names:
        if getattr(options, name) is not None:
            flag = name.replace("_", "-")
            raise ValueError(f"--{flag} expected {wanted}, got {options.source}")


# Tables.


def _table(options: argparse.Namespace) -> tuple[list[str], Timeline]:
    table_, title = _read_table(options)
    costs = _costs(options.cost or "")
    latency = options.latency or 0.0
    simulation = simulate(table_, costs, latency=latency)
    timeline = table_timeline(simulation)
    return [f"{title}; {_describe(costs, latency)}", *table_report(simulation, timeline)], timeline


def _read_table(options: argparse.Namespace) -> tuple[Table, str]:
    if options.source.lower().endswith(".csv"):
        _refuse(options, "a schedule's name", "ranks", "microbatches", "chunks")
        return Table.read_csv(options.source, ragged=bool(options.ragged)), options.source
    _refuse(options, "a file", "ragged")
    name = schedule_name(options.source)
    for what in ("ranks", "microbatches"):
        if getattr(options, what) is None:
            raise ValueError(f"schedule {name} expected --{what}, got none")
    table_ = generate(
        name, ranks=options.ranks, microbatches=options.microbatches, chunks=options.chunks
    )
    sizes = f"{plural(options.ranks, 'rank')}, {options.microbatches} microbatches"
    return table_, f"{name}, {sizes}"


def _costs(text: str) -> Costs:
    """Read ``F=1,I=1:2,pair=3``, or a file."""
    if text.lower().endswith(".json"):
        if not Path(text).is_file():
            raise ValueError(f"--cost expected a file that exists, got {text}")
        return Costs.read(text)
    given: dict[str, Sequence[float]] = {}
    for part in filter(None, text.split(",")):
        name, equals, times = part.partition("=")
        if not equals or name not in _PASSES:
            raise ValueError(f"--cost expected {', '.join(_PASSES)} such as F=1, got {part!r}")
        if name in given:
            raise ValueError(f"--cost expected {name} once, got {text!r}")
        try:
            given[name] = [float(time) for time in times.split(":")]
        except ValueError:
            raise ValueError(f"--cost of {name} expected numbers, got {times!r}") from None
    pair = given.pop("pair", None)
    if pair is not None and len(pair) > 1:
        raise ValueError(f"--cost of pair expected one number, got {':'.join(map(str, pair))}")
    return Costs.per_stage(**given, pair=None if pair is None else pair[0])


def _describe(costs: Costs, latency: float) -> str:
    """Return ``F 1, B 2, I 1, W 1``, with what else was set."""
    parts = [f"{name} {':'.join(f'{t:g}' for t in times)}" for name, times in costs.passes.items()]
    parts += [f"pair {costs.pair:g}"] if isinstance(costs.pair, float) else []
    return ", ".join([*parts, f"message {latency:g}"] if latency else parts)


# Programs.


def _program(options: argparse.Namespace) -> tuple[list[str], Timeline]:
    if not (Path(options.source) / MANIFEST).is_file():
        raise ValueError(f"expected a compiled program with a {MANIFEST}, got {options.source}")
    facts = ProgramFacts.read(options.source)
    network = read_network(options, what="a program")
    prices, priced = _prices(options, facts)
    simulation = simulate_program(
        facts,
        prices,
        network,
        entry=options.entry or "train",
        issue=options.issue or 0.0,
        optimizer=options.optimizer_bytes,
        load=1.0 if options.load is None else options.load,
    )
    timeline = program_timeline(simulation)
    title = f"{options.source}: {simulation.entry} of {facts.manifest.mesh}, {priced}"
    target = device(options.device) if options.device else None
    lines = [title, *program_report(simulation, timeline, target)]
    if options.write_costs is not None:
        costs = stage_costs(facts, prices, entry=simulation.entry)
        costs.write(options.write_costs)
        lines.extend(costs_report(costs, simulation, options.write_costs))
    return lines, timeline


def _prices(options: argparse.Namespace, facts: ProgramFacts) -> tuple[Prices, str]:
    chosen = [name for name in ("device", "profile", "measure") if getattr(options, name)]
    if len(chosen) != 1:
        got = " and ".join(f"--{name}" for name in chosen) or "none"
        raise ValueError(f"a program expected one of --device, --profile and --measure, got {got}")
    if options.efficiency is not None and not options.device:
        raise ValueError(f"--efficiency expected --device, got --{chosen[0]}")
    if not options.measure:
        return read_prices(options, facts)
    profile = measure_kernels(options.source)
    profile.write(options.measure)
    return profile, f"measured on {profile.machine}"
