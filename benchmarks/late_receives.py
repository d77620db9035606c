"""When receives are issued, and what it would cost to issue them later.

    python benchmarks/late_receives.py
    python benchmarks/late_receives.py --schedules DualPipeV --ranks 8 --microbatches 32

Compiles layers of experts, which ranks along `ep` share out, for a mesh of pipeline ranks times
two, and simulates the programs on the machines of a device, where a message takes place once both
of its ends are there (rendezvous). A program is compiled as it is, and with its receives moved
down, each to the front of so many cells before the cell that uses it first, unless it is that late
already; messages from one rank keep their order. A rank releases what it sent where its compute
waits for the same rank next, and there waits for a late receive, too; where that is `kept` it does
at the end of the step only.

Prints a row per schedule and place, of which `docs/programs.md` has those that tell something:
whether the programs finish, also where all communication of a rank shares one queue
(`piper-verify`). In the mean of all messages: how many cells a receive is in front of the cell that
uses it, how long it stands on the device before its sender comes, how long of that its rank
computes, how long the sender stands before the receive comes, and how long what came lies until its
use. How many messages a rank holds at most, and the step. What a receive that stands there takes
from compute is not simulated.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, Final

import piper
import torch
import torch.nn.functional as F  # noqa: N812
from piper.cli.text import table as aligned
from piper.mlir import ir
from piper.mlir.dialects import piper as ops
from piper.mlir.passmanager import PassManager
from piper.simulate import Network, ProgramFacts, Roofline, device, simulate_program
from piper.simulate.facts import Row
from piper.simulate.programs import ProgramSimulation
from piper.simulate.values import read_values
from piper.simulate.views import format_seconds
from piper_runtime import Program
from torch import Tensor, nn

WIDTH, HIDDEN, EXPERTS, CHOICES, TOKENS, WORDS = 4096, 2048, 16, 4, 4096, 1024
STAGES: Final = {"1F1B": 1, "ZBH1": 1, "Interleaved1F1B": 2, "ZBVZeroBubble": 2, "DualPipeV": 2}
"""How many a rank holds."""
MOST_AHEAD: Final = 8
HEADER: Final = (
    "schedule",
    "receives",
    "finish",
    "in one queue",
    "cells ahead",
    "at most",
    "receive waits",
    "beside compute",
    "sender waits",
    "lies unused",
    "held at most",
    "step",
)


class Experts(nn.Module):
    """The weights of all experts, an expert per index of the first dim."""

    def __init__(self) -> None:
        """Make the weights."""
        super().__init__()
        self.up = nn.Parameter(torch.zeros(EXPERTS, HIDDEN, WIDTH))
        self.down = nn.Parameter(torch.zeros(EXPERTS, WIDTH, HIDDEN))

    def forward(self, rows: Tensor, received: Tensor) -> Tensor:
        """Rows in the order of experts, of each as many as `received` says."""
        linear = piper.ops.moe_linear
        out: Tensor = linear(F.silu(linear(rows, self.up, received)), self.down, received)
        return out


class Layer(nn.Module):
    """A dense layer and experts, each with a residual connection."""

    def __init__(self) -> None:
        """Make the parts."""
        super().__init__()
        self.dense = nn.Linear(WIDTH, WIDTH)
        self.score = nn.Linear(WIDTH, EXPERTS, bias=False)
        self.experts = Experts()

    def forward(self, x: Tensor) -> Tensor:
        """Tokens of the same shape."""
        x = x + self.dense(x)
        weights, index = self.score(x).sigmoid().topk(CHOICES)
        y: Tensor = piper.ops.moe_experts(x, index, weights, self.experts, experts=EXPERTS)
        return x + y


class Model(nn.Module):
    """Logits of a token per position: ids (batch, time) -> (batch * time, words)."""

    def __init__(self, layers: int) -> None:
        """Make so many layers."""
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(layers))
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, ids: Tensor) -> Tensor:
        """Logits."""
        x: Tensor = self.embed(ids).flatten(0, 1)
        for layer in self.layers:
            x = layer(x)
        logits: Tensor = self.head(x)
        return logits


def loss_fn(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    """Mean cross-entropy."""
    return F.cross_entropy(model(batch["ids"]), batch["labels"].flatten())


def sgd(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    """SGD."""
    return torch.optim.SGD(parameters, lr=0.1)


# Moving receives.


def sink(module: ir.Module, *, ahead: int, keep: bool) -> None:
    """A user's pass at "cluster": lower, and move receives in front of `ahead` cells.

    With `keep`, what is sent is released at the end of the step only.
    """
    PassManager.parse("builtin.module(piper-lower-programs)").run(module.operation)
    chunks = {op.sym_name.value: op for op in module.body.operations if isinstance(op, ops.ChunkOp)}
    for program in module.body.operations:
        if isinstance(program, ops.ProgramOp):
            own = [*program.body.blocks[0].operations]
            _sink_all(own, chunks, ahead)
            if keep:
                _free_last(own)


def _sink_all(program: list[Any], chunks: dict[str, Any], ahead: int) -> None:
    """Move the receives of one program, the last of each communicator first."""
    numbers = {op.operation: number for number, op in enumerate(program)}
    starts = _starts(program, chunks)
    nexts: dict[str, tuple[int, Any]] = {}  # by communicator: the receive behind, and its place
    for number, op in reversed([*enumerate(program)]):
        if not isinstance(op, ops.RecvOp):
            continue
        use = min(numbers[use.owner] for use in op.result.uses)
        place, to = starts[use][ahead], program[starts[use][ahead]]
        bound, behind = nexts.get(op.stream.value, (len(program), op))
        if bound <= place:
            place, to = bound, behind
        first = _move(op, to) if place > number else op
        nexts[op.stream.value] = max(place, number), first


def _free_last(program: list[Any]) -> None:
    """Move to the end what waits for a message that is sent."""
    for op in program:
        if isinstance(op, ops.FreeOp) and any(
            event.owner.name == "piper.send" for event in op.after
        ):
            op.operation.move_after(op.operation.block.operations[-1].operation)


def _starts(program: list[Any], chunks: dict[str, Any]) -> dict[int, list[int]]:
    """For each op, where its cell starts, where the one before that starts, and so on."""
    firsts: dict[tuple[str, str, str], int] = {}
    before: dict[tuple[str, str, str], list[int]] = {}
    found: dict[int, list[int]] = {}
    order: list[int] = []
    for number, op in enumerate(program):
        if not isinstance(op, ops.RunOp) or "stage" not in chunks[op.chunk.value].attributes:
            found[number] = [number] * (MOST_AHEAD + 1)
            continue
        about = chunks[op.chunk.value].attributes
        cell = (str(about["stage"]), str(about["pass"]), str(op.mb))
        if cell not in firsts:
            firsts[cell] = number
            before[cell] = [number, *order[::-1], *[0] * MOST_AHEAD]
            order.append(number)
        found[number] = before[cell]
    return found


def _move(recv: Any, to: Any) -> Any:
    """Move a receive in front of an op, behind a record of its own, which is returned."""
    event = recv.operation.operands[0]
    old = event.owner
    with ir.InsertionPoint(to), recv.location:
        record = ops.RecordOp(event.type)
    recv.operation.operands[0] = record.event
    recv.operation.move_before(to.operation)
    if not [*event.uses]:
        old.erase()
    return record


# What it costs.


def compile_program(
    schedule: str, *, ranks: int, microbatches: int, ahead: int | None, keep: bool
) -> Program:
    """Compile the layers, with receives moved if `ahead` says where."""
    stages = STAGES[schedule] * ranks
    moved = (
        []
        if ahead is None
        else [piper.user_pass("late_receives:sink", ahead=ahead, keep=keep, at="cluster")]
    )
    strategy = piper.Strategy(
        mesh={"pp": ranks, "ep": 2},
        directives=[
            piper.annotate({"embed": "embed", "layers.*": "layer", "head": "head"}),
            piper.place(stages=stages),
            piper.split(microbatches=microbatches),
            piper.replicate(axis="ep"),
            piper.shard("*.experts.*", axis="ep"),
            piper.order(schedule),
            piper.update(sgd),
            *moved,
        ],
    )
    with torch.device("meta"):
        model = Model(stages)
    ids = torch.zeros(microbatches * 2, TOKENS, dtype=torch.int64)
    return piper.compile(model, loss_fn, strategy, {"ids": ids, "labels": ids})


def shares_queue(program: Program) -> bool:
    """Whether the programs finish where all communication of a rank shares one queue."""
    with ir.Context():
        module = ir.Module.parse(program.texts["ir/programs.mlir"])
        passes = PassManager.parse("builtin.module(piper-verify{single-queue=true})")
        try:
            passes.run(module.operation)
        except ir.MLIRError:  # type: ignore[attr-defined]  # the stub lacks it
            return False
    return True


@dataclass(frozen=True)
class Message:
    """Cells between a receive and its use; seconds on the simulated device.

    The receive stands for `receiver` seconds until its sender comes, `beside` of which its rank
    computes; the send stands for `sender` seconds; what came lies for `unused` until its use.
    """

    cells: int
    receiver: float
    beside: float
    sender: float
    unused: float


def measure(found: ProgramSimulation) -> Iterator[Message]:
    """Yield what each message of the step costs."""
    programs = found.facts.entry(found.entry)
    ready = {at: [*_ready(found, at)] for at in programs}
    sent = {
        _name(row): ready[at][number]
        for at, rows in programs.items()
        for number, row in enumerate(rows)
        if row["op"] == "send"
    }
    for at, rows in programs.items():
        spans = found.times[at]
        for number, row in enumerate(rows):
            if row["op"] != "recv":
                continue
            start, end = spans[number]
            use = next(n for n in range(number, len(rows)) if row["out"][0] in rows[n]["in"])
            passed = {found.facts.action(row) for row in rows[number:use] if row["op"] == "run"}
            yield Message(
                cells=len(passed - {found.facts.action(rows[use]), None}),
                receiver=start - ready[at][number],
                beside=sum(
                    max(0.0, min(start, to) - max(ready[at][number], since))
                    for other, (since, to) in zip(rows, spans, strict=True)
                    if other["op"] == "run"
                ),
                sender=start - sent[_name(row)],
                unused=spans[use][0] - end,
            )


def _name(row: Row) -> tuple[str, str, int]:
    return row["stream"], row["label"], row["mb"]


def _ready(found: ProgramSimulation, at: int) -> Iterator[float]:
    """When each instruction could start as far as its own rank is concerned."""
    rows, times = found.facts.entry(found.entry)[at], found.times[at]
    maker = read_values(rows, found.facts).maker
    last: dict[str, float] = {}
    for row, (_, end) in zip(rows, times, strict=True):
        stream = row.get("stream", "")
        waits = (times[maker[event]][1] for event in row["after"])
        yield max([last.get(stream, 0.0), *waits])
        last[stream] = end


def most_received(found: ProgramSimulation) -> int:
    """The most messages that a rank has received, or has a buffer for, at once."""
    most = 0
    for rows in found.facts.entry(found.entry).values():
        held: set[str] = set()
        for row in rows:
            if row["op"] == "recv":
                held.add(row["out"][0])
            elif row["op"] == "free":
                held.difference_update(row["in"])
            most = max(most, len(held))
    return most


def report(options: argparse.Namespace) -> Iterator[str]:
    """Yield a row per schedule and place of receives."""
    target = device(options.device)
    sizes = {"ranks": options.ranks, "microbatches": options.microbatches}
    yield (
        f"pp {options.ranks} x ep 2, {options.microbatches} microbatches of {TOKENS} tokens, "
        f"a layer per stage, on {target.name} at {options.efficiency:.0%} of its peak"
    )
    rows: list[Sequence[str]] = [HEADER]
    for schedule in options.schedules:
        for ahead, keep in ((None, False), *product(options.ahead, (False, True))):
            where = "as it is" if ahead is None else f"{ahead} ahead{', kept' if keep else ''}"
            try:
                program = compile_program(schedule, ahead=ahead, keep=keep, **sizes)
            except piper.CompileError as error:
                if "wait for each other" not in str(error):
                    raise
                rows.append((schedule, where, *["deadlock"] * 2, *["-"] * 8))
                continue
            facts = ProgramFacts.read(program)
            prices = Roofline(target, facts.kernels, options.efficiency)
            found = simulate_program(facts, prices, Network.of(target), optimizer=8.0)
            queue = "yes" if shares_queue(program) else "no"
            rows.append((schedule, where, "yes", queue, *_cells(found)))
    yield from aligned(rows, numbers=8)


def _cells(found: ProgramSimulation) -> Iterator[str]:
    """Yield the numbers of a row: means of messages, the most that are held, the step."""
    messages = [*measure(found)]
    yield f"{sum(message.cells for message in messages) / len(messages):.1f}"
    yield str(max(message.cells for message in messages))
    for name in ("receiver", "beside", "sender", "unused"):
        mean = sum(getattr(message, name) for message in messages) / len(messages)
        yield format_seconds(mean)
    yield str(most_received(found))
    yield format_seconds(found.makespan)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--schedules", nargs="+", default=list(STAGES), choices=list(STAGES))
    parser.add_argument(
        "--ahead",
        nargs="+",
        type=int,
        default=[1, 0],
        choices=range(MOST_AHEAD + 1),
        help="in front of how many cells (default: 1 0)",
    )
    parser.add_argument("--ranks", type=int, default=4, help="pipeline ranks (default: 4)")
    parser.add_argument("--microbatches", type=int, default=12, help="of a step (default: 12)")
    parser.add_argument("--device", default="h800", help="default: h800")
    parser.add_argument("--efficiency", type=float, default=0.5, help="of its peak (default: 0.5)")
    options = parser.parse_args(arguments)
    if options.ranks < 2:
        parser.error(f"--ranks expected at least 2, between which messages go, got {options.ranks}")
    print("\n".join(report(options)))


if __name__ == "__main__":
    main()
