"""The text of ``kernels.py``: one function of tensors per kernel of a module, one line per op.

    def addmm_relu_7c1e(a0: float32[4, 2], a1: float32[3, 2], a2: float32[3]):
        v0 = torch.addmm(a2, a0, a1.t())  # model.py:14
        v1 = torch.relu(v0); del v0  # model.py:15
        return v1

Ops are called in the way that costs the host least (``calls``). A view that one op reads stands
where it is read. A value is dropped at its last use, so a kernel holds no more memory than it
needs. Results are contiguous and alias neither arguments nor each other.
"""

from __future__ import annotations

import operator
import textwrap
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from piper_runtime.names import dtype_name
from torch import Tensor, fx
from torch._ops import OpOverload

from piper.emit.calls import CallWriter
from piper.emit.names import identifier
from piper.emit.strides import is_unknown, reshape_where_needed
from piper.emit.views import fold_views, is_view
from piper.frontend.exporter import export_kernel, returns_tensor
from piper.frontend.op_facts import effects
from piper.mlir import ir
from piper.mlir.dialects import piper

__all__ = ["emit_kernels"]

_HEADER = '''\
"""Kernels: pure functions of tensors, one for each distinct computation of the program."""

from __future__ import annotations

import math

import torch

nn = torch._C._nn
device = torch.device("cpu")  # the loader sets the rank's
'''
_BOUND = "# Ops that torch has no function for.\n"
aten = torch.ops.aten

_PACKAGES = "site-packages/"
_WIDTH = 100


def emit_kernels(module: ir.Module) -> str:
    """Return the text of ``kernels.py`` with a function for every ``piper.kernel`` of ``module``.

    Arguments are annotated with dtype and shape, in which ``rows`` is a number that depends on
    data. Needs torch to know the ops, and how they act on fake tensors of the argument types.
    """
    writer = CallWriter()
    kernels = [op for op in module.body if isinstance(op, piper.KernelOp)]
    functions = ["\n".join(_Function(op, writer).lines()) + "\n" for op in kernels]
    bound = [f"{name} = torch.ops.{op}._op\n" for name, op in sorted(writer.bound.items())]
    header = "\n".join([_HEADER, _BOUND + "".join(bound)]) if bound else _HEADER
    return "\n\n".join([header, *functions])


class _Function:
    """One function being written."""

    def __init__(self, kernel: piper.KernelOp, writer: CallWriter) -> None:
        """Read the kernel, with as few views as its ops need."""
        self._name = identifier(kernel.sym_name.value)
        self._writer = writer
        graph = export_kernel(kernel).graph
        types = [argument.type for argument in kernel.body.blocks[0].arguments]
        self._mode = reshape_where_needed(graph, types)
        with self._mode:
            fold_views(graph)
        self._output = graph.output_node()
        self._nodes = list(graph.nodes)
        self._inlined = {node for node in self._nodes if _is_inlined(node)}
        self._names = _name(node for node in self._nodes if node not in self._inlined)

    def lines(self) -> Iterator[str]:
        """Yield the lines of the function."""
        yield from self._signature()
        dropped = self._last_uses()
        previous = None
        with self._mode, torch.no_grad():
            for node in self._nodes:
                if node in self._inlined:
                    self._names[node] = self._writer.write(node, self._names)
                elif self._is_line(node):
                    site = node.meta.get("site")
                    yield f"    {self._statement(node, dropped.get(node, ()))}" + (
                        f"  # {_place(site)}" if site and site != previous else ""
                    )
                    previous = site
        yield f"    return {self._returned()}"

    def _signature(self) -> Iterator[str]:
        """Yield the line that starts the function, or several where it would be long."""
        arguments = [node for node in self._nodes if node.op == "placeholder"]
        texts = [f"{self._names[node]}: {_type(node.meta['val'])}" for node in arguments]
        line = f"def {self._name}({', '.join(texts)}):"
        if len(line) <= _WIDTH:
            yield line
            return
        # No line ends inside a shape.
        joined = ", ".join(text.replace(", ", ",~").replace(": ", ":~") for text in texts)
        yield f"def {self._name}("
        for part in textwrap.wrap(f"{joined},", _WIDTH - 4, break_long_words=False):
            yield f"    {part.replace('~', ' ')}"
        yield "):"

    def _is_line(self, node: fx.Node) -> bool:
        called = node.op == "call_function" and node.target is not operator.getitem
        return called and node not in self._inlined

    def _operands(self, node: fx.Node) -> Iterator[fx.Node]:
        """Yield the named values that a line reads, through the views that stand in it."""
        for value in node.all_input_nodes:
            if value in self._inlined:
                yield from self._operands(value)
            else:
                yield value

    def _last_uses(self) -> dict[fx.Node, list[str]]:
        """Return the names to drop after each line: of values used there last, except views of
        arguments, which hold no memory. What lives until the last line goes with the return.
        """
        lines = [node for node in self._nodes if self._is_line(node)]
        dead = set(self._output.all_input_nodes)
        dropped: dict[fx.Node, list[str]] = {}
        for line in reversed(lines):
            for value in self._operands(line):
                if value not in dead:
                    dead.add(value)
                    if line is not lines[-1] and _owns_memory(value):
                        dropped.setdefault(line, []).append(self._names[value])
        return dropped

    def _statement(self, node: fx.Node, dropped: Iterable[str]) -> str:
        """Return the assignment of an op, to each of its results that is used."""
        gone = [*dropped, *_unused(node)]
        drop = f"; del {', '.join(gone)}" if gone else ""
        call = self._writer.write(node, self._names)
        op = node.target
        assert isinstance(op, OpOverload)
        if returns_tensor(op):
            return f"{self._names[node]} = {call}{drop}"
        used = {user.args[1]: self._names[user] for user in node.users}
        if len(used) == 1:
            [(position, name)] = used.items()
            return f"{name} = {call}[{position}]{drop}"
        targets = ", ".join(used.get(i, "_") for i in range(len(node.meta["val"])))
        return f"{targets} = {call}{drop}"

    def _returned(self) -> str:
        """Return the values to return, each made contiguous if it is not."""
        texts = [
            self._names[value] + ("" if value.meta["val"].is_contiguous() else ".contiguous()")
            for value in self._output.all_input_nodes
        ]
        return ", ".join(texts) if texts else "None"


def _is_inlined(node: fx.Node) -> bool:
    """Return whether a value stands where it is read: a view that one op reads once."""
    if node.op != "call_function" or not is_view(node) or len(node.users) != 1:
        return False
    [user] = node.users
    uses: list[fx.Node] = []
    fx.node.map_arg((user.args, user.kwargs), uses.append)
    return user.op == "call_function" and uses.count(node) == 1


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


def _unused(node: fx.Node) -> list[str]:
    """Return the placeholder name to drop if a result that nothing uses was unpacked into it."""
    value = node.meta["val"]
    return ["_"] if not isinstance(value, Tensor) and 1 < len(node.users) < len(value) else []


def _type(value: Tensor) -> str:
    """Return ``float32[4, 8]``, ``float32[()]`` of a scalar, or ``float32[rows, 8]`` of rows whose
    number depends on data.
    """
    sizes = ["rows" if is_unknown(size) else str(size) for size in value.shape]
    return f"{dtype_name(value.dtype)}[{', '.join(sizes) or '()'}]"


def _place(site: Any) -> str:
    """Return ``file:line``; a file of an installed package as that of the package."""
    return f"{site.file.rpartition(_PACKAGES)[2]}:{site.line}"
