"""What the last level of the IR says of a program, as data."""

from __future__ import annotations

from collections import Counter
from functools import cached_property
from typing import Any

from piper.emit.dump import read_programs
from piper.emit.symbols import Symbols
from piper.mlir import ir
from piper.schedules import Table
from piper.simulate.facts import ChunkFacts, KernelFacts, name_place, read_chunks, read_kernels

__all__ = ["Facts"]


class Facts:
    """Chunks, kernels and instructions of a lowered module, each read once."""

    def __init__(self, module: ir.Module) -> None:
        """Read the programs; counts are those of one data-parallel rank."""
        self.symbols = Symbols(module)
        self.programs: list[dict[str, Any]] = read_programs(module)

    def place(self, coordinate: int) -> str:
        """Return ``pp 0``, or ``all ranks`` without an unrolled axis."""
        return name_place(self.symbols.axis, coordinate)

    @cached_property
    def kernels(self) -> dict[str, KernelFacts]:
        """Every kernel by symbol."""
        return read_kernels(self.symbols)

    @cached_property
    def chunks(self) -> dict[str, ChunkFacts]:
        """Every chunk by symbol."""
        return read_chunks(self.symbols, self.kernels)

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
