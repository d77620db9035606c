"""Captures in the dialect: valid modules, text that reads back, and graphs that are equal again."""

from __future__ import annotations

import operator
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from capture_models import WIDTH, Mlp, row_batch
from piper.frontend import Capture, CaptureError, capture, capture_eval
from piper.frontend.attributes import find_line
from piper.frontend.exporter import export_step, find_op, returns_tensor
from piper.frontend.importer import import_captures
from piper.frontend.simplify import simplify
from piper.mlir import ir
from piper.mlir.dialects import piper
from piper.strategy.mesh import Mesh
from step_models import MODELS, feed_of, step_of
from torch import Tensor, fx, nn

MESH = Mesh.of({"pp": 2, "dp": 2})


@pytest.fixture(autouse=True)
def context() -> Iterator[None]:
    with ir.Context():
        yield


def step(module: ir.Module, name: str = "train") -> piper.StepOp:
    return next(
        op for op in module.body if isinstance(op, piper.StepOp) and op.sym_name.value == name
    )


def torch_ops(module: ir.Module, name: str = "train") -> list[piper.TorchOp]:
    return [op for op in step(module, name).body.blocks[0] if isinstance(op, piper.TorchOp)]


def located(module: ir.Module) -> str:
    return str(module.operation.get_asm(enable_debug_info=True))


