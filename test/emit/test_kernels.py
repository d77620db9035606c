"""The text of kernels computes, bit for bit, what the graphs of the kernels do."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
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

from __future__ import annotations

import math

import torch

nn = torch._C._nn
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
# Ops that torch has no function for.
full_default = torch.ops.aten.full.default._op


def addmm_7c1e(a0: float32[4, 2], a1: float32[3, 2], a2: float32[3]):
    v0 = torch.addmm(a2, a0, a1.t())  # model.py:14
    v1 = torch.clamp(v0, -math.inf)  # lib/layer.py:15
    v2 = torch.max(v1, 1)[0]; del v1  # model.py:16
    v3 = full_default([], 0.1, device=device, dtype=torch.float32, layout=torch.strided, \
pin_memory=False)
    v4 = torch.sum(v2, dtype=torch.float32); del v2
    v5 = v4 + v3
    return v0, v5
"""


def test_text_of_a_kernel() -> None:
    assert emit_kernels(ir.Module.parse(LINEAR)) == HEADER + LINEAR_TEXT
    page = Path(__file__).parents[2] / "docs" / "kernels.md"
    assert LINEAR_TEXT[LINEAR_TEXT.index("def ") :] in page.read_text()


def lines(text: str) -> list[str]:
    """Return the lines of the only function of a module of kernels, without comments."""
    emitted = emit_kernels(ir.Module.parse(text))
    function = emitted[emitted.index("\ndef ") :].strip()
    return [line.partition("  #")[0].strip() for line in function.splitlines()]


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
        "def norm_0(a0: float32[4, 8]):",
        "v0, _, v1 = torch.native_layer_norm(a0, [8], None, None, 1e-05); del _",
        "v2 = torch.relu(v0)",
        "return v2, v1",
    ]


NORM_BACKWARD = """
    !x = tensor<4x8xf32>
    !s = tensor<4x1xf32>
    !w = tensor<8xf32>
    piper.kernel @norm$0(%dy: !x, %x: !x, %m: !s, %r: !s, %w: !w, %b: !w) -> (!x, !w) {
      %0, %1 = torch "aten.native_layer_norm_backward.default"(%dy, %x, [8], %m, %r, %w, %b,
          [true, false, true]) facts <pure> {positions = array<i64: 0, 2>}
          : (!x, !x, !s, !s, !w, !w) -> (!x, !w)
      return %0, %1 : !x, !w
    }"""


def test_results_that_are_none_keep_the_places_of_others() -> None:
    assert lines(NORM_BACKWARD)[4].startswith("v0, _, v1 = native_layer_norm_backward_default(a0, ")


def test_ops_without_a_function_are_bound_once_in_front() -> None:
    text = emit_kernels(ir.Module.parse(NORM_BACKWARD))
    name = "native_layer_norm_backward"
    bound = f"{name}_default = torch.ops.aten.{name}.default._op\n"
    assert text.startswith(
        f"{HEADER}\n# Ops that torch has no function for.\n{bound}\n\ndef norm_0("
    )


def test_long_signatures_are_broken_between_arguments() -> None:
    assert lines(NORM_BACKWARD)[:4] == [
        "def norm_0(",
        "a0: float32[4, 8], a1: float32[4, 8], a2: float32[4, 1], a3: float32[4, 1], a4: float32[8],",
        "a5: float32[8],",
        "):",
    ]


def test_views_that_contiguous_arguments_forbid_are_reshapes() -> None:
    assert lines("""
    piper.kernel @relu$0(%x: tensor<2x3xf32>) -> (tensor<6xf32>, tensor<3x2xf32>) {
      %0 = torch "aten.t.default"(%x) facts <view> : (tensor<2x3xf32>) -> tensor<3x2xf32>
      %1 = torch "aten.view.default"(%0, [6]) facts <view> : (tensor<3x2xf32>) -> tensor<6xf32>
      %2 = torch "aten.relu.default"(%1) facts <pure> : (tensor<6xf32>) -> tensor<6xf32>
      %3 = torch "aten.relu.default"(%0) facts <pure> : (tensor<3x2xf32>) -> tensor<3x2xf32>
      return %2, %3 : tensor<6xf32>, tensor<3x2xf32>
    }""") == [
        "def relu_0(a0: float32[2, 3]):",
        "v0 = a0.t()",
        "v1 = v0.reshape(6)",
        "v2 = torch.relu(v1); del v1",
        "v3 = torch.relu(v0)",
        "return v2, v3.contiguous()",
    ]


def test_a_value_lives_as_long_as_the_views_that_stand_in_for_it() -> None:
    assert lines("""
    !x = tensor<2x3xf32>
    !t = tensor<3x2xf32>
    piper.kernel @mm$0(%x: !x) -> (tensor<3x3xf32>, tensor<3x3xf32>) {
      %0 = torch "aten.relu.default"(%x) facts <pure> : (!x) -> !x
      %1 = torch "aten.t.default"(%0) facts <view> : (!x) -> !t
      %2 = torch "aten.tanh.default"(%x) facts <pure> : (!x) -> !x
      %3 = torch "aten.mm.default"(%1, %2) facts <pure> : (!t, !x) -> tensor<3x3xf32>
      %4 = torch "aten.neg.default"(%3) facts <pure> : (tensor<3x3xf32>) -> tensor<3x3xf32>
      return %3, %4 : tensor<3x3xf32>, tensor<3x3xf32>
    }""") == [
        "def mm_0(a0: float32[2, 3]):",
        "v0 = torch.relu(a0)",
        "v1 = torch.tanh(a0)",
        "v2 = torch.mm(v0.t(), v1); del v0, v1",
        "v3 = -v2",
        "return v2, v3",
    ]


def test_ops_of_other_namespaces_scalars_and_no_results() -> None:
    text = """
    piper.kernel @any$0(%x: tensor<f32>) {
      %0 = torch "prims.sin.default"(%x) facts <pure> : (tensor<f32>) -> tensor<f32>
      return
    }"""
    assert lines(text) == [
        "def any_0(a0: float32[()]):",
        "v0 = prims_sin_default(a0)",
        "return None",
    ]
    assert load(emit_kernels(ir.Module.parse(text)))["any_0"](torch.ones(())) is None


def test_text_is_the_same_for_a_module_that_was_printed() -> None:
    module = outlined("gpt")
    again = ir.Module.parse(str(module.operation.get_asm(enable_debug_info=True)))
    assert emit_kernels(again) == emit_kernels(module)
