"""Chunks and kernels of the IR as functions of tensors, op by op."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch

from piper.frontend.exporter import export_kernel
from piper.mlir import ir
from piper.mlir.dialects import piper

__all__ = ["ChunkFunction", "Values", "read_chunk", "read_kernels"]

Values = dict[Any, Any]
"""Tensors, and packs of them, by values of the IR."""
Action = Callable[[Values], None]

_VIEWS = (torch.ops.aten.view.default, torch.ops.aten._unsafe_view.default)


def read_kernels(module: ir.Module) -> dict[str, Callable[..., Any]]:
    """Return the kernels of a module by name."""
    return {
        op.sym_name.value: _callable(op) for op in module.body if isinstance(op, piper.KernelOp)
    }


@dataclass(frozen=True)
class ChunkFunction:
    """A chunk as a function: its arguments, what it does, what it returns."""

    arguments: Sequence[Any]
    actions: Sequence[Action]
    returned: Sequence[Any]

    def __call__(self, *operands: Any) -> tuple[Any, ...]:
        """Return what the chunk makes of its operands."""
        values: Values = dict(zip(self.arguments, operands, strict=True))
        for act in self.actions:
            act(values)
        return tuple(values[value] for value in self.returned)


def read_chunk(chunk: piper.ChunkOp, kernels: Mapping[str, Callable[..., Any]]) -> ChunkFunction:
    """Return a chunk, of kernels by name; raises ValueError for an op that chunks do not have."""
    block = chunk.body.blocks[0]
    actions: list[Action] = []
    for op in block:
        match op:
            case piper.UnpackOp():
                actions.append(_unpack(op))
            case piper.LaunchOp():
                actions.append(_launch(op, kernels[op.kernel.value]))
            case piper.PackOp():
                actions.append(_pack(tuple(op.members), op.result))
            case piper.RelabelOp():
                actions.append(_copy(op.operation.operands[0], op.result))
            case piper.ReturnOp():
                return ChunkFunction(tuple(block.arguments), actions, tuple(op.values))
            case _:
                raise ValueError(
                    f"check mode expected unpack, launch, pack, relabel and return in "
                    f"@{chunk.sym_name.value}, got {op.operation.name}"
                )
    raise AssertionError("a chunk ends in a return")


def _unpack(op: piper.UnpackOp) -> Action:
    flat, members = op.value, tuple(op.operation.results)
    shapes = [tuple(ir.RankedTensorType(member.type).shape) for member in members]

    def act(values: Values) -> None:
        parts = values[flat].split([prod(shape) for shape in shapes])
        for member, part, shape in zip(members, parts, shapes, strict=True):
            values[member] = part.view(shape)

    return act


def _launch(op: piper.LaunchOp, kernel: Callable[..., Any]) -> Action:
    inputs, outputs = tuple(op.inputs), tuple(op.operation.results)

    def act(values: Values) -> None:
        made = kernel(*[values[value] for value in inputs])
        values.update(zip(outputs, made if len(outputs) > 1 else (made,), strict=True))

    return act


def _pack(members: Sequence[Any], output: Any) -> Action:
    def act(values: Values) -> None:
        values[output] = tuple(values[member] for member in members)

    return act


def _copy(source: Any, output: Any) -> Action:
    def act(values: Values) -> None:
        values[output] = values[source]

    return act


def _callable(kernel: piper.KernelOp) -> Callable[..., Any]:
    """A kernel whose views take what has no such view: values here may be strided in another way
    than those that it was captured from.
    """
    module = export_kernel(kernel)
    for node in module.graph.nodes:
        if node.target in _VIEWS:
            node.target = torch.ops.aten.reshape.default
    module.recompile()
    return module
