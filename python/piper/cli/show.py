"""``piper show``: what a compiled program does, for people."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from piper_runtime import Program
from piper_runtime.manifest import BucketSpec, Manifest, StateSpec
from piper_runtime.mesh import Mesh

from piper.cli.evidence import comm_report, memory_report
from piper.cli.facts import Facts
from piper.cli.text import count, plural, table
from piper.emit.dump import row_flags
from piper.mlir import ir
from piper.schedules import Cell, Pair, Table, members, with_idle
from piper.simulate import ProgramFacts
from piper.simulate.facts import PROGRAMS, ChunkFacts
from piper.simulate.predicted import entry_memory
from piper.simulate.views import check_format, draw_memory

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[argparse.ArgumentParser]

__all__ = ["add_parser", "pair_up"]

_DESCRIPTION = """\
Print what the program in a directory does:

  mesh            axes, ranks, microbatches and the batch of a step
  schedule        a row per coordinate, a column per step in which every cell
                  takes one: 2F0 is stage 2, forward, microbatch 0; . is idle;
                  0F3&3B1 are a forward and a backward that may overlap
  stages          the chunks of each stage and their FLOPs
  kernels         how often each is launched, by whom
  flagged         if there are any: instructions at which the host waits for
                  the device (host_sync), or whose sizes depend on data
                  (dynamic_shape)
  states          buckets and the states in them, by coordinate; what data ranks
                  share out of them
  communicators   which ranks talk, how many messages and collectives; the
                  priority and SMs of their streams, if any has them

FLOPs and counts are those of one data-parallel rank. With --memory or --comm
it prints, instead,

  memory          bytes of each rank by kind: at its peak, and over the step in
                  the order in which it issues; with -o as a picture, too
  comm            what each communicator moves per rank, beside the textbook:
                  values (buckets, messages), calls, bytes, and the bytes if
                  every value went once a step or once a microbatch (gathered
                  parameters twice); then the sums of each rank, and how often
                  its trained parameters go over manual axes, as ZeRO counts

examples:
  piper show out
  piper show out --memory --optimizer-bytes 8 -o memory.svg
  piper show out --comm
