"""Rules of ops, for every row of the table: parts of operands give the same parts of results, or
results that add up; what is called linear is; and ops that take parts where others need the whole.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from piper.frontend import rules
from piper.frontend.rules import rule_of
from rule_parts import Args, check_parts, node_of, tensors
from torch import Tensor
from torch._ops import OpOverload

aten = torch.ops.aten
own = torch.ops.piper

Size = Callable[[], int]


def values(*shape: int) -> Tensor:
    return torch.rand(shape, dtype=torch.float64)


@dataclass(frozen=True)
class Row:
    """A way to call an op with random sizes, and the factors that have parts in both sides."""

    op: OpOverload
    make: Callable[[Size], Args]
    free: str
    tied: str = ""

    def __str__(self) -> str:
        return str(self.op)


class Routing:
    """Tokens that choose two of four experts each."""

    experts = 4

    def __init__(self, size: Size) -> None:
        self.num = size()
        chosen = [torch.randperm(self.experts)[:2] for _ in range(self.num)]
        self.index = torch.stack(chosen)
        self.order, self.counts = own.moe_sort(self.index, self.experts, 1)

    def tokens(self, width: int) -> Args:
        return values(self.num, width), self.order

    def rows(self, width: int) -> Args:
        return values(2 * self.num, width), self.order

    def sent(self, width: int) -> Args:
        return values(2 * self.num, width), self.counts, self.counts

    def linear(self, inputs: int, outputs: int, backward: bool = False) -> Args:
        width = outputs if backward else inputs
        return values(2 * self.num, width), values(self.experts, outputs, inputs), self.counts

    def both(self, inputs: int, outputs: int) -> Args:
        return values(2 * self.num, outputs), values(2 * self.num, inputs), self.counts

    def weighted(self, width: int) -> Args:
        return values(2 * self.num, width), self.order, values(self.num, 2)

    def spread(self, width: int) -> Args:
        return values(self.num, width), self.order, values(self.num, 2)

    def dots(self, width: int) -> Args:
        both = values(self.num, width), values(2 * self.num, width)
        return *both, self.order, 2, torch.float64


def uncut(rows: int, columns: int) -> Args:
    return values(rows, 2), [rows, columns + 2], 1, 1, 3, 1


def indices(*shape: int) -> Tensor:
    return torch.randint(5, shape)


def places(rows: int) -> Tensor:
    """Three places of five in each row."""
    return torch.stack([torch.randperm(5)[:3] for _ in range(rows)])


def labelled(rows: int) -> tuple[Tensor, Tensor]:
    labels = indices(rows)
    labels[0] = -100
    return values(rows, 5), labels


def unlabelled(rows: int) -> Args:
    scores, labels = labelled(rows)
    return values(), scores, labels, None, 2, -100, values()


def unreduced(rows: int) -> Args:
    """A gradient of the loss of each row."""
    scores, labels = labelled(rows)
    return values(rows), scores, labels, None, 0, -100, values()


def unreduced_pixels(rows: int, columns: int) -> Args:
    scores, labels = pixels(rows, columns)
    return values(*labels.shape), scores, labels, None, 0, -100, values()


def pixels(rows: int, columns: int) -> tuple[Tensor, Tensor]:
    labels = indices(rows, columns, 3)
    labels[0, 0] = -100
    return values(rows, 5, columns, 3), labels


def weighed(rows: int, reduction: int) -> Args:
    """Each row by itself, or the sum, with a weight for each class."""
    scores, labels = labelled(rows)
    return scores, labels, values(5), reduction, -100


def looked_up(rows: int, columns: int, width: int, scaled: bool = False) -> Args:
    return values(rows, columns, width), indices(rows, columns), 5, -1, scaled


def layer_norm(rows: int, columns: int) -> Args:
    return values(rows, columns, 3, 2), [3, 2], values(3, 2), values(3, 2), 1e-5


def norm_gradient(rows: int, columns: int) -> Args:
    x, shape, weight, bias, eps = layer_norm(rows, columns)
    _, mean, rstd = aten.native_layer_norm.default(x, shape, weight, bias, eps)
    return values(*x.shape), x, shape, mean, rstd, weight, bias, [True, True, True]


def attended(batch: int, mask: tuple[int, ...] | None = None) -> Args:
    """Eight heads of queries, two groups of keys and values."""
    q, k, v = values(batch, 8, 3, 4), values(batch, 2, 5, 4), values(batch, 2, 5, 6)
    hidden = None if mask is None else values(*mask)
    return q, k, v, hidden, hidden is None, 0.5, 2 if hidden is None else 0


FLASH = aten._scaled_dot_product_flash_attention_for_cpu
FLASH_BACKWARD = aten._scaled_dot_product_flash_attention_for_cpu_backward


def alike(batch: int) -> list[Tensor]:
    """Four heads of queries, two of keys and values, all of one width."""
    return [values(batch, heads, 3, 6) for heads in (4, 2, 2)]


def alike_gradient(batch: int) -> Args:
    q, k, v = alike(batch)
    out, lse = FLASH.default(q, k, v, 0.0, True)
    return values(*out.shape), q, k, v, out, lse, 0.0, True


def attention_gradient(batch: int) -> Args:
    q, k, v, mask, *rest = attended(batch, (batch, 1, 1, 5))
    out, lse = own.attention.default(q, k, v, mask, *rest)
    return values(*out.shape), q, k, v, out, lse, mask, values(*lse.shape), *rest


def elu_args(size: Size) -> Args:
    grad, x = twice(size)
    return grad, 1.0, 1.0, 1.0, False, x


ROWS = [
    Row(aten.mm.default, lambda s: product(s(), s(), s()), "m n k"),
    Row(aten.bmm.default, lambda s: product(s(), s(), s(), batch=(s(),)), "b m n k"),
    Row(aten.addmm.default, lambda s: (values(n := s()), *product(s(), s(), n)), "m n"),
    Row(aten.addmm.default, lambda s: (values(m := s(), 1), *product(m, s(), s())), "m n"),
    Row(aten.t.default, lambda s: (values(s(), s()),), "a b"),
    Row(aten.t.default, lambda s: (values(s()),), "a"),
    Row(aten.transpose.int, lambda s: (values(s(), s(), s()), 0, -1), "a b c"),
    Row(aten.permute.default, lambda s: (values(s(), s(), s()), [2, 0, -2]), "a b c"),
    Row(aten.split.Tensor, lambda s: (values(s(), 6), 4, -1), "a"),
    Row(aten.split.Tensor, lambda s: (values(6, s()), 6, 0), "a b"),
    Row(aten.split_with_sizes.default, lambda s: (values(s(), 6), [1, 3, 2], 1), "a"),
    Row(aten.split_with_sizes.default, lambda s: (values(s(), 6), [6], 1), "a"),
    Row(aten.slice.Tensor, lambda s: (values(s(), 6, s()), 1, 1, 3), "a c"),
    Row(aten.slice.Tensor, lambda s: (values(6, s()),), "a b"),
    Row(aten.select.int, lambda s: (values(s(), 3, s()), -2, 1), "a c"),
    Row(aten.slice_backward.default, lambda s: uncut(s(), s()), "a"),
    Row(aten.slice_backward.default, lambda s: (values(4, n := s()), [4, n], 0, 0, 9, 1), "a b"),
    Row(aten.select_backward.default, lambda s: (values(n := s()), [3, n], 0, 1), "a"),
    Row(aten.cat.default, lambda s: (beside(s(), 3, 4),), "b"),
    Row(aten.cat.default, lambda s: ([values(s(), s())], 1), "a b"),
    Row(aten.sum.default, lambda s: (values(s(), s()),), "a b"),
    Row(aten.sum.default, lambda s: (values(),), ""),
    Row(aten.sum.dim_IntList, lambda s: (values(s(), s(), s()), [0, -1]), "a b c"),
    Row(aten.sum.dim_IntList, lambda s: (values(s(), s()), [1], True), "a b"),
    Row(aten.sum.dim_IntList, lambda s: (values(s(), s()), None), "a b"),
    Row(aten.mean.dim, lambda s: (values(s(), s(), s()), [1], True), "a c"),
    Row(aten.view.default, lambda s: (values(a := s(), b := s(), c := s()), [a * b, c]), "a c"),
    Row(aten.view.default, lambda s: (values(a := s(), (b := s()) * 3), [a, b, 3]), "a b"),
    Row(aten.view.default, lambda s: (values(6, n := s(), 4), [8 * n, 3]), "a"),
    Row(aten.view.default, lambda s: (values(s(), 1, n := s()), [-1, n, 1]), "a c"),
    Row(aten._unsafe_view.default, lambda s: (values(a := s(), n := s()), [1, a, n]), "a b"),
    Row(aten.expand.default, lambda s: (values(1, n := s()), [s(), n]), "b"),
    Row(aten.expand.default, lambda s: (values(n := s()), [s(), n]), "b"),
    Row(aten.expand.default, lambda s: (values(s(), 1), [-1, 4]), "a"),
    Row(aten.unsqueeze.default, lambda s: (values(s(), s()), -2), "a b"),
    Row(aten.squeeze.default, lambda s: (values(s(), 1, s()),), ""),
    Row(aten.squeeze.dim, lambda s: (values(s(), 1, s()), 1), "a c"),
    Row(aten.squeeze.dims, lambda s: (values(1, s(), 1, s()), [0, 1, -2]), "d"),
    Row(aten.clone.default, lambda s: (values(s(), s()),), "a b"),
    Row(aten._to_copy.default, lambda s: (values(s(), s()),), "a b"),
    Row(aten.detach.default, lambda s: (values(s(), s()),), "a b"),
    Row(aten.alias.default, lambda s: (values(s()),), "a"),
    Row(aten.add.Tensor, lambda s: (values(s(), n := s()), values(n)), "a b"),
    Row(aten.mul.Tensor, lambda s: (values(m := s(), 1), values(m, s())), "a b"),
    Row(aten.mul.Tensor, lambda s: (values(s(), s()), values()), "a b"),
    Row(aten.mul.Tensor, lambda s: (values(s(), s()), 3.0), "a b"),
    Row(aten.div.Tensor, lambda s: (values(s(), s()), 3.0), "a b"),
    Row(aten.where.self, lambda s: (values(m := s(), 1) < 0.5, values(s()), values(m, 1)), "a b"),
    Row(aten._softmax.default, lambda s: (values(s(), 3, s()), 1, False), "a c"),
    Row(aten._log_softmax.default, lambda s: (values(s(), 3), -1, False), "a"),
    Row(aten._softmax_backward_data.default, lambda s: (*twice(s), 1, torch.float64), "a"),
    Row(aten._log_softmax_backward_data.default, lambda s: (*twice(s), 0, torch.float64), "b"),
    Row(aten.cumsum.default, lambda s: (values(s(), 3), 1), "a"),
    Row(aten.topk.default, lambda s: (values(s(), 3, s()), 2, 1), "a c"),
    Row(aten.sort.default, lambda s: (values(s(), 3),), "a"),
    Row(aten.gather.default, lambda s: (values(n := s(), 5), -1, indices(n, 3)), "a"),
    Row(aten.scatter.src, lambda s: (values(n := s(), 5), 1, places(n), values(n, 3)), "a"),
    Row(aten.scatter.value, lambda s: (values(n := s(), 5), 1, places(n), 2.0), "a"),
    Row(aten.scatter_add.default, lambda s: (values(n := s(), 5), 1, places(n), values(n, 3)), "a"),
    Row(aten.slice_scatter.default, lambda s: (values(n := s(), 5), values(n, 2), 1, 1, 3), "a"),
    Row(aten.copy.default, lambda s: twice(s), "a b"),
    Row(aten.zeros_like.default, lambda s: (values(s(), s()),), "a b"),
    Row(aten.ones_like.default, lambda s: (values(s(), s()),), "a b"),
    Row(aten.full_like.default, lambda s: (values(s(), s()), 3.0), "a b"),
    Row(aten.new_zeros.default, lambda s: (values(s()), [s(), 3]), ""),
    Row(aten.new_empty.default, lambda s: (values(s()), [s(), 0]), ""),
    Row(aten.nll_loss_forward.default, lambda s: (*labelled(s()), None, 2, -100), "a"),
    Row(aten.nll_loss_forward.default, lambda s: weighed(s(), 2), "a"),
    Row(aten.nll_loss_forward.default, lambda s: weighed(s(), 0), "a"),
    Row(aten.nll_loss_forward.default, lambda s: (*labelled(s()), None, 0, -100), "a"),
    Row(aten.nll_loss_forward.default, lambda s: (values(5), indices(), None, 2, -100), ""),
    Row(aten.nll_loss_backward.default, lambda s: unlabelled(s()), "a"),
    Row(aten.nll_loss_backward.default, lambda s: unreduced(s()), "a"),
    Row(aten.nll_loss2d_forward.default, lambda s: (*pixels(s(), s()), None, 2, -100), "a b e"),
    Row(aten.nll_loss2d_forward.default, lambda s: (*pixels(s(), s()), None, 0, -100), "a b e"),
    Row(aten.nll_loss2d_backward.default, lambda s: unreduced_pixels(s(), s()), "a b e"),
    Row(
        aten.nll_loss2d_backward.default,
        lambda s: (values(), *pixels(s(), s()), None, 2, -100, values()),
        "a b e",
    ),
    Row(aten.embedding.default, lambda s: (values(5, s()), indices(s(), s())), "a b w"),
    Row(aten.embedding_dense_backward.default, lambda s: looked_up(s(), s(), s()), "a b w"),
    Row(aten.embedding_dense_backward.default, lambda s: looked_up(s(), s(), s(), True), "w"),
    Row(aten.native_layer_norm.default, lambda s: layer_norm(s(), s()), "a b"),
    Row(aten.native_layer_norm.default, lambda s: (values(s(), 3), [3], None, None, 1e-5), "a"),
    Row(aten.native_layer_norm_backward.default, lambda s: norm_gradient(s(), s()), "a b"),
    Row(own.attention.default, lambda s: attended(s()), "b h e"),
    Row(own.attention.default, lambda s: attended(s(), mask=(1, 1, 3, 5)), "b h e"),
    Row(FLASH.default, lambda s: (*alike(s()), 0.0, True), "b h"),
    Row(FLASH_BACKWARD.default, lambda s: alike_gradient(s()), "b h"),
    Row(own.attention_backward.default, lambda s: attention_gradient(s()), "b h"),
    Row(aten.elu_backward.default, elu_args, "a b"),
    Row(aten.hardsigmoid_backward.default, lambda s: twice(s), "a b"),
    Row(aten.hardswish_backward.default, lambda s: twice(s), "a b"),
    Row(aten.hardtanh_backward.default, lambda s: (*twice(s), -0.5, 0.5), "a b"),
    Row(aten.leaky_relu_backward.default, lambda s: (*twice(s), 0.1, False), "a b"),
    Row(aten.mish_backward.default, lambda s: twice(s), "a b"),
    Row(aten.softplus_backward.default, lambda s: (*twice(s), 1.0, 20.0), "a b"),
    Row(own.moe_sort.default, lambda s: (Routing(s).index, Routing.experts, 1), ""),
    Row(own.moe_permute.default, lambda s: (*Routing(s).tokens(s()), 2), "d", tied="n"),
    Row(own.moe_permute_backward.default, lambda s: (*Routing(s).rows(s()), 2), "d"),
    Row(own.moe_exchange_counts.default, lambda s: (Routing(s).counts,), "e", tied="r"),
    Row(own.moe_dispatch.default, lambda s: Routing(s).sent(s()), "d"),
    Row(own.moe_collect.default, lambda s: Routing(s).sent(s()), "d"),
    Row(own.moe_group.default, lambda s: Routing(s).sent(s())[::2], "d", tied="m"),
    Row(own.moe_ungroup.default, lambda s: Routing(s).sent(s())[::2], "d", tied="m"),
    Row(own.moe_linear.default, lambda s: Routing(s).linear(s(), s()), "o i", tied="m"),
    Row(own.moe_linear_input.default, lambda s: Routing(s).linear(s(), s(), True), "i o", tied="m"),
    Row(own.moe_linear_weight.default, lambda s: Routing(s).both(s(), s()), "o i", tied="e"),
    Row(own.moe_unpermute.default, lambda s: Routing(s).weighted(s()), "d", tied="t"),
    Row(own.moe_unpermute_rows.default, lambda s: Routing(s).spread(s()), "d", tied="n"),
    Row(own.moe_unpermute_weights.default, lambda s: Routing(s).dots(s()), "d", tied="t"),
]


def product(m: int, k: int, n: int, *, batch: tuple[int, ...] = ()) -> Args:
    return values(*batch, m, k), values(*batch, k, n)


def beside(columns: int, *rows: int) -> list[Tensor]:
    return [values(count, columns) for count in rows]


def twice(size: Size) -> tuple[Tensor, Tensor]:
    shape = size(), size()
    return values(*shape), 2 * values(*shape) - 1


def sizes(seed: int) -> Size:
    generator = random.Random(seed)
    return lambda: generator.choice((2, 4, 6))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("row", ROWS, ids=str)
def test_parts_of_operands_give_parts_of_results(row: Row, seed: int) -> None:
    torch.manual_seed(seed)
    args = row.make(sizes(seed))
    assert check_parts(row.op, args, tied=row.tied) == set(row.free.split())


def test_all_rows_of_the_table_are_tested() -> None:
    table = {*rules._FIXED, *rules._BY_NODE, *rules._POINTWISE}
    assert table <= {row.op for row in ROWS}


def test_sizes_are_arguments() -> None:
    """Of the ops whose arguments say how large a result is."""
    routing = Routing(lambda: 6)
    text = rule_of(node_of(own.moe_sort.default, (routing.index, 4, 1)))
    assert text == "t k -> n, r e; 2 = r"
    text = rule_of(node_of(own.moe_unpermute_weights.default, routing.dots(2)))
    assert text == "t d, n d, n -> t k; 3 = k, sum d"


def pointwise_ops() -> Iterator[OpOverload]:
    """Every op that torch tags as pointwise, but those that write to their arguments."""
    for name in sorted(dir(aten)):
        packet = getattr(aten, name)
        for overload in packet.overloads() if hasattr(packet, "overloads") else ():
            op = getattr(packet, overload)
            if torch.Tag.pointwise in op.tags and not op._schema.is_mutable:
                yield op


def plain_args(op: OpOverload) -> Args | None:
    """A matrix for each tensor and a half for each number without a default, if that fits."""
    made: list[Any] = []
    for argument in op._schema.arguments:
        kind = str(argument.type)
        if argument.has_default_value() or argument.kwarg_only:
            break
        if kind not in ("Tensor", "number", "float"):
            return None
        made.append(values(4, 6) if kind == "Tensor" else 0.5)
    try:
        op(*made)
    except (RuntimeError, NotImplementedError, TypeError):
        return None
    return tuple(made)


def test_all_pointwise_ops_work_on_parts() -> None:
    """Whatever torch tags, if it takes matrices and numbers."""
    torch.manual_seed(0)
    tested = set()
    for op in pointwise_ops():
        args = plain_args(op)
        if args is None or torch.Tag.nondeterministic_seeded in op.tags:
            continue
        if tensors(args) and op is not aten.equal.default:
            assert check_parts(op, args) == {"a", "b"}
            tested.add(op)
    assert len(tested) > 150
    assert {aten.silu.default, aten.silu_backward.default, aten.gelu_backward.default} <= tested


@pytest.mark.parametrize(
    ("op", "args"),
    [
        (aten.view.default, (values(4, 0), [0])),
        (aten.gather.default, (values(5, 6), 0, indices(4, 2))),
        (aten.bernoulli.default, (values(4, 6),)),
        (aten.cat.default, ([values(4, 6), values(0)],)),
        (aten.equal.default, (values(4, 6), values(4, 6))),
    ],
)
def test_of_other_ops_nothing_is_known(op: OpOverload, args: Args) -> None:
    assert rule_of(node_of(op, args)) is None


def test_broadcast_dims_and_scalars() -> None:
    """A rule has a list of dims for each operand, also for one without any."""

    def text(*shapes: tuple[int, ...]) -> str | None:
        return rule_of(node_of(aten.add.Tensor, tuple(values(*shape) for shape in shapes)))

    assert text((4, 6), ()) == "a b,  -> a b; linear"
    assert text((4, 6), (4, 1)) == "a b, a 1 -> a b; linear"
    assert text((4, 1), (1, 6)) == "a 1, 1 b -> a b; linear"
    assert text((1, 6), (1, 6)) == "a b, a b -> a b; linear"
    assert text((), ()) == ",  -> ; linear"


def test_keywords_come_in_the_order_of_the_dialect() -> None:
    """Operands are numbered by position, then by the name of the keyword."""
    node = node_of(aten.mul.Tensor, (values(4, 6),), {"other": values(6)})
    assert rule_of(node) == "a b, b -> a b"
