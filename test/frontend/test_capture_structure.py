"""What a capture says: chunks, passes, states, contributions and source lines."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any

import torch
from capture_models import GPT_TAGS, WIDTH, Gpt, Mlp, row_batch, token_batch, token_loss
from piper.frontend import Capture, Tag, annotate_context, capture
from piper.frontend.data import site_of, tag_of
from torch import Tensor, nn
from torch._ops import OpOverload
from torch.nn import functional


def square_loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    loss: Tensor = (model(batch["x"]) ** 2).mean()
    return loss


def rows(
    model: nn.Module, loss_fn: Callable[[Any, Any], Tensor] = square_loss, **options: Any
) -> Capture:
    settings: dict[str, Any] = {"annotations": {}, "microbatches": 2, "data_shards": 1, **options}
    return capture(model.double(), loss_fn, row_batch(), **settings)


@functools.cache
def gpt(**options: Any) -> Capture:
    return capture(
        Gpt(**options),
        token_loss,
        token_batch(),
        annotations=GPT_TAGS,
        microbatches=2,
        data_shards=2,
    )


def text(captured: Capture) -> list[str]:
    return [
        f"{node.format_node()} {node.meta.get('tag')} {node.meta.get('site')}"
        for node in captured.graph.nodes
    ]


def tags_of(captured: Capture, op: object) -> list[str]:
    return [str(tag_of(node)) for node in captured.ops() if node.target is op]


def test_chunks_are_numbered_per_tag_in_forward_order() -> None:
    captured = gpt()
    assert captured.chunks == ("first.0", "layer.0", "layer.1", "last.0", "last.1")


def test_chunks_are_convex() -> None:
    captured = gpt(tied=True)
    number = {name: place for place, name in enumerate(captured.chunks)}
    for node in captured.ops():
        tag = tag_of(node)
        if tag.pass_ == "P":
            continue
        for arg in node.all_input_nodes:
            if arg.op != "call_function" or tag_of(arg).pass_ != tag.pass_:
                continue
            earlier, later = number[tag_of(arg).chunk], number[tag.chunk]
            assert earlier <= later if tag.pass_ == "F" else earlier >= later


def test_masks_are_preamble_and_the_count_is_the_loss() -> None:
    captured = gpt()
    ne = [str(tag_of(node)) for node in captured.ops() if node.target is torch.ops.aten.ne.Scalar]
    assert ne == ["preamble$P", "loss$P"]
    count = captured.losses[0].count
    assert count is not None
    assert tag_of(count) == Tag("loss", "P")
    assert count.meta["val"].dtype == torch.int64


def test_tied_weight_is_one_state_with_one_contribution_per_chunk() -> None:
    captured = gpt(tied=True)
    embed = next(spec for spec in captured.states if spec.name == "embed.token.weight")
    assert embed.aliases == ("head.weight",)
    chunks = [part.tag.chunk for part in captured.gradients if part.state == embed.name]
    assert sorted(chunks) == ["first.0", "last.1"]


def test_every_op_has_a_line_of_user_code() -> None:
    for node in gpt().ops():
        site = site_of(node)
        assert site.file.endswith("capture_models.py"), node
        assert site.line > 0
        assert "val" in node.meta


def test_backward_ops_have_the_line_of_their_forward_op() -> None:
    captured = gpt()
    lines = {
        pass_: {site_of(node).line for node in captured.ops() if tag_of(node).pass_ == pass_}
        for pass_ in ("F", "B")
    }
    assert lines["B"] <= lines["F"]


def test_model_is_not_touched() -> None:
    model = Mlp()
    before = {name: (id(p), p.clone()) for name, p in model.named_parameters()}
    rows(model)
    assert model.training
    for name, parameter in model.named_parameters():
        assert id(parameter) == before[name][0]
        assert torch.equal(parameter, before[name][1])
        assert parameter.grad is None


def test_meta_model_and_repeated_capture_give_the_same_text() -> None:
    def captured() -> list[str]:
        model = Gpt(tied=True, layers=1)
        return text(
            capture(
                model,
                token_loss,
                token_batch(),
                annotations=GPT_TAGS,
                microbatches=2,
                data_shards=2,
            )
        )

    with torch.device("meta"):
        on_meta = captured()
    assert on_meta == captured()


def test_inputs_have_the_shape_of_one_microbatch() -> None:
    captured = rows(Mlp(), dims={"y": None}, microbatches=2, data_shards=2)
    assert [(spec.name, spec.shape, spec.dim) for spec in captured.inputs] == [
        ("x", (2, WIDTH), 0),
        ("y", (8, WIDTH), None),
        ("label", (2,), 0),
    ]


class Looped(nn.Module):
    """One layer called three times, with or without context entries."""

    def __init__(self, marked: bool) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)
        self.marked = marked

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(3):
            if self.marked:
                with annotate_context("turn"):
                    x = functional.relu(self.layer(x))
            else:
                x = functional.relu(self.layer(x))
        return x


def test_calls_of_one_module_are_occurrences() -> None:
    captured = rows(Looped(marked=False), annotations={"layer": "turn"})
    assert captured.chunks == ("turn.0", "turn.1", "turn.2")
    assert tags_of(captured, torch.ops.aten.relu.default) == ["turn.0$F", "turn.1$F", "turn.2$F"]


def test_context_entries_are_occurrences() -> None:
    captured = rows(Looped(marked=True))
    assert captured.chunks == ("turn.0", "turn.1", "turn.2")
    shared = [part.tag.chunk for part in captured.gradients if part.state == "layer.weight"]
    assert sorted(shared) == ["turn.0", "turn.1", "turn.2"]


def test_outermost_annotation_wins() -> None:
    class Nested(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = Looped(marked=True)
            self.b = Looped(marked=True)

        def forward(self, x: Tensor) -> Tensor:
            x = self.a(x)
            with annotate_context("outer"):
                x = self.b(x)
                return x + 1

    captured = rows(Nested(), annotations={"a": "whole", "b": "inner"})
    assert captured.chunks == ("whole.0", "outer.0")


def test_model_without_annotations_is_one_chunk() -> None:
    assert rows(Mlp()).chunks == ("model.0",)


def test_untagged_ops_join_their_latest_producer() -> None:
    captured = rows(Mlp(), annotations={"*": "layer"})
    assert tags_of(captured, torch.ops.aten.relu.default) == ["layer.0$F"]
    assert tags_of(captured, torch.ops.aten.sum.default) == ["layer.1$F"]


class Extras(nn.Module):
    """A constant, an unused parameter and buffer, and a skip from the first value to the last."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.second = nn.Linear(WIDTH, WIDTH)
        self.last = nn.Linear(WIDTH, WIDTH)
        self.unused = nn.Parameter(torch.zeros(3))
        self.scale = torch.full((WIDTH,), 2.0, dtype=torch.float64)
        self.register_buffer("extra", torch.zeros(2))

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x) * self.scale
        y = self.second(x) + torch.tensor([1.0] * WIDTH)
        z: Tensor = self.last(x + y)
        return z


