"""Fewer views read the same elements."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from piper.emit.views import fold_views
from torch import Tensor, fx
from torch._subclasses.fake_tensor import FakeTensorMode

aten = torch.ops.aten
Build = Callable[[fx.Graph, fx.Node], Any]


def graph_of(shape: tuple[int, ...], build: Build) -> fx.Graph:
    """Return a graph of one argument with fake results, as emission has it."""
    graph = fx.Graph()
    graph.output(build(graph, graph.placeholder("x")))
    with FakeTensorMode():
        for node in graph.nodes:
            if node.op == "placeholder":
                node.meta["val"] = torch.empty(shape)
            elif node.op == "call_function":
                args = fx.node.map_arg(node.args, lambda arg: arg.meta["val"])
                node.meta["val"] = node.target(*args)
    return graph


def texts(graph: fx.Graph) -> list[str]:
    fold_views(graph)
    graph.lint()
    calls = [node for node in graph.nodes if node.op == "call_function"]
    return [f"{node.target}{node.args}" for node in calls]


def call(graph: fx.Graph, op: Any, *args: Any) -> fx.Node:
    return graph.call_function(op, args)


def chain(*steps: tuple[Any, ...]) -> Build:
    """Return views of views, then a relu."""

    def build(graph: fx.Graph, value: fx.Node) -> fx.Node:
        for op, *args in steps:
            value = call(graph, op, value, *args)
        return call(graph, aten.relu.default, value)

    return build


@pytest.mark.parametrize(
    ("steps", "left"),
    [
        (
            [(aten.view.default, [8]), (aten.view.default, [4, -1])],
            ["aten.view.default(x, [4, 2])"],
        ),
        ([(aten.view.default, [8]), (aten._unsafe_view.default, [2, 4])], []),
        ([(aten.t.default,), (aten.t.default,)], []),
        (
            [(aten.unsqueeze.default, 1), (aten.view.default, [8])],
            ["aten.view.default(x, [8])"],
        ),
        ([(aten.unsqueeze.default, 0), (aten.squeeze.dim, 0)], []),
        (
            [(aten.transpose.int, 0, 1), (aten.unsqueeze.default, 0)],
            ["aten.transpose.int(x, 0, 1)", "aten.unsqueeze.default(transpose_int, 0)"],
        ),
        (
            [(aten.t.default,), (aten.reshape.default, [8]), (aten.view.default, [2, 4])],
            ["aten.t.default(x,)", "aten.reshape.default(t_default, [2, 4])"],
        ),
    ],
)
def test_chains(steps: list[tuple[Any, ...]], left: list[str]) -> None:
    assert texts(graph_of((2, 4), chain(*steps)))[:-1] == left


def test_equal_views_are_one_and_dead_ones_are_gone() -> None:
    def build(graph: fx.Graph, x: fx.Node) -> tuple[fx.Node, ...]:
        call(graph, aten.t.default, x)
        views = [call(graph, aten.view.default, x, [8]) for _ in range(2)]
        return tuple(call(graph, aten.relu.default, view) for view in views)

    assert texts(graph_of((2, 4), build)) == [
        "aten.view.default(x, [8])",
        "aten.relu.default(view_default,)",
        "aten.relu.default(view_default,)",
    ]


def test_a_copy_that_others_read_stays() -> None:
    def build(graph: fx.Graph, x: fx.Node) -> tuple[fx.Node, ...]:
        copy = call(graph, aten.reshape.default, call(graph, aten.t.default, x), [8])
        view = call(graph, aten.view.default, copy, [2, 4])
        return call(graph, aten.relu.default, copy), call(graph, aten.relu.default, view)

    assert "aten.view.default(reshape_default, [2, 4])" in texts(graph_of((2, 4), build))


SHAPES = [[24], [2, 12], [2, 3, 4], [4, 6], [1, 24], [2, 1, 3, 4], [6, 4], [24, 1]]


@st.composite
def steps(draw: st.DrawFn) -> list[tuple[Any, ...]]:
    """Draw views that are possible one after the other."""
    value, drawn = torch.arange(24.0).view(2, 3, 4), []
    for _ in range(draw(st.integers(1, 6))):
        first, last = 0, value.dim() - 1
        options: list[tuple[Any, ...]] = [
            (aten.unsqueeze.default, draw(st.integers(first, last))),
            (aten.transpose.int, first, last),
            (aten.slice.Tensor, draw(st.integers(first, last)), 0, 9223372036854775807),
            (aten.squeeze.default,),
            (aten.reshape.default, draw(st.sampled_from(SHAPES))),
            (aten.view.default, draw(st.sampled_from(SHAPES))),
        ]
        step = draw(st.sampled_from(options))
        try:
            copied = step[0] is aten.reshape.default and _is_view(value, step[1])
            value = step[0](value, *step[1:])
        except RuntimeError:
            continue
        drawn.append((aten.view.default, step[1]) if copied else step)
    return drawn


def _is_view(value: Tensor, shape: list[int]) -> bool:
    """Return whether a reshape would not copy: emission writes one only where it does."""
    return value.reshape(shape).data_ptr() == value.data_ptr()


@settings(max_examples=100)
@given(steps())
def test_any_chain_keeps_its_value_and_does_not_grow(drawn: list[tuple[Any, ...]]) -> None:
    graph = graph_of((2, 3, 4), chain(*drawn))
    x = torch.arange(24.0).view(2, 3, 4)
    before = len(graph.nodes)
    wanted = fx.GraphModule(torch.nn.Module(), graph)(x)
    texts(graph)
    got = fx.GraphModule(torch.nn.Module(), graph)(x)
    assert torch.equal(got, wanted)
    assert got.stride() == wanted.stride()
    assert len(graph.nodes) <= before
