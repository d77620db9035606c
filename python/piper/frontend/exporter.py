"""From torch ops of the dialect back to FX graphs: the inverse of the importer."""

from __future__ import annotations

import operator
import re
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload

from piper.frontend.attributes import decode_argument, find_line
from piper.frontend.data import OpSite
from piper.frontend.importer import POSITIONS
from piper.mlir import ir
from piper.mlir.dialects import piper

__all__ = ["export_kernel", "export_step", "find_op", "result_positions", "returns_tensor"]


def export_kernel(kernel: piper.KernelOp) -> fx.GraphModule:
    """Return a kernel as a callable of its arguments: one tensor, or a tuple of several."""
    graph = _GraphBuilder()
    block = kernel.body.blocks[0]
    for argument in block.arguments:
        graph.add_placeholder(f"a{argument.arg_number}", argument)
    returned: list[fx.Node] = []
    for op in block:
        if isinstance(op, piper.ReturnOp):
            returned = graph.lookup(op.values)
        else:
            graph.add_op(op)
    return graph.finish(returned[0] if len(returned) == 1 else tuple(returned))


def export_step(step: piper.StepOp) -> fx.GraphModule:
    """Return a captured step as a callable of states, inputs, then tangents, as in ``Capture``.

    States come in the order of their reads, tangents in that of theirs, and there is none for a
    tangent that scales an output only. The result is ``(values, counts, gradients)``.
    """
    graph = _GraphBuilder()
    block = step.body.blocks[0]
    ops = list(block)
    for read in (op for op in ops if isinstance(op, piper.ReadOp)):
        graph.add_placeholder(read.symbol.value, read.result)
    for name, argument in zip(step.inputs, block.arguments, strict=True):
        graph.add_placeholder(ir.StringAttr(name).value, argument)
    tangents = [op for op in ops if isinstance(op, piper.TangentOp)]
    for tangent in tangents:
        if any(not isinstance(use.owner, piper.OutputOp) for use in tangent.result.uses):
            graph.add_placeholder(tangent.loss.value, tangent.result)
    for op in ops:
        if isinstance(op, piper.TorchOp):
            graph.add_op(op)
    values = [op.value for op in ops if isinstance(op, piper.OutputOp)]
    counts = [op.count for op in tangents if op.count is not None]
    gradients = [op.value for op in ops if isinstance(op, piper.GradOp)]
    return graph.finish(tuple(tuple(graph.lookup(part)) for part in (values, counts, gradients)))


def find_op(name: str) -> OpOverload:
    """Return the op called ``namespace.name.overload``; raises ValueError if torch has none."""
    found: Any = torch.ops
    try:
        for part in name.split("."):
            found = getattr(found, part)
    except AttributeError as error:
        raise ValueError(f"expected an op that torch knows, got {name!r}") from error
    assert isinstance(found, OpOverload)
    return found


def returns_tensor(op: OpOverload) -> bool:
    """Return whether the result of ``op`` is one tensor, not a tuple or list."""
    returns = op._schema.returns
    return len(returns) == 1 and isinstance(returns[0].type, torch.TensorType)


def result_positions(op: piper.TorchOp) -> list[int]:
    """Return, for each result, its position among the results of the op in torch."""
    attributes = op.operation.attributes
    if POSITIONS in attributes:
        return list(ir.DenseI64ArrayAttr(attributes[POSITIONS]))
    return list(range(len(op.operation.results)))


class _GraphBuilder:
    """An FX graph that grows by ops of a block."""

    def __init__(self) -> None:
        self._graph = fx.Graph()
        self._nodes: dict[ir.Value[ir.Type], fx.Node] = {}

    def add_placeholder(self, name: str, value: ir.Value[ir.Type]) -> None:
        word = re.sub(r"\W", "_", name)
        self._nodes[value] = self._graph.placeholder(f"_{word}" if word[0].isdigit() else word)

    def lookup(self, values: Sequence[ir.Value[ir.Type]]) -> list[fx.Node]:
        return [self._nodes[value] for value in values]

    def add_op(self, op: piper.TorchOp) -> None:
        """Append a torch op, and a ``getitem`` for each result of several that is used."""
        operands = self.lookup(op.inputs)
        args = tuple(decode_argument(value, operands.__getitem__) for value in op.args)
        kwargs = {item.name: decode_argument(item.attr, operands.__getitem__) for item in op.kwargs}
        target = find_op(op.op_name.value)
        node = self._graph.call_function(target, args, kwargs)
        line = find_line(op.operation.location)
        if line is not None:
            node.meta["site"] = OpSite(*line)
        if returns_tensor(target):
            self._nodes[op.operation.results[0]] = node
            return
        for position, result in zip(result_positions(op), op.operation.results, strict=True):
            if next(iter(result.uses), None) is not None:
                self._nodes[result] = self._graph.call_function(operator.getitem, (node, position))

    def finish(self, output: Any) -> fx.GraphModule:
        self._graph.output(output)
        self._graph.lint()
        return fx.GraphModule(torch.nn.Module(), self._graph)
