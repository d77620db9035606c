"""Build ``piper.torch`` ops from Python, with the types and facts that torch says they have."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, fx
from torch._ops import OpOverload
from torch._subclasses import FakeTensorMode
from torch.utils import _pytree as pytree

from piper.frontend.attributes import (
    dtype_of_type,
    encode_argument,
    facts_attribute,
    tensor_type,
)
from piper.frontend.exporter import find_op
from piper.frontend.op_facts import node_facts
from piper.mlir import ir
from piper.mlir.dialects import piper

__all__ = ["torch_op"]

_STRIDED = re.compile(r"\bstrided\b")


def torch_op(
    name: str, *args: Any, tag: ir.Attribute | None = None, **kwargs: Any
) -> list[ir.Value[ir.Type]]:
    """Insert a call of an op such as ``"aten.sub.Tensor"`` at the current insertion point.

    Returns its results.

    Values of the IR stand where the op's schema has tensors, also inside lists; other arguments are
    Python values. The op runs on fake tensors, which gives the types of its results, its facts and
    its FLOPs. In a captured step every op has a `tag`; ops of kernels have none.

    Raises:
        ValueError: an op that torch does not know, or a value whose type has a layout or a dynamic
            size: build ops in captured steps and in kernels.
        TypeError: a result that is no tensor.
    """
    if name.count(".") != 2:
        raise ValueError(f"torch_op expected a name such as 'aten.sub.Tensor', got {name!r}")
    values: dict[fx.Node, ir.Value[ir.Type]] = {}
    node = _trace(find_op(name), args, kwargs, values)
    results = pytree.tree_leaves(node.meta["val"])
    if not all(isinstance(result, Tensor) for result in results):
        raise TypeError(f"op {name} expected results that are tensors, got {results}")
    operands: list[ir.Value[ir.Type]] = []

    def operand(argument: fx.Node) -> int:
        operands.append(values[argument])
        return len(operands) - 1

    template = ir.ArrayAttr.get([encode_argument(value, operand) for value in node.args])
    # Operands are numbered in the order of print, where keywords are sorted.
    keywords = {key: encode_argument(node.kwargs[key], operand) for key in sorted(node.kwargs)}
    facts = node_facts(node)
    strided = facts.strided or any(map(_is_strided, operands))
    made = piper.TorchOp(
        results_=[tensor_type(result) for result in results],
        inputs=operands,
        op_name=str(node.target),
        args=template,
        kwargs=ir.DictAttr.get(keywords),
        facts=facts_attribute(replace(facts, strided=strided)),
        tag=tag,
    )
    return list(made.operation.results)


def _trace(
    op: OpOverload,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    values: dict[fx.Node, ir.Value[ir.Type]],
) -> fx.Node:
    """Return a node of the call, with the fake tensors that it takes and makes.

    `values` gets the value that each of its placeholders stands for.
    """
    graph = fx.Graph()

    def take(argument: Any) -> Any:
        if not isinstance(argument, ir.Value):
            return argument
        node = graph.placeholder(f"operand{len(values)}")
        node.meta["val"] = _fake(argument)
        values[node] = argument
        return node

    with FakeTensorMode():
        taken, named = pytree.tree_map(take, (args, kwargs))
        node = graph.call_function(op, taken, named)
        given = fx.node.map_arg((node.args, node.kwargs), lambda argument: argument.meta["val"])
        node.meta["val"] = op(*given[0], **given[1])
    return node


def _fake(value: ir.Value[ir.Type]) -> Tensor:
    """Return a tensor of a value's type; the fake mode must be on."""
    type_ = ir.RankedTensorType(value.type)
    if not type_.has_static_shape or type_.encoding is not None:
        raise ValueError(f"torch_op expected values of static shapes without layout, got {type_}")
    return torch.empty(type_.shape, dtype=dtype_of_type(type_.element_type))


def _is_strided(value: ir.Value[ir.Type]) -> bool:
    """Whether a value may not be contiguous: an op that is made of it may keep its strides."""
    owner = value.owner
    if isinstance(owner, ir.Block) or "facts" not in owner.attributes:
        return False
    return _STRIDED.search(str(owner.attributes["facts"])) is not None
