"""Which value of the backward pass is said to be the cotangent of which that chunks pass on."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from piper.frontend import Capture, Role, capture
from piper.frontend.bias import separate_biases
from piper.frontend.cotangents import COTANGENTS, PRIMALS
from piper.frontend.data import role, tag_of
from piper.frontend.importer import import_captures
from piper.frontend.simplify import simplify
from piper.mlir import ir
from piper.strategy.mesh import Mesh
from step_models import MODELS, feed_of, step_of
from torch import Tensor, fx, nn

ROWS, WIDTH = 4, 6


def noted(captured: Capture, key: str) -> dict[int, list[fx.Node]]:
    """The nodes on which each number is noted."""
    found: dict[int, list[fx.Node]] = {}
    for node in captured.graph.nodes:
        for number in node.meta.get(key, ()):
            found.setdefault(number, []).append(node)
    return found


class Values(fx.Interpreter):
    """Runs a captured step, and keeps every value; ops of the backward pass see no autograd."""

    def __init__(self, captured: Capture) -> None:
        super().__init__(captured.module())
        self.values: dict[fx.Node, Any] = {}

    def run_node(self, n: fx.Node) -> Any:
        is_backward = n.op == "call_function" and tag_of(n).pass_ == "B"
        with torch.set_grad_enabled(not is_backward):
            value = self.values[n] = super().run_node(n)
        if isinstance(value, Tensor) and value.grad_fn is not None:
            value.retain_grad()
        return value


def check(captured: Capture, feed: dict[Role, Tensor]) -> int:
    """Compare noted cotangents with the gradients that autograd finds; return how many."""
    run = Values(captured)
    placeholders = captured.placeholders()
    for found, value in feed.items():
        if found.kind == "state" and value.is_floating_point():
            feed[found] = value.detach().clone().requires_grad_()
    run.run(*(feed[role(node)] for node in placeholders.values()))
    (loss,) = captured.losses
    assert loss.tangent is not None
    run.values[loss.value].backward(feed[role(loss.tangent)])
    cotangents = noted(captured, COTANGENTS)
    primals = noted(captured, PRIMALS)
    assert primals.keys() == cotangents.keys()
    for number, (primal,) in primals.items():
        expected = run.values[primal].grad
        assert expected is not None
        assert any(
            expected.shape == value.shape and torch.allclose(value, expected, rtol=1e-4, atol=1e-6)
            for value in (run.values[node] for node in cotangents[number])
        ), (primal, cotangents[number])
    return len(primals)


@pytest.mark.parametrize("name", MODELS)
def test_a_cotangent_is_what_autograd_says(name: str) -> None:
    """Every value that a chunk passes on to another chunk's forward pass has its gradient."""
    captured = step_of(name)
    assert check(captured, feed_of(name)) >= len(captured.chunks) - 1


class Halves(nn.Linear):
    """A linear layer that returns a pair of views."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        left, right = super().forward(x).chunk(2, dim=-1)
        return left, right


class Joined(nn.Linear):
    """A linear layer whose result is scaled by a pair."""

    def forward(self, x: Tensor, pair: tuple[Tensor, Tensor]) -> Tensor:  # type: ignore[override]
        y: Tensor = super().forward(x) * torch.cat(pair[::-1], dim=-1)
        return y


class Net(nn.Module):
    """Blocks, of which the first goes to all others, and a pair from the second to the third."""

    def __init__(self) -> None:
        super().__init__()
        kinds = (nn.Linear, Halves, Joined, nn.Linear)
        self.blocks = nn.ModuleList(kind(WIDTH, WIDTH) for kind in kinds)

    def forward(self, x: Tensor) -> Tensor:
        first = self.blocks[0](x)
        third = self.blocks[2](first, self.blocks[1](first))
        y: Tensor = self.blocks[3](third + first)
        return y


def loss_of(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    loss: Tensor = (model(batch["x"]) ** 2).sum()
    return loss


def net() -> tuple[Capture, dict[Role, Tensor]]:
    torch.manual_seed(0)
    model = Net()
    batch = {"x": torch.randn(ROWS, WIDTH)}
    captured = capture(
        model, loss_of, batch, annotations={"blocks.*": "block"}, microbatches=1, data_shards=1
    )
    feed = {Role("state", name): value for name, value in model.named_parameters()}
    return captured, {
        **feed,
        Role("input", "x"): batch["x"],
        Role("tangent", "loss"): torch.tensor(0.5),
    }


def test_a_value_with_several_users_has_terms() -> None:
    """Chunks pass on sums so far; what is the cotangent of a later value is known as that."""
    captured, feed = net()
    assert check(captured, feed) == 5  # the first, the second and a pair of its views, the sum
    first = noted(captured, PRIMALS)[0]
    assert [str(tag_of(node)) for node in first] == ["block.0$F"]
    terms = noted(captured, COTANGENTS)[0]
    assert {str(tag_of(node)) for node in terms} == {"block.2$B", "block.1$B"}


@pytest.mark.parametrize("change", [simplify, separate_biases])
def test_what_changes_the_graph_keeps_what_is_noted(change: Any) -> None:
    captured, feed = net()
    before = len(noted(captured, PRIMALS))
    assert check(change(captured), feed) == before


def test_a_step_has_a_list_for_each_result() -> None:
    """The pair are the results of one op, which makes views."""
    captured, _ = net()
    with ir.Context():
        module = import_captures([captured], mesh=Mesh.of({"pp": 1}))
        step = next(op for op in module.body if op.operation.name == "piper.step")
        lists = {
            name: [
                str(op.attributes[name])
                for op in step.regions[0].blocks[0]
                if name in op.operation.attributes
            ]
            for name in (PRIMALS, COTANGENTS)
        }
    assert lists[PRIMALS] == ["[[0]]", "[[1]]", "[[2], [3]]", "[[4]]"]
    assert sorted(lists[COTANGENTS]) == ["[[0]]"] * 4 + [f"[[{n}]]" for n in range(1, 5)]


def test_values_within_a_chunk_are_not_noted() -> None:
    torch.manual_seed(0)
    captured = capture(
        Net(),
        loss_of,
        {"x": torch.randn(ROWS, WIDTH)},
        annotations={"": "all"},
        microbatches=1,
        data_shards=1,
    )
    assert not noted(captured, PRIMALS)
    assert not noted(captured, COTANGENTS)
