"""Attention of a part of a sequence: the terms of all parts are the gradients of the whole."""

from __future__ import annotations

import itertools

import pytest
import torch
from piper_runtime.batch import part_of_sequence
from piper_runtime.ops import attention_part, attention_part_backward
from piper_runtime.ops.partition import positions
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

own = torch.ops.piper
FLOOR = 1e-12
LENGTH, SCALE = 8, 0.4


def index_of(number: int) -> Tensor:
    return torch.tensor([number])


def make(heads: int = 4, groups: int = 2) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = ((2, heads, LENGTH, 8), (2, groups, LENGTH, 8), (2, groups, LENGTH, 8))
    q, k, v = (
        torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_()
        for shape in shapes
    )
    return q, k, v


def parts_of(x: Tensor, parts: int) -> list[Tensor]:
    return [part_of_sequence(x, 2, index, parts, name="x") for index in range(parts)]


def far(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).detach().abs().max())


@pytest.mark.parametrize("parts", [1, 2, 4])
def test_positions_are_those_of_what_a_rank_is_fed(parts: int) -> None:
    whole = torch.arange(2 * LENGTH)
    for index in range(parts):
        found = positions(index_of(index), 2 * LENGTH // parts, parts)
        assert torch.equal(found, part_of_sequence(whole, 0, index, parts, name="x"))


@pytest.mark.parametrize("groups", [4, 2, 1])
@pytest.mark.parametrize(("parts", "causal"), list(itertools.product((1, 2, 4), (False, True))))
def test_forward_and_backward_are_those_of_the_whole(parts: int, causal: bool, groups: int) -> None:
    """For every index: a rank's output and its gradient of queries, and the sum of all ranks' terms
    of the gradients of keys and values.
    """
    q, k, v = make(groups=groups)
    out, lse = own.attention(q, k, v, None, causal, SCALE, 0)
    grad = torch.linspace(-1, 1, out.numel(), dtype=torch.float64).view(out.shape)
    wanted = torch.autograd.grad(out, (q, k, v), grad)
    with torch.no_grad():
        keys, values = (torch.cat(parts_of(x, parts), 2) for x in (k, v))
        sums = [torch.zeros_like(keys), torch.zeros_like(values)]
        for i in range(parts):
            own_q, own_out, own_lse, own_grad, own_dq = (
                parts_of(x, parts)[i] for x in (q, out, lse, grad, wanted[0])
            )
            options = (index_of(i), causal, SCALE, parts)
            found, found_lse = attention_part(own_q, keys, values, *options)
            assert far(found, own_out) < FLOOR
            assert far(found_lse, own_lse) < FLOOR
            dq, *terms = attention_part_backward(
                own_grad, own_q, keys, values, found, found_lse, *options
            )
            assert far(dq, own_dq) < FLOOR
            for total, term in zip(sums, terms, strict=True):
                total += term
        for total, expected in zip(sums, wanted[1:], strict=True):
            assert far(total, torch.cat(parts_of(expected, parts), 2)) < FLOOR


def test_early_and_late_pieces_see_equally_many_keys() -> None:
    """So that causal attention is as much work for all ranks."""
    for parts in (2, 4):
        seen = {
            int((positions(index_of(i), LENGTH // parts, parts) + 1).sum()) for i in range(parts)
        }
        assert seen == {LENGTH * (LENGTH + 1) // 2 // parts}


def test_shapes_without_data_are_those_of_the_results() -> None:
    q, k, v = (x.detach() for x in make())
    (own_q, _), index = parts_of(q, 2), index_of(1)
    arguments = (own_q, k, v, index, True, SCALE, 2)
    out, lse = own.attention_part(*arguments)
    backward = (out, own_q, k, v, out, lse, index, True, SCALE, 2)
    checks = ("test_schema", "test_faketensor")
    torch.library.opcheck(own.attention_part.default, arguments, test_utils=checks)
    torch.library.opcheck(own.attention_part_backward.default, backward, test_utils=checks)


def test_flops_are_counted_as_those_of_whole_attention() -> None:
    q, k, v = (x.detach() for x in make())
    own_q = parts_of(q, 2)[0]
    options = (index_of(0), True, SCALE, 2)
    scores = 2 * 4 * (LENGTH // 2) * LENGTH
    with FlopCounterMode(display=False) as counter:
        out, lse = attention_part(own_q, k, v, *options)
    assert counter.get_total_flops() == scores * 2 * (8 + 8)
    with FlopCounterMode(display=False) as counter:
        attention_part_backward(out, own_q, k, v, out, lse, *options)
    assert counter.get_total_flops() == scores * 2 * (3 * 8 + 2 * 8)
