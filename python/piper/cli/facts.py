"""What the last level of the IR says of a program, as data."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from piper.emit.dump import read_programs
from piper.emit.symbols import Symbols, name_of
from piper.mlir import ir
from piper.schedules import Table

__all__ = ["ChunkFacts", "Facts"]

_FLOPS = re.compile(r"flops = (\d+)")


@dataclass(frozen=True)
class ChunkFacts:
    """A chunk: its symbol, stage and pass, and the kernels of its launches, in order."""

    name: str
    stage: int | None
    pass_: str
    kernels: tuple[str, ...]


class Facts:
    """Chunks, kernels and instructions of a lowered module, each read once."""

    def __init__(self, module: ir.Module) -> None:
        """Read the programs; counts are those of one data-parallel rank."""
        self.symbols = Symbols(module)
        self.programs: list[dict[str, Any]] = read_programs(module)

    def place(self, coordinate: int) -> str:
        """Return ``pp 0``, or ``all ranks`` without an unrolled axis."""
        return f"{self.symbols.axis} {coordinate}" if self.symbols.axis else "all ranks"

    @cached_property
    def flops(self) -> dict[str, int]:
        """FLOPs of each kernel."""
        found = {}
        for kernel in self.symbols.all("kernel"):
            match = _FLOPS.search(str(kernel.attributes.get("cost")))
            found[name_of(kernel)] = int(match[1]) if match else 0
        return found

    @cached_property
    def chunks(self) -> dict[str, ChunkFacts]:
        """Every chunk by symbol."""
        return {name: _chunk_facts(name, op) for name, op in self.symbols.chunks.items()}

    @cached_property
    def homes(self) -> dict[int, set[int]]:
        """The coordinates at which each stage runs."""
        homes: dict[int, set[int]] = {}
        for program in self.programs:
            for row in program["rows"]:
                stage = self.chunks[row["chunk"]].stage if row["op"] == "run" else None
                if stage is not None:
                    homes.setdefault(stage, set()).add(program["at"])
        return homes

    def runs(self, entry: str) -> Counter[str]:
        """How often each chunk is run in an entry point, over all coordinates."""
        return Counter(
            row["chunk"]
            for program in self.programs
            if program["entry"] == entry
            for row in program["rows"]
            if row["op"] == "run"
        )

    @property
    def optimizer(self) -> str:
        """What the strategy calls the optimizer's factory; empty without an update."""
        directives = self.symbols.all("strategy")[0].regions[0].blocks[0].operations
        names = [
            ir.StringAttr(directive.operation.attributes["optimizer"]).value
            for directive in directives
            if directive.operation.name == "piper.do.update"
        ]
        return names[0] if names else ""

    @property
    def schedule(self) -> Table:
        """The cells of the training step in the order in which each coordinate issues them."""
        rows = {
            program["at"]: [
                self.symbols.cell(row["chunk"], row["mb"])
                for row in program["rows"]
                if row["op"] == "run"
            ]
            for program in self.programs
            if program["entry"] == "train"
        }
        # A cell runs the chunks of its stage one by one.
        return Table.parse(" ".join(dict.fromkeys(cells)) for _, cells in sorted(rows.items()))


def _chunk_facts(name: str, chunk: ir.Operation) -> ChunkFacts:
    stage = chunk.attributes.get("stage")
    return ChunkFacts(
        name=name,
        stage=None if stage is None else ir.IntegerAttr(stage).value,
        pass_=name.partition("$")[2][0],
        kernels=tuple(
            ir.FlatSymbolRefAttr(view.operation.attributes["kernel"]).value
            for view in chunk.regions[0].blocks[0].operations
            if view.operation.name == "piper.launch"
        ),
    )
