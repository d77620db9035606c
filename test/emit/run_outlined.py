"""Runs a step at the outlined level, one chunk after the other, with kernels given as functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from piper.frontend import Role
from piper.mlir import ir
from piper.mlir.dialects import piper
from torch import Tensor

Launch = Callable[[str, Sequence[Tensor]], Any]
Values = dict[Any, Tensor]


class OutlinedStep:
    """Loss, count and gradients of a step, in that order of making."""

    def __init__(self, module: ir.Module, feed: Mapping[Role, Tensor], launch: Launch) -> None:
        self.loss: Tensor | None = None
        self.count: Tensor | None = None
        self.gradients: dict[str, Tensor] = {}
        self._feed = feed
        self._launch = launch
        self._chunks = {
            op.sym_name.value: op for op in module.body if isinstance(op, piper.ChunkOp)
        }

    def run(self, step: piper.StepOp) -> None:
        block = step.body.blocks[0]
        names = [ir.StringAttr(name).value for name in step.inputs]
        values: Values = {
            argument: self._feed[Role("input", name)]
            for name, argument in zip(names, block.arguments, strict=True)
        }
        for op in block:
            if isinstance(op, piper.RunOp):
                results = self._run_chunk(op, [values[value] for value in op.inputs])
                values.update(zip(op.operation.results, results, strict=True))
            elif isinstance(op, piper.TangentOp):
                values[op.result] = self._feed[Role("tangent", op.loss.value)]
                self.count = None if op.count is None else values[op.count]
            elif isinstance(op, piper.OutputOp):
                self.loss = values[op.value]

    def _run_chunk(self, run: piper.RunOp, given: Sequence[Tensor]) -> list[Tensor]:
        block = self._chunks[run.chunk.value].body.blocks[0]
        values: Values = dict(zip(block.arguments, given, strict=True))
        for op in block:
            if isinstance(op, piper.ReadOp):
                values[op.result] = self._feed[Role("state", op.symbol.value)]
            elif isinstance(op, piper.LaunchOp):
                found = self._launch(op.kernel.value, [values[value] for value in op.inputs])
                results = [found] if isinstance(found, Tensor) else found
                values.update(zip(op.operation.results, results, strict=True))
            elif isinstance(op, piper.GradOp):
                self._add(op.state.value, values[op.value])
            elif isinstance(op, piper.ReturnOp):
                return [values[value] for value in op.values]
        raise AssertionError("a chunk ends in a return")

    def _add(self, state: str, part: Tensor) -> None:
        known = self.gradients.get(state)
        self.gradients[state] = part if known is None else known + part
