"""The text of kernels computes, bit for bit, what the graphs of the kernels do."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
from piper.emit import emit_kernels
from piper.emit.names import identifier
from piper.emit.strides import reshape_where_needed
from piper.frontend.exporter import export_kernel
from piper.frontend.importer import import_captures
from piper.frontend.simplify import simplify
from piper.mlir import ir
from piper.mlir.dialects import piper
from piper.mlir.passmanager import PassManager
from piper.strategy.mesh import Mesh
from run_outlined import OutlinedStep
from step_models import MODELS, feed_of, step_of
from torch import Tensor


@pytest.fixture(autouse=True)
def context() -> Iterator[None]:
    with ir.Context():
        yield


def outlined(name: str) -> ir.Module:
    mesh = Mesh.of({"pp": 2, "dp": 2})
    module = import_captures([simplify(step_of(name))], mesh=mesh)
    PassManager.parse("builtin.module(piper-outline-chunks)").run(module.operation)
    return module


def load(text: str) -> dict[str, Any]:
    functions: dict[str, Any] = {}
    exec(compile(text, "kernels.py", "exec"), functions)  # noqa: S102
    return functions


def kernels_of(module: ir.Module) -> dict[str, piper.KernelOp]:
    return {op.sym_name.value: op for op in module.body if isinstance(op, piper.KernelOp)}


@pytest.mark.parametrize("name", MODELS)
def test_kernels_equal_their_graphs_and_the_step_its_capture(name: str) -> None:
    module = outlined(name)
    functions, kernels = load(emit_kernels(module)), kernels_of(module)

    def launch(symbol: str, arguments: Sequence[Tensor]) -> Any:
        results = functions[identifier(symbol)](*arguments)
        exported = export_kernel(kernels[symbol])
        reshape_where_needed(exported.graph, [argument.type for argument in _arguments(symbol)])
        exported.recompile()
        expected = exported(*arguments)
        for got, wanted in zip(_listed(results), _listed(expected), strict=True):
            assert got.is_contiguous()
            assert torch.equal(got, wanted)
        _check_storages([*arguments, *_listed(results)], len(arguments))
        return results

    def _arguments(symbol: str) -> Any:
        return kernels[symbol].body.blocks[0].arguments

    feed = feed_of(name)
    run = OutlinedStep(module, feed, launch)
    with torch.no_grad():
        run.run(next(op for op in module.body if isinstance(op, piper.StepOp)))
        captured = step_of(name)
        values, counts, parts = captured.module()(*(feed[role] for role in captured.placeholders()))
    assert run.loss is not None
    assert torch.equal(run.loss, values[0])
    assert run.count is not None
    assert torch.equal(run.count, counts[0])
    expected: dict[str, Tensor] = {}
    for contribution, part in zip(captured.gradients, parts, strict=True):
        known = expected.get(contribution.state)
        expected[contribution.state] = part if known is None else known + part
    assert run.gradients.keys() == expected.keys()
    for state, gradient in run.gradients.items():
        assert torch.equal(gradient, expected[state]), state


def _listed(results: Any) -> list[Tensor]:
    return [results] if isinstance(results, Tensor) else list(results)


def _check_storages(tensors: Sequence[Tensor], num_arguments: int) -> None:
    """Check that each result has a storage of its own."""
    storages = [tensor.untyped_storage().data_ptr() for tensor in tensors if tensor.numel()]
    results = storages[num_arguments:]
    assert len(set(results)) == len(results)
    assert not set(results) & set(storages[:num_arguments])


HEADER = '''"""Kernels: pure functions of tensors, one for each distinct computation of the program."""

import math

import torch

aten = torch.ops.aten
device = torch.device("cpu")  # the loader sets the rank's
'''

LINEAR = """
!x = tensor<4x2xf32>
!w = tensor<3x2xf32>
!y = tensor<4x3xf32>
!s = tensor<f32>
piper.kernel @addmm$7c1e(%x: !x, %w: !w, %b: tensor<3xf32>) -> (!y, !s) {
  %0 = torch "aten.t.default"(%w) facts <view> : (!w) -> tensor<2x3xf32> loc("model.py":14:0)
  %1 = torch "aten.addmm.default"(%b, %x, %0) facts <pure>
      : (tensor<3xf32>, !x, tensor<2x3xf32>) -> !y loc("fc"("model.py":14:0))
  %2 = torch "aten.clamp.default"(%1, #piper.const<"-math.inf">, none) facts <pure>
      : (!y) -> !y loc("/x/site-packages/lib/layer.py":15:0)
  %3, %4 = torch "aten.max.dim"(%2, 1, false) facts <pure>
      : (!y) -> (tensor<4xf32>, tensor<4xi64>) loc("model.py":16:0)
  %5 = torch "aten.full.default"([], 0.1, dtype = f32, device = #piper.device<rank>,
      layout = #piper.const<"torch.strided">, pin_memory = false) facts <pure>
      : () -> !s loc("model.py":16:0)
  %6 = torch "aten.sum.default"(%3, dtype = f32) facts <pure>
      : (tensor<4xf32>) -> !s loc("model.py":16:0)
  %7 = torch "aten.add.Tensor"(%6, %5) facts <pure> : (!s, !s) -> !s loc("model.py":16:0)
  return %1, %7 : !y, !s
}
"""
LINEAR_TEXT = """

def addmm_7c1e(a0, a1, a2):
    v0 = aten.t.default(a1)  # model.py:14
    v1 = aten.addmm.default(a2, a0, v0)
    v2 = aten.clamp.default(v1, -math.inf, None)  # lib/layer.py:15
    v3 = aten.max.dim(v2, 1, False)[0]; del v2  # model.py:16
    v4 = aten.full.default([], 0.1, device=device, dtype=torch.float32, layout=torch.strided, \
pin_memory=False)
    v5 = aten.sum.default(v3, dtype=torch.float32); del v3
    v6 = aten.add.Tensor(v5, v4)
    return v1, v6
"""


def test_text_of_a_kernel() -> None:
    assert emit_kernels(ir.Module.parse(LINEAR)) == HEADER + LINEAR_TEXT


def lines(text: str) -> list[str]:
    """Return the lines of the only function of a module of kernels, without comments."""
    emitted = emit_kernels(ir.Module.parse(text)).removeprefix(HEADER)
    return [line.partition("  #")[0].strip() for line in emitted.strip().splitlines()]


def test_results_that_nothing_uses_are_dropped_at_once() -> None:
    assert lines("""
    !x = tensor<4x8xf32>
    !s = tensor<4x1xf32>
    piper.kernel @norm$0(%x: !x) -> (!x, !s) {
      %0, %1, %2 = torch "aten.native_layer_norm.default"(%x, [8], none, none, 1.0e-05)
          facts <pure> : (!x) -> (!x, !s, !s)
      %3 = torch "aten.relu.default"(%0) facts <pure> : (!x) -> !x
      return %3, %2 : !x, !s
    }""") == [
        "def norm_0(a0):",
        "v0, _, v1 = aten.native_layer_norm.default(a0, [8], None, None, 1e-05); del _",
        "v2 = aten.relu.default(v0)",
        "return v2, v1",
    ]


def test_results_that_are_none_keep_the_places_of_others() -> None:
    assert lines("""
    !x = tensor<4x8xf32>
    !s = tensor<4x1xf32>
    !w = tensor<8xf32>
    piper.kernel @norm$0(%dy: !x, %x: !x, %m: !s, %r: !s, %w: !w, %b: !w) -> (!x, !w) {
      %0, %1 = torch "aten.native_layer_norm_backward.default"(%dy, %x, [8], %m, %r, %w, %b,
          [true, false, true]) facts <pure> {positions = array<i64: 0, 2>}
          : (!x, !x, !s, !s, !w, !w) -> (!x, !w)
      return %0, %1 : !x, !w
    }""")[1].startswith("v0, _, v1 = aten.native_layer_norm_backward.default(")


def test_views_that_contiguous_arguments_forbid_are_reshapes() -> None:
    assert lines("""
    piper.kernel @relu$0(%x: tensor<2x3xf32>) -> (tensor<6xf32>, tensor<3x2xf32>) {
      %0 = torch "aten.t.default"(%x) facts <view> : (tensor<2x3xf32>) -> tensor<3x2xf32>
      %1 = torch "aten.view.default"(%0, [6]) facts <view> : (tensor<3x2xf32>) -> tensor<6xf32>
      %2 = torch "aten.relu.default"(%1) facts <pure> : (tensor<6xf32>) -> tensor<6xf32>
      %3 = torch "aten.relu.default"(%0) facts <pure> : (tensor<3x2xf32>) -> tensor<3x2xf32>
      return %2, %3 : tensor<6xf32>, tensor<3x2xf32>
    }""") == [
        "def relu_0(a0):",
        "v0 = aten.t.default(a0)",
        "v1 = aten.reshape.default(v0, [6])",
        "v2 = aten.relu.default(v1); del v1",
        "v3 = aten.relu.default(v0)",
        "return v2, v3.contiguous()",
    ]


def test_ops_of_other_namespaces_and_no_results() -> None:
    assert lines("""
    piper.kernel @any$0(%x: tensor<2xf32>) {
      %0 = torch "prims.sin.default"(%x) facts <pure> : (tensor<2xf32>) -> tensor<2xf32>
      return
    }""") == ["def any_0(a0):", "v0 = torch.ops.prims.sin.default(a0)", "return None"]


def test_text_is_the_same_for_a_module_that_was_printed() -> None:
    module = outlined("gpt")
    again = ir.Module.parse(str(module.operation.get_asm(enable_debug_info=True)))
    assert emit_kernels(again) == emit_kernels(module)
