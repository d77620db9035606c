"""Program sets verified, and run on the abstract machine, both from the same IR.

What `piper.emit` prints as Python is called here row by row: `play` hands the instructions of a
program to a `Rank`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import torch
from piper.emit.dump import read_programs
from piper.mlir import ir
from piper.mlir.passmanager import PassManager
from piper_runtime import LocalTransport
from piper_runtime.home import Home
from piper_runtime.instruction import Handle, Instruction
from piper_runtime.mesh import Comm, Mesh
from piper_runtime.program import chunk
from piper_runtime.rank import Rank
from program_sets import ProgramSet
from torch import Tensor

__all__ = ["Rows", "Verdict", "execute", "read_rows", "verify"]

Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class Verdict:
    """What `piper-verify` says: nothing, or an error and its notes."""

    error: str = ""
    notes: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        """Whether it accepts."""
        return not self.error


def verify(text: str, *, single_queue: bool = False) -> Verdict:
    """What `piper-verify` says of a module, which must be valid as far as ops can tell."""
    with ir.Context():
        module = ir.Module.parse(text)
        options = f"{{single-queue={str(single_queue).lower()}}}"
        passes = PassManager.parse(f"builtin.module(piper-verify{options})")
        try:
            passes.run(module.operation)
        except ir.MLIRError as error:  # type: ignore[attr-defined]  # the stub lacks it
            first = error.error_diagnostics[0]
            notes = [note.message for note in first.notes]
            shown = [note for note in notes if not note.startswith("see current operation")]
            return Verdict(first.message, tuple(shown))
    return Verdict()


def read_rows(text: str) -> list[Rows]:
    """The rows of each program, by coordinate."""
    with ir.Context():
        programs = read_programs(ir.Module.parse(text))
    return [program["rows"] for program in sorted(programs, key=lambda program: program["at"])]


def execute(
    programs: ProgramSet, *, single_queue: bool = False, seed: int | None = None
) -> dict[str, Tensor]:
    """What each rank outputs, by rank and name.

    Raises:
        DeadlockError: instructions that wait for each other.
        InstructionError: a value that is not there yet, or not any more.
    """
    mesh, rows = Mesh(programs.axes), read_rows(programs.text)
    microbatches = 1 + max((row.get("mb", 0) for program in rows for row in program), default=0)
    transport = LocalTransport(single_queue=single_queue, seed=seed)
    ranks = []
    for index in range(mesh.world_size):
        first = torch.arange(4, dtype=torch.float32) + 10 * index
        inputs = [{"x": first + 100 * microbatch} for microbatch in range(microbatches)]
        home = _home(programs, mesh, index)
        ranks.append(Rank(home, inputs=inputs, submit=transport.submit))
        play(ranks[-1], rows[mesh.coordinate(index)])
    transport.drain()
    return {
        f"rank {index}: {name}": value
        for index, rank in enumerate(ranks)
        for name, value in rank.outputs.items()
    }


def _home(programs: ProgramSet, mesh: Mesh, index: int) -> Home:
    return Home(
        index=index,
        name=mesh.describe(index),
        file="<a program set>",
        peers=mesh.peers(index),
        comms={
            spec.name: Comm(spec.name, mesh.members(spec, index))
            for spec in programs.comms
            if mesh.coordinate(index) in spec.coordinates
        },
        buckets={},
        loss_dtypes={},
        device=torch.device("cpu"),
        poison=True,
    )


def _mix(results: int) -> Callable[..., Any]:
    """What every chunk does: no operand can be left out or put elsewhere unseen."""

    @chunk(results=results)
    def mix(*operands: Tensor) -> Any:
        made = reduce(lambda total, operand: total * 0.5 + operand, operands, torch.ones(4))
        return made if results == 1 else tuple(made + index for index in range(results))

    return mix


def play(rank: Rank, rows: Rows) -> None:
    """Enqueue the instructions of a program."""
    made: dict[int, Any] = {}
    for row in rows:
        operands = [made[number] for number in row["in"]]
        after = [made[number] for number in row["after"]]
        results = _enqueue(rank, row, operands, after)
        made.update(zip(row["out"], results, strict=True))


def _enqueue(
    rank: Rank, row: Mapping[str, Any], operands: Sequence[Handle], after: Sequence[Instruction]
) -> tuple[Handle | Instruction, ...]:
    """The values that an instruction makes, then its event."""
    match row["op"]:
        case "input":
            return (rank.input(row["input"], mb=row["mb"], after=after),)
        case "run":
            count = len(row["out"])
            results = rank.run(_mix(count), *operands, mb=row["mb"], after=after)
            return (results,) if count == 1 else tuple(results)
        case "sum":
            return (rank.sum(*operands, after=after),)
        case "record":
            return (rank.record(after=after),)
        case "output":
            rank.output(row["name"], operands[0], after=after)
            return ()
        case "free":
            rank.free(*operands, after=after)
            return ()
        case _:
            return _communicate(rank, row, operands, after)


def _communicate(
    rank: Rank, row: Mapping[str, Any], operands: Sequence[Handle], after: Sequence[Instruction]
) -> tuple[Handle | Instruction, ...]:
    comm: dict[str, Any] = {"comm": row["stream"], "stream": row["stream"], "after": after}
    what: dict[str, Any] = {"mb": row.get("mb"), "label": row.get("label", "")}
    match row["op"]:
        case "send":
            return (rank.send(operands[0], peer=row["peer"], **what, **comm),)
        case "recv":
            shape = tuple(row["shape"])
            return rank.recv(peer=row["peer"], shape=shape, dtype="float32", **what, **comm)
        case "all_reduce":
            return rank.all_reduce(operands[0], **comm)
        case other:
            raise ValueError(f"expected an instruction that runtimes know, got {other!r}")