def row_loss(model: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
    loss: Tensor = (model(batch["x"]) ** 2).mean()
    return loss


def rows(model: nn.Module, take: Callable[..., Capture] = capture, **options: Any) -> Capture:
    settings: dict[str, Any] = {"annotations": {}, "microbatches": 2, "data_shards": 1, **options}
    return take(model.double(), row_loss, row_batch(), **settings)


class Of(nn.Module):
    """A function of a linear layer's result."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.fc = nn.Linear(WIDTH, WIDTH)
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self.fc(x))


def described(graph: fx.Graph) -> list[Any]:
    """Return the ops of a graph in order, with values by number."""
    value: dict[fx.Node, Any] = {}
    ops: list[Any] = []
    for node in graph.nodes:
        if node.target is operator.getitem:
            producer, position = node.args
            value[node] = f"{value[producer]}#{position}"
        elif node.op == "placeholder":
            value[node] = f"argument {len(value)}"
        elif node.op == "call_function":
            arguments = fx.node.map_arg((node.args, node.kwargs), value.__getitem__)
            value[node] = f"op {len(ops)}"
            ops.append((node.target, _plain(arguments)))
    return ops


def _plain(value: Any) -> Any:
    """Replace sequences by lists, and devices, which a program has one of."""
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    return "device" if isinstance(value, torch.device) else value


@pytest.mark.parametrize("simple", [False, True], ids=["as captured", "simplified"])
@pytest.mark.parametrize("name", MODELS)
def test_graph_is_equal_after_the_round_trip(name: str, simple: bool) -> None:
    captured = simplify(step_of(name)) if simple else step_of(name)
    module = import_captures([captured], mesh=MESH)
    text = located(module)
    again = ir.Module.parse(text)
    assert located(again) == text
    exported = export_step(step(again))
    assert described(exported.graph) == described(captured.graph)
    feed = feed_of(name)
    arguments = [feed[role] for role in captured.placeholders()]
    with torch.no_grad():
        expected, got = captured.module()(*arguments), exported(*arguments)
    for expected_part, part in zip(expected, got, strict=True):
        assert len(expected_part) == len(part)
        assert all(map(torch.equal, part, expected_part))


def test_states_are_declared_once_for_train_and_eval() -> None:
    captures = [step_of("gpt-sdpa-tied"), step_of("gpt-sdpa-tied", "eval")]
    module = import_captures(captures, mesh=MESH)
    states = [op for op in module.body if isinstance(op, piper.StateOp)]
    names = [op.sym_name.value for op in states]
    assert names == [spec.name for spec in captures[0].states]
    assert [op.sym_name.value for op in module.body if isinstance(op, piper.StepOp)] == [
        "train",
        "eval",
    ]
    assert str(step(module).attributes["batch"]) == "16 : i64"


def test_states_of_another_model_are_refused() -> None:
    other = Mlp()
    other.second = nn.Linear(WIDTH, WIDTH).requires_grad_(False)
    with pytest.raises(CaptureError, match=r"state 'second.weight' expected a name of its own"):
        import_captures([rows(Mlp()), rows(other, capture_eval)], mesh=MESH)


def test_frozen_parameters_and_constants() -> None:
    class Model(Of):
        def __init__(self) -> None:
            super().__init__(lambda x: x * torch.tensor([2.0] * WIDTH))
            self.fc.bias.requires_grad_(False)

    text = str(import_captures([rows(Model())], mesh=MESH))
    assert "@fc.bias parameter frozen" in " ".join(text.split())
    assert "constant" in text


def test_tangent_of_an_eval_step_scales_its_output() -> None:
    module = import_captures([rows(Mlp(), capture_eval)], mesh=MESH)
    ops = list(step(module, "eval").body.blocks[0])
    tangent = next(op for op in ops if isinstance(op, piper.TangentOp))
    output = next(op for op in ops if isinstance(op, piper.OutputOp))
    assert tangent.count is not None
    assert output.scale == tangent.result
    assert not any(isinstance(op, piper.GradOp) for op in ops)


def test_tangent_of_a_sum_has_no_count() -> None:
    captured = capture(
        Mlp().double(),
        lambda model, batch: model(batch["x"]).sum(),
        row_batch(),
        annotations={},
        microbatches=2,
        data_shards=1,
        dims={"y": None, "label": None},
    )
    module = import_captures([captured], mesh=MESH)
    tangent = next(op for op in step(module).body.blocks[0] if isinstance(op, piper.TangentOp))
    assert tangent.count is None
    assert list(step(module).dims) == [0, -1, -1]
    assert str(step(module).attributes["batch"]) == "8 : i64"


def test_operand_used_twice_stands_twice() -> None:
    module = import_captures([rows(Of(lambda x: torch.cat([x, x]) * 3))], mesh=MESH)
    cat = next(op for op in torch_ops(module) if op.op_name.value == "aten.cat.default")
    assert len(cat.inputs) == 2
    assert cat.inputs[0] == cat.inputs[1]


def test_results_that_are_none_are_left_out() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.LayerNorm(WIDTH)
            self.norm.weight.requires_grad_(False)
            self.fc = nn.Linear(WIDTH, WIDTH)

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = self.norm(self.fc(x))
            return y

    captured = rows(Model())
    module = import_captures([captured], mesh=MESH)
    name = "aten.native_layer_norm_backward.default"
    backward = next(op for op in torch_ops(module) if op.op_name.value == name)
    assert [str(result.type) for result in backward.operation.results] == [
        f"tensor<4x{WIDTH}xf64>",
        f"tensor<{WIDTH}xf64>",
    ]
    assert str(backward.attributes["positions"]) == "array<i64: 0, 2>"
    again = ir.Module.parse(str(module))
    exported = export_step(step(again))
    assert described(exported.graph) == described(captured.graph)


def test_locations_are_module_paths_and_relative_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(__file__).parent)
    module = import_captures([rows(Mlp())], mesh=MESH)
    addmm = [op for op in torch_ops(module) if op.op_name.value == "aten.addmm.default"]
    assert [op.location.name_str for op in addmm] == ["first", "second"]
    line = find_line(addmm[0].location)
    assert line is not None
    assert line[0] == "capture_models.py"


def test_arguments_that_no_program_can_hold_are_refused() -> None:
    captured = rows(Of(lambda x: torch.view_as_real(x * 1j)))
    with pytest.raises(
        CaptureError, match=r"test_importer.py:\d+.*got an argument of type complex"
    ):
        import_captures([captured], mesh=MESH)


@pytest.fixture
def halves() -> Iterator[Callable[[Tensor], tuple[Tensor, list[Tensor]]]]:
    """An op of two results, of which one is a list of tensors."""
    with torch.library._scoped_library("piper_test", "DEF") as library:
        library.define("halves(Tensor x) -> (Tensor, Tensor[])")
        library.impl("halves", lambda x: (x * 2, [x + 1, x + 2]), "CompositeExplicitAutograd")
        name = "piper_test::halves"
        torch.library.register_autograd(name, lambda _, d, ds: d * 2 + ds[0] + ds[1], lib=library)
        yield torch.ops.piper_test.halves.default


def test_results_that_are_no_tensors_are_refused_if_used(
    halves: Callable[[Tensor], tuple[Tensor, list[Tensor]]],
) -> None:
    def lists(x: Tensor) -> Tensor:
        whole, (first, _) = halves(x)
        return whole + first

    message = (
        r"test_importer\.py:\d+.*: op piper_test\.halves\.default expected only tensors to be used, "
        "got result 1"
    )
    with pytest.raises(CaptureError, match=message):
        import_captures([rows(Of(lists), microbatches=1)], mesh=MESH)


def test_unknown_ops_are_refused() -> None:
    assert returns_tensor(find_op("aten.mm.default"))
    assert not returns_tensor(find_op("aten.split.Tensor"))
    with pytest.raises(ValueError, match=r"an op that torch knows, got 'aten\.nothing\.x'"):
        find_op("aten.nothing.x")


_PRINT = """
import sys
sys.path.insert(0, sys.argv[1])
from piper.frontend.importer import import_captures
from piper.mlir import ir
from piper.strategy.mesh import Mesh
from step_models import step_of
with ir.Context():
    module = import_captures([step_of("gpt")], mesh=Mesh.of({"pp": 2, "dp": 2}))
    print(module.operation.get_asm(enable_debug_info=True))
"""


def test_text_is_the_same_in_another_process() -> None:
    run = subprocess.run(
        [sys.executable, "-c", _PRINT, str(Path(__file__).parent)],
        env={**os.environ, "PYTHONHASHSEED": "7"},
        capture_output=True,
        text=True,
        check=True,
    )
    module = import_captures([step_of("gpt")], mesh=MESH)
    assert run.stdout == located(module) + "\n"