"""
_PASSES = "FBIW"


def add_parser(commands: Commands) -> None:
    """Add the sub-command."""
    parser = commands.add_parser(
        "show",
        help="print schedule, stages, kernels, states and communicators of a program",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("folder", metavar="DIR", help="what piper compile wrote")
    option = parser.add_argument
    option("--memory", action="store_true", help="print the memory of each rank, over the step")
    option("--comm", action="store_true", help="print what communicators move, and the textbook")
    option("--entry", metavar="NAME", help="entry point of --memory and --comm (default: train)")
    option(
        "--optimizer-bytes",
        type=float,
        metavar="B",
        help="optimizer state per parameter, for --memory",
    )
    option("-o", dest="output", metavar="FILE", help="draw --memory over the step: .svg or .png")
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> None:
    _check(options)
    program = Program.open(options.folder)
    if PROGRAMS not in program.texts:
        raise ValueError(f"expected a program with a file {PROGRAMS}, got {options.folder}")
    if options.memory or options.comm:
        print("\n".join(_evidence(options, ProgramFacts.read(program))))
        return
    with ir.Context():
        facts = Facts(ir.Module.parse(program.texts[PROGRAMS]))
        sections = (
            _mesh(program.manifest, facts),
            _schedule(facts),
            _stages(facts),
            _kernels(facts),
            _flagged(facts),
            _states(program.manifest, facts),
            _communicators(program.manifest, facts),
        )
        texts = ("\n".join(section) for section in sections)
        print("\n\n".join(text for text in texts if text))


def _check(options: argparse.Namespace) -> None:
    """Refuse what would have no effect, and a file that cannot be drawn, before any work."""
    needs = {"entry": options.memory or options.comm}
    needs |= {"optimizer_bytes": options.memory, "output": options.memory}
    for name, holds in needs.items():
        if getattr(options, name) is not None and not holds:
            flag = "-o" if name == "output" else f"--{name.replace('_', '-')}"
            other = " or --comm" if name == "entry" else ""
            raise ValueError(f"{flag} expected --memory{other}, got none")
    if options.output is not None:
        check_format(options.output)
        if not Path(options.output).parent.is_dir():
            raise ValueError(f"-o expected a file in a directory that exists, got {options.output}")


def _evidence(options: argparse.Namespace, facts: ProgramFacts) -> Iterator[str]:
    entry = options.entry or "train"
    microbatches = plural(facts.manifest.microbatches, "microbatch", "microbatches")
    title = f"{options.folder}: {entry} of {facts.manifest.mesh}, {microbatches}"
    yield title
    if options.memory:
        memory = entry_memory(facts, entry, per_parameter=options.optimizer_bytes)
        yield from ("", *memory_report(facts, entry, memory))
        if options.output is not None:
            named = {facts.place(at): item for at, item in memory.items()}
            draw_memory(named, options.output, title=f"{title}: memory by instruction")
            yield from ("", f"wrote {options.output}")
    if options.comm:
        yield from ("", *comm_report(facts, entry))


def _mesh(manifest: Manifest, facts: Facts) -> Iterator[str]:
    yield f"mesh: {manifest.mesh}, {plural(manifest.mesh.world_size, 'rank')}"
    microbatches = plural(manifest.microbatches, "microbatch", "microbatches")
    yield f"step: {microbatches}, each of"
    rows = [
        (spec.name, _tensor(spec.shape, spec.dtype), _split(spec.dim)) for spec in manifest.inputs
    ]
    yield from table(rows)
    clip = "" if manifest.clip is None else f", gradients clipped to norm {manifest.clip:g}"
    yield f"update: {facts.optimizer or 'none, gradients only'}{clip}"


def _split(dim: int | None) -> str:
    return "the same for all" if dim is None else f"split along dim {dim}"


def _schedule(facts: Facts) -> Iterator[str]:
    yield "schedule:"
    rows = [_rows(schedule) for schedule in facts.symbols.all("schedule")]
    cells = pair_up(facts.schedule, Table.parse(rows[0])) if rows else facts.schedule
    yield with_idle(cells).format(axis=facts.symbols.axis or "rank")


def _rows(schedule: ir.Operation) -> list[str]:
    return [ir.StringAttr(row).value for row in ir.ArrayAttr(schedule.attributes["rows"])]


def pair_up(issued: Table, ordered: Table) -> Table:
    """Return the cells that programs issue, with the pairs of the table that they come from.

    A program issues the members of a pair one by one; a member that it lacks leaves the other
    alone.
    """
    pairs: dict[Cell, Pair] = {
        action: cell
        for row in ordered.rows
        for cell in row
        if isinstance(cell, Pair)
        for action in members(cell)
    }
    return Table(
        dict.fromkeys(_pair(cell, pairs, there) for cell in row)
        for row in issued.rows
        for there in [frozenset(row)]
    )


def _pair(cell: Cell, pairs: Mapping[Cell, Pair], there: frozenset[Cell]) -> Cell:
    """Return the pair of a cell whose other member is there, too, or else the cell."""
    pair = pairs.get(cell)
    return cell if pair is None or not there.issuperset(members(pair)) else pair


def _stages(facts: Facts) -> Iterator[str]:
    """Yield a row per chunk of the training step with a column per pass, by stage."""
    yield "stages, FLOPs of one microbatch:"
    trained = [facts.chunks[name] for name in facts.runs("train")]
    passes = [letter for letter in _PASSES if any(c.pass_ == letter for c in trained)]
    rows: list[Sequence[str]] = [("stage", "at", "chunk", *passes)]
    for stage, homes in sorted(facts.homes.items()):
        where = ", ".join(map(facts.place, sorted(homes)))
        total: Counter[str] = Counter()
        for chunk, costs in _costs(facts, stage, trained).items():
            rows.append((str(stage), where, chunk, *_counts(costs, passes)))
            total.update(costs)
        rows.append(("", "", "sum", *_counts(total, passes)))
    yield from table(rows, numbers=len(passes))


def _costs(facts: Facts, stage: int, chunks: Sequence[ChunkFacts]) -> dict[str, Counter[str]]:
    """Return FLOPs by pass of each chunk of a stage, in the order of the step."""
    costs: dict[str, Counter[str]] = {}
    order = list(facts.symbols.chunks)
    for chunk in sorted(chunks, key=lambda chunk: order.index(chunk.name)):
        if chunk.stage == stage:
            flops = sum(facts.kernels[kernel].flops for kernel in chunk.kernels)
            costs.setdefault(chunk.name.partition("$")[0], Counter())[chunk.pass_] += flops
    return costs


def _counts(costs: Mapping[str, int], passes: Sequence[str]) -> list[str]:
    return [count(costs[letter]) if letter in costs else "" for letter in passes]


def _kernels(facts: Facts) -> Iterator[str]:
    yield "kernels, launches per step over all coordinates:"
    entries = list(dict.fromkeys(program["entry"] for program in facts.programs))
    launches = {entry: _launched(facts, entry) for entry in entries}
    rows: list[Sequence[str]] = [("kernel", "FLOPs", *entries)]
    for name, kernel in facts.kernels.items():
        times = (str(launches[entry][name]) for entry in entries)
        rows.append((name, count(kernel.flops), *times))
    yield from table(rows, numbers=1 + len(entries))


def _launched(facts: Facts, entry: str) -> Counter[str]:
    launched: Counter[str] = Counter()
    for chunk, runs in facts.runs(entry).items():
        for kernel in facts.chunks[chunk].kernels:
            launched[kernel] += runs
    return launched


def _flagged(facts: Facts) -> Iterator[str]:
    """Yield the instructions that have flags, if any has: what, where, how often, which flags."""
    found: Counter[tuple[str, str, str, str]] = Counter()
    for program in facts.programs:
        for row in program["rows"]:
            flags = ", ".join(row_flags(row))
            if flags:
                what = " ".join(filter(None, (row["op"], row.get("chunk") or row.get("bucket"))))
                found[program["entry"], facts.place(program["at"]), what, flags] += 1
    if found:
        yield "flagged instructions, times per step:"
        rows = [(*key[:3], str(times), key[3]) for key, times in found.items()]
        yield from table([("entry", "at", "instruction", "times", "flags"), *rows])


def _states(manifest: Manifest, facts: Facts) -> Iterator[str]:
    """Yield the buckets of each coordinate, each followed by its members."""
    yield "states, by coordinate and bucket:"
    specs = {state.name: state for state in manifest.states}
    rows: list[Sequence[str]] = []
    for coordinate in range(manifest.mesh.num_coordinates):
        held = [bucket for bucket in manifest.buckets if coordinate in bucket.holders]
        total = f"{count(sum(bucket.numel for bucket in held))} elements"
        rows.append((facts.place(coordinate), total, plural(len(held), "bucket")))
        for bucket in held:
            held_as = _held_as(bucket, manifest.mesh)
            rows.append((f"  {bucket.name}", _tensor([bucket.numel], bucket.dtype), held_as))
            rows += [_state(specs[name], "    ") for name in bucket.members]
    used = {name for bucket in manifest.buckets for name in bucket.members}
    loose = [state for state in manifest.states if state.name not in used]
    if loose:
        rows.append(("without a use", f"{count(sum(s.numel for s in loose))} elements", ""))
        rows += [_state(state, "  ") for state in loose]
    yield from table(rows)


def _held_as(bucket: BucketSpec, mesh: Mesh) -> str:
    """What ranks keep of a bucket besides its whole value, and which parts they share out."""
    part = f" 1/{bucket.shards(mesh)} over {' x '.join(bucket.shard_axes)}"
    parts = [f"value{part}"] if bucket.shard_axes else []
    if bucket.compute_dtype is not None:
        parts.append(f"compute {bucket.compute_dtype}{part if bucket.compute_sharded else ''}")
    if bucket.grad_dtype is None:
        return ", ".join([*parts, "no gradient"])
    return ", ".join([*parts, f"gradient {bucket.grad_dtype}{part if bucket.grad_sharded else ''}"])


def _state(state: StateSpec, indent: str) -> Sequence[str]:
    kind = state.kind if state.trainable or state.kind != "parameter" else "frozen parameter"
    tied = f", tied with {', '.join(state.aliases)}" if state.aliases else ""
    shared = f", shared out over {state.shard_axis}" if state.shard_axis else ""
    return (f"{indent}{state.name}", _tensor(state.shape, state.dtype), kind + tied + shared)


def _tensor(shape: Sequence[int], dtype: str) -> str:
    return f"{dtype}[{', '.join(map(str, shape))}]"


def _communicators(manifest: Manifest, facts: Facts) -> Iterator[str]:
    yield "communicators, uses per step over all coordinates:"
    options = [{"priority": comm.priority, "sms": comm.sms} for comm in manifest.comms]
    asked = [name for name in ("priority", "sms") if any(own[name] is not None for own in options)]
    rows: list[Sequence[str]] = [("communicator", "axes", "coordinates", *asked, "used for")]
    for comm, own in zip(manifest.comms, options, strict=True):
        uses = ", ".join(f"{n} {op}" for op, n in sorted(_uses(facts, comm.name).items()))
        coordinates = ", ".join(map(str, comm.coordinates))
        cells = ("" if own[name] is None else str(own[name]) for name in asked)
        rows.append((comm.name, ", ".join(comm.axes), coordinates, *cells, uses))
    if len(rows) > 1:
        yield from table(rows)
    else:
        yield "  none"


def _uses(facts: Facts, comm: str) -> Counter[str]:
    return Counter(
        row["op"]
        for program in facts.programs
        if program["entry"] == "train"
        for row in program["rows"]
        if row.get("stream") == comm
    )
