"""The rows of a table as programs, without the passes that order a cluster and lower it.

Each coordinate runs its cells in the order of its row. Every message has a communicator and a
stream of its own, so that it waits for nothing but its value: whether such programs finish depends
on the rows alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from piper.mlir import ir
from piper_runtime.mesh import CommSpec
from placed_graphs import Cell, PlacedGraph
from program_sets import ProgramSet

__all__ = ["write_rows"]

Key = tuple[int, Cell]
"""A coordinate and a cell."""


def write_rows(graph: PlacedGraph, cluster: ir.Operation) -> ProgramSet | None:
    """The programs of a table whose cells are all there, or None if a coordinate uses a value that
    it makes later, which no text can say.

    Args:
        graph: with the table.
        cluster: the ops of the graph on every coordinate, once transfers are there.
    """
    ops = [view.operation for view in cluster.regions[0].blocks[0].operations]
    transfers = [op for op in ops if op.name == "piper.transfer"]
    comms = [
        CommSpec(f"t{number}", (), (_integer(op, "from"), _integer(op, "to")))
        for number, op in enumerate(transfers)
    ]
    runs = _runs(cluster, ops)
    texts = []
    for at, row in enumerate(graph.table):
        writer = _Writer(at, transfers)
        for cell in row:
            for op in runs.get((at, cell), ()):
                if not writer.run(op):
                    return None
        texts.append(writer.text())
    lines = ["piper.stream @pp"]
    for comm in comms:
        lines.append(
            f"piper.comm @{comm.name} axes [] coordinates {list(comm.coordinates)} for @pp"
        )
    text = "\n".join([f"{graph.head}{lines[0]}", *lines[1:], *texts, ""])
    return ProgramSet(text, (graph.axis,), tuple(comms))


def _runs(cluster: ir.Operation, ops: Sequence[ir.Operation]) -> dict[Key, list[ir.Operation]]:
    assert cluster.parent is not None
    chunks = {
        ir.StringAttr(view.operation.attributes["sym_name"]).value: view.operation
        for view in cluster.parent.regions[0].blocks[0].operations
        if view.operation.name == "piper.chunk"
    }
    found: dict[Key, list[ir.Operation]] = {}
    for op in ops:
        if op.name == "piper.run":
            name = ir.FlatSymbolRefAttr(op.attributes["chunk"]).value
            cell = (_integer(chunks[name], "stage"), name[-1], _integer(op, "mb"))
            found.setdefault((_integer(op, "at"), cell), []).append(op)
    return found


def _integer(op: ir.Operation, name: str) -> int:
    return ir.IntegerAttr(op.attributes[name]).value


@dataclass
class _Writer:
    """Writes the program of one coordinate."""

    at: int
    transfers: Sequence[ir.Operation]
    lines: list[str] = field(default_factory=list)
    names: dict[ir.Value[ir.Type], tuple[str, str]] = field(default_factory=dict)
    """The name of each value that is there, and that of the event that compute waits for."""

    def run(self, op: ir.Operation) -> bool:
        """Write what an op needs, the op, and messages of its results; whether it can run."""
        operands = [self._take(value) for value in op.operands]
        if None in operands:
            return False
        known = [operand for operand in operands if operand is not None]
        after = ", ".join(sorted({event for _, event in known if event}))
        call = f"{op.attributes['chunk']}({', '.join(name for name, _ in known)})"
        number, count = self._number(), len(op.results)
        types = f"({', '.join('!x' for _ in known)}) -> ({', '.join(['!x'] * count)})"
        results = f"%v{number}:{count} = run {call} mb {_integer(op, 'mb')}"
        self.lines.append(f"{results}{f' after {after}' if after else ''} : {types}")
        for index, result in enumerate(op.results):
            self.names[result] = (f"%v{number}#{index}", "")
            self._send(result)
        return True

    def text(self) -> str:
        """The program."""
        lines = self.lines + [
            f'output "o{number}" {name}{f" after {event}" if event else ""} : !x'
            for number, (name, event) in enumerate(self.names.values())
        ]
        body = "".join(f"  {line}\n" for line in lines)
        return f"piper.program @train$pp{self.at} of @train$cluster at {self.at} {{\n{body}}}"

    def _take(self, value: ir.Value[ir.Type]) -> tuple[str, str] | None:
        """The names of an operand and its event; inputs and messages come when first used."""
        if value in self.names:
            return self.names[value]
        op, number = value.owner.operation, self._number()
        if op.name == "piper.input":
            self.lines.append(f'%v{number} = input "x" mb {_integer(op, "mb")} : !x')
            self.names[value] = (f"%v{number}", "")
        elif op.name == "piper.transfer":
            what = self._message(op)
            self.lines.append(f"%b{number} = record")
            peer = _integer(op, "from")
            received = f"recv from {peer} {what} after %b{number} : !x"
            self.lines.append(f"%v{number}, %e{number} = {received}")
            self.names[value] = (f"%v{number}", f"%e{number}")
        return self.names.get(value)

    def _send(self, result: ir.Value[ir.Type]) -> None:
        for use in result.uses:
            op = use.owner.operation
            if op.name == "piper.transfer":
                name, number = self.names[result][0], self._number()
                self.lines.append(f"%b{number} = record")
                target = f"to {_integer(op, 'to')} {self._message(op)}"
                self.lines.append(f"%e{number} = send {name} {target} after %b{number} : !x")

    def _message(self, op: ir.Operation) -> str:
        label = op.attributes["label"]
        return f"mb {_integer(op, 'mb')} as {label} on @t{self.transfers.index(op)}"

    def _number(self) -> int:
        return len(self.lines)
