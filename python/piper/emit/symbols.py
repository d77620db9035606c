"""What emission needs to know of a module beside its programs."""

from __future__ import annotations

import re
from functools import cached_property
from typing import Any

from piper.emit.dump import read_programs
from piper.emit.names import torch_name
from piper.mlir import ir

__all__ = ["Symbols", "name_of"]

_AXIS = re.compile(r'#piper\.axis<"?([^"]+?)"? = (\d+) (\w+)>')


class Symbols:
    """A module's symbols by kind, read once."""

    def __init__(self, module: ir.Module) -> None:
        """Sort the module's ops by kind."""
        self._module = module  # which owns the ops
        self._by_kind: dict[str, list[ir.Operation]] = {}
        for view in module.body.operations:
            self._by_kind.setdefault(view.operation.name, []).append(view.operation)

    def all(self, kind: str) -> list[ir.Operation]:
        """Return the ops called ``piper.<kind>``, in module order."""
        return self._by_kind.get(f"piper.{kind}", [])

    @cached_property
    def chunks(self) -> dict[str, ir.Operation]:
        """Chunks by symbol."""
        return {name_of(chunk): chunk for chunk in self.all("chunk")}

    @cached_property
    def buckets(self) -> dict[str, ir.Operation]:
        """Buckets by symbol."""
        return {name_of(bucket): bucket for bucket in self.all("bucket")}

    @cached_property
    def states(self) -> dict[str, ir.Operation]:
        """States by symbol."""
        return {name_of(state): state for state in self.all("state")}

    @cached_property
    def streams(self) -> dict[str, ir.Operation]:
        """Streams by symbol."""
        return {name_of(stream): stream for stream in self.all("stream")}

    @cached_property
    def programs(self) -> list[dict[str, Any]]:
        """Every program as rows: see ``dump``."""
        return read_programs(self._module)

    @cached_property
    def members(self) -> dict[str, tuple[str, ...]]:
        """The states of each bucket, in order."""
        return {
            name_of(bucket): tuple(
                ir.FlatSymbolRefAttr(member).value
                for member in ir.ArrayAttr(bucket.attributes["members"])
            )
            for bucket in self.all("bucket")
        }

    @cached_property
    def axes(self) -> list[tuple[str, int, str]]:
        """Name, size and role of the mesh axes, outermost first."""
        axes = ir.ArrayAttr(self.all("mesh")[0].attributes["axes"])
        found = [_AXIS.fullmatch(str(axis)) for axis in axes]
        return [(axis[1], int(axis[2]), axis[3]) for axis in found if axis]

    @cached_property
    def axis(self) -> str:
        """The unrolled axis, or nothing."""
        return next((name for name, _, role in self.axes if role == "unrolled"), "")

    @cached_property
    def update(self) -> ir.Operation | None:
        """The first update directive, which others do not contradict."""
        directives = (
            view.operation
            for strategy in self.all("strategy")
            for view in strategy.regions[0].blocks[0].operations
        )
        return next((op for op in directives if op.name == "piper.do.update"), None)

    @cached_property
    def sequence(self) -> tuple[str, dict[str, int]] | None:
        """The manual axis along which ranks share out the sequence, and the dim of each input."""
        roles = {name: role for name, _, role in self.axes}
        for strategy in self.all("strategy"):
            for view in strategy.regions[0].blocks[0].operations:
                op = view.operation
                if op.name != "piper.do.sequence":
                    continue
                axis = ir.StringAttr(op.attributes["axis"]).value
                if roles.get(axis) == "manual":
                    dims = ir.DictAttr(op.attributes["dims"])
                    named = (dims[index] for index in range(len(dims)))
                    return axis, {e.name: ir.IntegerAttr(e.attr).value for e in named}
        return None

    @cached_property
    def loss_scale(self) -> tuple[float, ...]:
        """One number that stays; initial, growth, backoff and interval of one that changes; or
        nothing.
        """
        if self.update is None or "loss_scale" not in self.update.attributes:
            return ()
        numbers = ir.ArrayAttr(self.update.attributes["loss_scale"])
        return tuple(ir.FloatAttr(number).value for number in numbers)

    @cached_property
    def scaled_entries(self) -> frozenset[str]:
        """The entry points whose losses are multiplied by a loss scale: those that update."""
        if not self.loss_scale:
            return frozenset()
        return frozenset(
            program["entry"]
            for program in self.programs
            if any(row["op"] == "update" for row in program["rows"])
        )

    def program_file(self, coordinate: int) -> str:
        """Return ``program_pp0.py``, or ``program_0.py`` without an unrolled axis."""
        return f"program_{self.axis}{coordinate}.py"

    def cell(self, chunk: str, microbatch: int) -> str:
        """Return the cell of the schedule that a run belongs to, nothing for a preamble."""
        attributes = self.chunks[chunk].attributes
        if "stage" not in attributes:
            return ""
        stage = ir.IntegerAttr(attributes["stage"]).value
        letter = chunk.split("$")[1][0]
        return f"{stage}{letter}{microbatch}"

    @staticmethod
    def dtype(element: str) -> str:
        """Return torch's name of an MLIR element type, such as ``float32`` of ``f32``."""
        return torch_name(ir.Type.parse(element))


def name_of(symbol: ir.Operation) -> str:
    """Return the name of a symbol."""
    return ir.StringAttr(symbol.attributes["sym_name"]).value
