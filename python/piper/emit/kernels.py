"""The text of ``kernels.py``: one function of tensors per kernel of a module, one line per op.

    def addmm_relu_7c1e(a0, a1, a2):
        v0 = aten.t.default(a1)  # model.py:14
        v1 = aten.addmm.default(a2, a0, v0)
        v2 = aten.relu.default(v1); del v1  # model.py:15
        return v2

A value is dropped at its last use, so a kernel holds no more memory than it needs. Results are
contiguous and alias neither arguments nor each other.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, fx
from torch._ops import OpOverload

from piper.emit.names import identifier
from piper.emit.strides import reshape_where_needed
from piper.frontend.exporter import export_kernel, returns_tensor
from piper.frontend.op_facts import effects
from piper.mlir import ir
from piper.mlir.dialects import piper

__all__ = ["emit_kernels"]

_HEADER = '''\
"""Kernels: pure functions of tensors, one for each distinct computation of the program."""

import math

import torch

aten = torch.ops.aten
device = torch.device("cpu")  # the loader sets the rank's
'''
aten = torch.ops.aten

_PACKAGES = "site-packages/"


def emit_kernels(module: ir.Module) -> str:
    """Return the text of ``kernels.py`` with a function for every ``piper.kernel`` of ``module``.

    Needs torch to know the ops, and how they act on fake tensors of the argument types.
    """
    kernels = [op for op in module.body if isinstance(op, piper.KernelOp)]
    return "\n\n".join([_HEADER, *("\n".join(_function(op)) + "\n" for op in kernels)])


def _function(kernel: piper.KernelOp) -> Iterator[str]:
    """Yield the lines of one function."""
    graph = export_kernel(kernel).graph
    arguments = kernel.body.blocks[0].arguments
    reshape_where_needed(graph, [argument.type for argument in arguments])
    nodes = list(graph.nodes)
    names = _name(nodes)
    parameters = ", ".join(names[node] for node in nodes if node.op == "placeholder")
    yield f"def {identifier(kernel.sym_name.value)}({parameters}):"
    ops = [node for node in nodes if _is_line(node)]
    dropped = _last_uses(ops, graph.output_node())
    previous = None
    for node in ops:
        site = node.meta.get("site")
        line = _statement(node, names)
        gone = [names[value] for value in dropped.get(node, ())] + _unused(node)
        line += f"; del {', '.join(gone)}" if gone else ""
        yield f"    {line}" + (f"  # {_place(site)}" if site and site != previous else "")
        previous = site
    yield f"    return {_returned(graph.output_node(), names)}"


def _is_line(node: fx.Node) -> bool:
    return node.op == "call_function" and node.target is not operator.getitem


def _name(nodes: Iterable[fx.Node]) -> dict[fx.Node, str]:
    """Name arguments a0, a1, ... and values v0, v1, ...; an op of several results has no name."""
    names: dict[fx.Node, str] = {}
    count = 0
    for node in nodes:
        if node.op == "placeholder":
            names[node] = f"a{len(names)}"
        elif node.op == "call_function" and isinstance(node.meta["val"], Tensor):
            names[node] = f"v{count}"
            count += 1
    return names


def _last_uses(ops: Iterable[fx.Node], output: fx.Node) -> dict[fx.Node, list[fx.Node]]:
    """Return the values to drop after each op: those used there last, except views of arguments,
    which hold no memory. What lives until the last op goes with the return.
    """
    lines = list(ops)
    dead = set(output.all_input_nodes)
    dropped: dict[fx.Node, list[fx.Node]] = {}
    for op in reversed(lines):
        for value in op.all_input_nodes:
            if value not in dead:
                dead.add(value)
                if op is not lines[-1] and _owns_memory(value):
                    dropped.setdefault(op, []).append(value)
    return dropped


def _owns_memory(value: fx.Node) -> bool:
    """Return whether a value keeps memory that is not an argument's."""
    while value.op != "placeholder":
        producer = value.args[0] if value.target is operator.getitem else value
        assert isinstance(producer, fx.Node)
        op = producer.target
        if not isinstance(op, OpOverload) or effects(op) != "view" or op is aten.reshape.default:
            return True
        value = producer.all_input_nodes[0]
    return False


def _statement(node: fx.Node, names: dict[fx.Node, str]) -> str:
    """Return the assignment of an op, to each of its results that is used."""
    op = node.target
    assert isinstance(op, OpOverload)
    keywords = (f"{name}={_text(value, names)}" for name, value in node.kwargs.items())
    arguments = ", ".join([*(_text(value, names) for value in node.args), *keywords])
    call = f"{_op_name(op)}({arguments})"
    if returns_tensor(op):
        return f"{names[node]} = {call}"
    used = {user.args[1]: names[user] for user in node.users}
    if len(used) == 1:
        [(position, name)] = used.items()
        return f"{name} = {call}[{position}]"
    return f"{', '.join(used.get(i, '_') for i in range(len(node.meta['val'])))} = {call}"


def _unused(node: fx.Node) -> list[str]:
    """Return the placeholder name to drop if a result that nothing uses was unpacked into it."""
    value = node.meta["val"]
    return ["_"] if not isinstance(value, Tensor) and 1 < len(node.users) < len(value) else []


def _op_name(op: OpOverload) -> str:
    return str(op) if op.namespace == "aten" else f"torch.ops.{op}"


def _text(value: Any, names: dict[fx.Node, str]) -> str:
    """Return an argument as Python source."""
    match value:
        case fx.Node():
            return names[value]
        case list() | tuple():
            return f"[{', '.join(_text(item, names) for item in value)}]"
        case torch.device():
            return "device"
        case float() if not math.isfinite(value):
            return "math.nan" if math.isnan(value) else f"{'-' * (value < 0)}math.inf"
        case None | bool() | int() | float() | str():
            return repr(value)
    return str(value)  # torch.float32, torch.contiguous_format


def _place(site: Any) -> str:
    """Return ``file:line``; a file of an installed package as that of the package."""
    return f"{site.file.rpartition(_PACKAGES)[2]}:{site.line}"


def _returned(output: fx.Node, names: dict[fx.Node, str]) -> str:
    """Return the values to return, each made contiguous if it is not."""
    values = output.all_input_nodes
    texts = [
        names[value] if value.meta["val"].is_contiguous() else f"{names[value]}.contiguous()"
        for value in values
    ]
    return ", ".join(texts) if texts else "None"
