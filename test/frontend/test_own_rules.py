"""Rules that users register: what they may say, of which ops, and calls that they do not fit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import piper
import pytest
import torch
from piper.frontend import rules
from piper.frontend.rules import rule_of
from torch import Tensor, fx
from torch._ops import OpOverload

LIBRARY = torch.library.Library("own_rules", "DEF")  # type: ignore[no-untyped-call]
PAIRED = "Tensor x, int rows, int[] sizes"
TOLD = "Tensor index, int parts, int size"
for schema in (
    "affine(Tensor x, Tensor w, Tensor? b, float scale) -> Tensor",
    f"pair({PAIRED}) -> (Tensor, Tensor)",
    f"pair_part({PAIRED}, *, {TOLD}, Tensor stats) -> (Tensor, Tensor)",
    f"pair_stats({PAIRED}, *, {TOLD}) -> Tensor",
    "stack(Tensor[] xs) -> Tensor",
    "fill(Tensor(a!) x) -> ()",
):
    LIBRARY.define(schema)  # type: ignore[no-untyped-call]
own = torch.ops.own_rules
AFFINE = own.affine.default
PAIR = own.pair.default


@pytest.fixture(autouse=True)
def forget() -> Iterator[None]:
    """Let no test see the rules of another."""
    yield
    rules._registered.clear()


def call(op: OpOverload, *operands: Tensor, results: tuple[Tensor, ...]) -> fx.Node:
    """The op as a node of a graph; numbers come behind tensors."""
    graph = fx.Graph()
    nodes = []
    for operand in operands:
        nodes.append(graph.placeholder("x"))
        nodes[-1].meta["val"] = operand
    node = graph.call_function(op, tuple(nodes))
    node.meta["val"] = results[0] if len(results) == 1 else results
    return node


def zeros(*shapes: tuple[int, ...]) -> list[Tensor]:
    return [torch.zeros(shape) for shape in shapes]


def test_a_rule_is_found_for_calls_that_it_fits() -> None:
    piper.register_rule(AFFINE, "m k,k  n ,n->m n;sum k")
    x, w, b, y = zeros((2, 3), (3, 4), (4,), (2, 4))
    assert rule_of(call(AFFINE, x, w, b, results=(y,))) == "m k, k n, n -> m n; sum k"


def test_all_that_a_rule_may_say() -> None:
    text = "a 1 -> a b, ; linear, 1 = a, 2.1 = b, sum a"
    piper.register_rule(PAIR, text)
    assert rule_of(call(PAIR, *zeros((6, 1)), results=(*zeros((6, 4), ()),))) == text


def test_another_op_may_take_parts() -> None:
    entry = "b by own_rules.pair_part.default after own_rules.pair_stats.default same 1"
    text = f"a b -> a c, ; {entry}"
    piper.register_rule(PAIR, text.replace(" by ", "  by ").replace(";", " ;"))
    assert rule_of(call(PAIR, *zeros((6, 3)), results=(*zeros((6, 4), ()),))) == text


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (
            "z by own_rules.pair_stats.default",
            "ops of parts of dims, got z by own_rules.pair_stats",
        ),
        (
            "b by own_rules.none.default",
            "a registered op of parts, .* got 'own_rules.none.default'",
        ),
        ("b by own_rules.pair_stats", "got 'a b -> a c, ; b by own_rules.pair_stats'"),
        (
            "b by own_rules.pair.default",
            "to take 3 arguments, as own_rules.pair.default, .* size, got 3 and nothing",
        ),
        (
            "b by own_rules.pair_part.default",
            "pair_part.default .* by keyword index, parts, size, got 3 and .* size, stats",
        ),
        (
            "b by own_rules.pair_stats.default after own_rules.pair_stats.default",
            "own_rules.pair_stats.default .* by keyword index, parts, size, stats, got 3 and index",
        ),
        ("b by own_rules.pair_stats.default same 2", "results from 0 to 1, got 'same 2'"),
    ],
)
def test_ops_of_parts_that_are_none(entry: str, message: str) -> None:
    with pytest.raises(ValueError, match=rf"register_rule of own_rules.pair.default .*{message}"):
        piper.register_rule(PAIR, f"a b -> a c, ; {entry}")


def test_saying_the_same_again_is_no_error() -> None:
    piper.register_rule(AFFINE, "m k, k n -> m n; sum k")
    piper.register_rule(AFFINE, "m k,k n -> m n;sum k")


def test_lists_have_any_number_of_operands() -> None:
    piper.register_rule(own.stack.default, "a, a, a -> b a")
    assert rule_of(call(own.stack.default, *zeros((2,), (2,), (2,)), results=(*zeros((3, 2)),)))


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ("m k, k n", "expected dims of operands, '->', dims of results .* got 'm k, k n'"),
        ("m k, k n -> m n -> m", "got 'm k, k n -> m n -> m'"),
        ("m k, k-n -> m n", "got 'm k, k-n -> m n'"),
        ("m k, k n -> m n; sums k", "got 'm k, k n -> m n; sums k'"),
        ("m k, k n -> m n; k", "got 'm k, k n -> m n; k'"),
        ("m k, k n -> m n;", "got 'm k, k n -> m n;'"),
        ("m k, k n -> m n; 1.x = k", "got 'm k, k n -> m n; 1.x = k'"),
        ("m m, m n -> m n", "expected different names for the dims of one tensor, got 'm m'"),
        ("m k, k n -> m n; sum j", "expected sums over dims of operands, got 'sum j'"),
        ("m k, k n -> m n; 3 = j", "expected sizes of dims, got 3 = j"),
        ("m k, k n -> m n; 4 = k", "expected arguments from 0 to 3, got 4 = k"),
        ("m k -> m n", "expected 2 to 3 operands, got 1"),
        ("a, b, c, d -> a", "expected 2 to 3 operands, got 4"),
        ("m k, k n -> m n, n", "expected 1 results, got 2"),
    ],
)
def test_malformed_rules(rule: str, message: str) -> None:
    with pytest.raises(ValueError, match=rf"register_rule of own_rules.affine.default .*{message}"):
        piper.register_rule(AFFINE, rule)


@pytest.mark.parametrize(
    ("op", "rule", "message"),
    [
        (torch.ops.aten.mm.default, "m k, k n -> m n", "aten.mm.default .* Piper has no rule"),
        (torch.ops.aten.relu.default, "a -> a", "aten.relu.default .* Piper has no rule"),
        (torch.ops.aten.t.default, "a b -> b a", "aten.t.default .* Piper has no rule"),
        (torch.ops.aten.clone.default, "a -> a", "aten.clone.default .* Piper has no rule"),
        (own.fill.default, "a -> a", "expected 0 results, got 1"),
        (torch.ops.aten.add_.Tensor, "a, a -> a", "an op that writes to no argument"),
    ],
)
def test_ops_that_get_no_rule(op: OpOverload, rule: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        piper.register_rule(op, rule)


def test_one_rule_per_op() -> None:
    piper.register_rule(AFFINE, "m k, k n -> m n; sum k")
    with pytest.raises(ValueError, match="one rule, got 'm k, k n -> m n' and before 'm k, k n -"):
        piper.register_rule(AFFINE, "m k, k n -> m n")


@pytest.mark.parametrize("what", [own.affine, "own_rules.affine", torch.relu])
def test_only_overloads_are_ops(what: Any) -> None:
    with pytest.raises(TypeError, match=r"expected an op and its overload, such as .*, got"):
        piper.register_rule(what, "a -> a")


@pytest.mark.parametrize(
    ("shapes", "result", "message"),
    [
        ([(2, 3), (3, 4)], (2, 4), "expected 3 operands, got 2"),
        ([(2, 3), (3, 4), (4, 1)], (2, 4), r"operand 2 of shape \(4\), got \(4, 1\)"),
        ([(2, 3), (5, 4), (4,)], (2, 4), r"operand 1 of shape \(3, 4\), got \(5, 4\)"),
        ([(2, 3), (3, 4), (4,)], (4, 2), r"result 0 of shape \(2, 4\), got \(4, 2\)"),
    ],
)
def test_calls_that_do_not_fit(
    shapes: list[tuple[int, ...]], result: tuple[int, ...], message: str
) -> None:
    piper.register_rule(AFFINE, "m k, k n, n -> m n; sum k")
    node = call(AFFINE, *zeros(*shapes), results=(*zeros(result),))
    with pytest.raises(
        piper.CaptureError, match=rf"the rule 'm k, .*' of own_rules.affine.default .*{message}"
    ):
        rule_of(node)


def test_one_element_is_broadcast() -> None:
    piper.register_rule(PAIR, "a 1 -> a b, b")
    node = call(PAIR, *zeros((6, 2)), results=(*zeros((6, 4), (4,)),))
    with pytest.raises(piper.CaptureError, match=r"operand 0 of shape \(6, 1\), got \(6, 2\)"):
        rule_of(node)
