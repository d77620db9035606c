"""Every spelling of an op that is chosen calls that op, with its arguments."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from piper.emit.calls import CallWriter, bound_name, literal
from torch import Tensor, fx
from torch._subclasses.fake_tensor import FakeTensorMode

aten = torch.ops.aten
NAN, INF = float("nan"), float("inf")
A, B, S = (3, 4), (3, 4), ()

CASES: list[tuple[Any, list[Any], dict[str, Any], str]] = [
    (aten.mm.default, [A, (4, 2)], {}, "torch.mm(x, y)"),
    (aten.mul.Tensor, [A, B], {}, "x * y"),
    (aten.mul.Tensor, [A, 0.5], {}, "x * 0.5"),
    (aten.mul.Scalar, [A, 2], {}, "x * 2"),
    (aten.add.Tensor, [A, S], {}, "x + y"),
    (aten.add.Tensor, [A, B], {"alpha": 2}, "torch.add(x, y, alpha=2)"),
    (aten.sub.Tensor, [A, B], {"alpha": 1}, "x - y"),
    (aten.div.Tensor, [A, B], {}, "x / y"),
    (aten.div.Tensor_mode, [A, B], {"rounding_mode": "floor"}, "torch.div(x, y, rounding_mode='floor')"),
    (aten.rsub.Scalar, [A, 1.0], {}, "torch.rsub(x, 1.0)"),
    (aten.neg.default, [A], {}, "-x"),
    (aten.view.default, [A, [2, 6]], {}, "x.view(2, 6)"),
    (aten.view.default, [(1,), []], {}, "x.view([])"),
    (aten.expand.default, [(1, 4), [3, -1]], {}, "x.expand(3, -1)"),
    (aten.permute.default, [(2, 3, 4), [2, 0, 1]], {}, "x.permute(2, 0, 1)"),
    (aten.transpose.int, [A, 0, 1], {}, "x.transpose(0, 1)"),
    (aten.squeeze.dim, [(3, 1), 1], {}, "x.squeeze(1)"),
    (aten.unsqueeze.default, [A, -1], {}, "x.unsqueeze(-1)"),
    (aten.unbind.int, [A], {}, "x.unbind()"),
    (aten.unbind.int, [A, 1], {}, "x.unbind(1)"),
    (aten.slice.Tensor, [A, 1, 2, 9223372036854775807], {}, "x[:, 2:]"),
    (aten.slice.Tensor, [A], {}, "slice_Tensor(x)"),
    (aten.slice.Tensor, [A, -1, 0, 2], {}, "slice_Tensor(x, -1, 0, 2)"),
    (aten.slice.Tensor, [(2, 3, 4), 1, 1, 3, 2], {}, "x[:, 1:3:2]"),
    (aten.clone.default, [A], {"memory_format": torch.contiguous_format},
     "x.clone(memory_format=torch.contiguous_format)"),
    (aten._to_copy.default, [A], {"dtype": torch.bfloat16}, "x.to(torch.bfloat16)"),
    (aten._to_copy.default, [A], {"dtype": torch.float32}, "_to_copy_default(x, dtype=torch.float32)"),
    (aten.sum.dim_IntList, [A, [0], False], {}, "torch.sum(x, [0])"),
    (aten.sum.dim_IntList, [A, [0], True], {}, "torch.sum(x, [0], True)"),
    (aten.cat.default, [[A, B], -1], {}, "torch.cat([x, y], -1)"),
    (aten.gelu.default, [A], {"approximate": "tanh"}, "nn.gelu(x, approximate='tanh')"),
    (aten.gelu_backward.default, [A, B], {}, "gelu_backward_default(x, y)"),
    (aten.full.default, [[2], NAN], {"dtype": torch.float32, "device": torch.device("cpu")},
     "full_default([2], math.nan, dtype=torch.float32, device=device)"),
    (aten.scalar_tensor.default, [-INF], {"dtype": torch.float32},
     "scalar_tensor_default(-math.inf, dtype=torch.float32)"),
    (aten.pow.Tensor_Scalar, [A, 2], {}, "torch.pow(x, 2)"),
    (aten.pow.Scalar, [2, A], {}, "torch.pow(2, x)"),
    (aten.where.ScalarOther, [A, B, 0.0], {}, "torch.where(x, y, 0.0)"),
    (aten.split.Tensor, [A, 2, 1], {}, "split_Tensor(x, 2, 1)"),
]  # fmt: skip


def make(op: Any, args: list[Any], kwargs: dict[str, Any]) -> tuple[fx.Node, dict[fx.Node, str]]:
    """Return a node that calls ``op``, where a tuple stands for a tensor of that shape."""
    graph = fx.Graph()
    names: dict[fx.Node, str] = {}

    def operand(value: Any) -> Any:
        if isinstance(value, list):
            return [operand(item) for item in value]
        if not isinstance(value, tuple):
            return value
        node = graph.placeholder(f"p{len(names)}")
        is_mask = op is aten.where.ScalarOther and not names
        node.meta["val"] = torch.ones(value, dtype=torch.bool if is_mask else torch.float32)
        names[node] = "xyz"[len(names)]
        return node

    return graph.call_function(op, tuple(operand(arg) for arg in args), kwargs), names


@pytest.mark.parametrize(("op", "args", "kwargs", "text"), CASES)
def test_spellings(op: Any, args: list[Any], kwargs: dict[str, Any], text: str) -> None:
    writer = CallWriter()
    with FakeTensorMode():
        node, names = make(op, args, kwargs)
        assert writer.write(node, names) == text
        assert writer.write(node, names) == text  # the choice is kept
    assert writer.bound == ({bound_name(op): op} if text.startswith(bound_name(op)) else {})


@pytest.mark.parametrize(("op", "args", "kwargs", "text"), CASES)
def test_spellings_compute_what_the_op_does(
    op: Any, args: list[Any], kwargs: dict[str, Any], text: str
) -> None:
    node, names = make(op, args, kwargs)
    for operand in names:
        value = operand.meta["val"]
        drawn = torch.rand(value.shape, generator=torch.Generator().manual_seed(0))
        operand.meta["val"] = drawn > 0.5 if value.dtype == torch.bool else drawn
    given = fx.node.map_arg((node.args, node.kwargs), lambda value: value.meta["val"])
    scope = {name: operand.meta["val"] for operand, name in names.items()}
    scope |= {"torch": torch, "nn": torch._C._nn, "device": torch.device("cpu")}
    scope |= {"math": __import__("math"), bound_name(op): op._op}
    wanted, got = op(*given[0], **given[1]), eval(text, scope)
    wanted, got = ([v] if isinstance(v, Tensor) else list(v) for v in (wanted, got))
    for one, other in zip(wanted, got, strict=True):
        assert one.dtype == other.dtype
        assert torch.equal(one.nan_to_num(7.0), other.nan_to_num(7.0))


def test_a_spelling_is_chosen_for_dtypes_and_literals_not_only_for_ops() -> None:
    writer = CallWriter()
    with FakeTensorMode():
        first, names = make(aten._to_copy.default, [A], {"dtype": torch.bfloat16})
        second, others = make(aten._to_copy.default, [A], {"dtype": torch.float32})
        assert writer.write(first, names) == "x.to(torch.bfloat16)"
        assert writer.write(second, others) == "_to_copy_default(x, dtype=torch.float32)"


@pytest.mark.parametrize(
    ("value", "text"),
    [(NAN, "math.nan"), (-INF, "-math.inf"), (1e-5, "1e-05"), (None, "None"), (True, "True")],
)
def test_literals(value: object, text: str) -> None:
    assert literal(value) == text
