"""Ops that passes build have the types and facts that capture gives them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import pytest
import torch
from piper.frontend.exporter import export_kernel
from piper.frontend.torch_op import torch_op
from piper.mlir import ir
from piper.mlir.dialects import piper

Value = ir.Value[ir.Type]

KERNEL = """
piper.kernel @k$1(%x: tensor<4x8xf32>, %y: tensor<8xf32>) -> (tensor<4x8xf32>) {
  %t = torch "aten.t.default"(%x) facts <view, strided> : (tensor<4x8xf32>) -> tensor<8x4xf32>
  %z = torch "aten.neg.default"(%x) facts <pure, flops = 32> : (tensor<4x8xf32>) -> tensor<4x8xf32>
  return %z : tensor<4x8xf32>
}
"""


@pytest.fixture
def kernel() -> Iterator[piper.KernelOp]:
    with ir.Context(), ir.Location.unknown():
        module = ir.Module.parse(KERNEL)
        [op] = module.body.operations
        assert isinstance(op, piper.KernelOp)
        yield op


def built(kernel: piper.KernelOp, build: Callable[[Value, Value, Value], list[Value]]) -> str:
    """The text of the last op that was built in front of the return; the kernel is still valid."""
    block = kernel.body.blocks[0]
    view, _, returned = block.operations
    x, y = block.arguments
    with ir.InsertionPoint(returned):
        results = build(x, y, view.operation.results[0])
    assert kernel.operation.verify()
    return str(results[0].owner)


@pytest.mark.parametrize(
    ("build", "text"),
    [
        (
            lambda x, y, t: torch_op("aten.sub.Tensor", x, y, alpha=2),
            '"aten.sub.Tensor"(%, %, arg "alpha" = 2) facts <pure, flops = 32, rule = "a b, ',
        ),
        (
            lambda x, y, t: torch_op("aten.mm.default", x, t),
            '"aten.mm.default"(%, %) facts <pure, flops = 256, strided, heavy',
        ),
        (
            lambda x, y, t: torch_op("aten.cat.default", [x, x], 1),
            '"aten.cat.default"([%, %], 1) facts <pure, flops = 64',
        ),
        (
            lambda x, y, t: torch_op("aten.t.default", x),
            '"aten.t.default"(%) facts <view, strided',
        ),
        (
            lambda x, y, t: torch_op("aten.max.dim", x, 1),
            "-> (tensor<4xf32>, tensor<4xi64>)",
        ),
        (
            lambda x, y, t: torch_op("aten.sum.dim_IntList", x, [0], True, dtype=torch.float64),
            '"aten.sum.dim_IntList"(%, [0], true, dtype = f64) facts <pure, flops = 32',
        ),
        (
            lambda x, y, t: torch_op(
                "aten.add.Tensor", x, y, tag=ir.Attribute.parse('#piper.tag<"layer.0" B>')
            ),
            ' tag <"layer.0" B> : ',
        ),
    ],
)
def test_op(
    build: Callable[[Value, Value, Value], list[Value]], text: str, kernel: piper.KernelOp
) -> None:
    assert text in re.sub(r"%\w+", "%", built(kernel, build))


def test_what_was_built_computes(kernel: piper.KernelOp) -> None:
    block = kernel.body.blocks[0]
    returned = block.operations[2]
    x, y = block.arguments
    with ir.InsertionPoint(returned):
        [mean] = torch_op("aten.mean.dim", x, [1], True)
        [shifted] = torch_op("aten.sub.Tensor", x, mean)
        [product] = torch_op("aten.mul.Tensor", shifted, y)
    returned.operation.operands[0] = product
    a, b = torch.randn(4, 8), torch.randn(8)
    assert torch.equal(export_kernel(kernel)(a, b), (a - a.mean(1, keepdim=True)) * b)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("aten.sub", "torch_op expected a name such as 'aten.sub.Tensor', got 'aten.sub'"),
        ("aten.nonsense.default", "expected an op that torch knows, got 'aten.nonsense.default'"),
        ("aten.sym_size.int", "op aten.sym_size.int expected results that are tensors, got [4]"),
    ],
)
def test_refuses_other_ops(name: str, message: str, kernel: piper.KernelOp) -> None:
    with pytest.raises((ValueError, TypeError), match=re.escape(message)):
        built(kernel, lambda x, y, t: torch_op(name, x, 0))


@pytest.mark.parametrize(
    "type_",
    ["tensor<?x8xf32, #piper.layout<bound = 8>>", "tensor<4xf32, #piper.layout<dp = varying>>"],
)
def test_refuses_types_of_clusters(type_: str) -> None:
    text = f"""
    piper.mesh @mesh [dp = 2 manual]
    piper.chunk @a.0$F pass = F (%x: {type_}) -> ({type_}) {{ return %x : {type_} }}
    """
    with ir.Context(), ir.Location.unknown():
        module = ir.Module.parse(text)
        chunk = module.body.operations[1]
        assert isinstance(chunk, piper.ChunkOp)
        block = chunk.body.blocks[0]
        with (
            ir.InsertionPoint.at_block_begin(block),
            pytest.raises(ValueError, match="expected values of static shapes without layout, got"),
        ):
            torch_op("aten.neg.default", block.arguments[0])