def test_constants_are_states_with_values() -> None:
    captured = rows(Extras(), annotations={"*": "layer"})
    constants = [spec for spec in captured.states if spec.kind == "constant"]
    assert all(spec.name.startswith("const$") and not spec.trainable for spec in constants)
    values = [spec.value for spec in constants]
    assert any(value is not None and value.tolist() == [2.0] * WIDTH for value in values)
    assert any(value is not None and value.tolist() == [1.0] * WIDTH for value in values)


def test_unused_states_are_listed() -> None:
    assert rows(Extras(), annotations={"*": "layer"}).unused == ("unused", "extra")


def test_accumulation_of_a_skip_is_in_the_earliest_chunk_that_adds() -> None:
    captured = rows(Extras(), annotations={"*": "layer"})
    adds = [tag for tag in tags_of(captured, torch.ops.aten.add.Tensor) if tag.endswith("$B")]
    assert adds == ["layer.1$B"]


def test_two_parameters_may_share_a_contribution() -> None:
    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Parameter(torch.zeros(WIDTH))
            self.b = nn.Parameter(torch.zeros(WIDTH))

        def forward(self, x: Tensor) -> Tensor:
            return x * (self.a + self.b)

    captured = rows(Shared())
    parts = {part.state: part.node for part in captured.gradients}
    assert parts["a"] is parts["b"]


def test_results_are_functional_and_live() -> None:
    captured = gpt()
    for node in captured.ops():
        assert node.users, node
        if isinstance(node.target, OpOverload):
            assert not node.target._schema.is_mutable
        else:
            assert node.target is operator.getitem
