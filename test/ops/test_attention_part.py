"""Attention of a part of a sequence: the terms of all parts are the gradients of the whole, and all
parts are the same work.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from piper_runtime.inputs.batch import part_of_sequence
from piper_runtime.ops import attention_part, attention_part_backward, partition
from piper_runtime.ops.attention_fused import choose_fused
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


@dataclass(frozen=True)
class Call:
    """An attention: its scores of a head, and whether causality hides about half of them."""

    scores: int
    causal: bool


def record(monkeypatch: pytest.MonkeyPatch, name: str, *, tensors: int) -> list[Call]:
    """What a part asks of whole attention, by an op that takes so many tensors if there is no mask:
    always what a fused kernel computes.
    """
    calls: list[Call] = []
    run = getattr(partition, name)

    def called(*args: Any) -> Any:
        given = [arg for arg in args if isinstance(arg, Tensor)]
        causal, _, offset = args[-3:]
        q, k, v = given[:3] if tensors == 3 else given[1:4]
        assert len(given) == tensors
        assert choose_fused(q, k, v, None, causal=causal, offset=offset) is not None
        calls.append(Call(q.shape[2] * k.shape[2], causal))
        return run(*args)

    monkeypatch.setattr(partition, name, called)
    return calls


@pytest.mark.parametrize("parts", [1, 2, 4])
def test_all_parts_are_the_same_work(monkeypatch: pytest.MonkeyPatch, parts: int) -> None:
    """Forward and backward, call by call; no more than two pieces have scores that are hidden."""
    forward = record(monkeypatch, "attention", tensors=3)
    backward = record(monkeypatch, "attention_backward", tensors=6)
    q, k, v = (x.detach() for x in make())
    own_q, piece = parts_of(q, parts)[0], LENGTH // parts // 2
    seen = set()
    for index in range(parts):
        options = (index_of(index), True, SCALE, parts)
        out, lse = attention_part(own_q, k, v, *options)
        attention_part_backward(out, own_q, k, v, out, lse, *options)
        assert forward == backward
        assert [call.scores for call in forward if call.causal] == 2 * [piece**2]
        assert sum(call.scores for call in forward) == (2 * parts + 1) * piece**2
        seen.add(tuple(forward))
        forward.clear()
        backward.clear()
    assert len(seen) == 1


def test_work_is_what_positions_see() -> None:
    """Early and late pieces together: as many keys for each part, a piece's own counted once."""
    for parts in (2, 4):
        piece = LENGTH // parts // 2
        whole = torch.arange(1, LENGTH + 1)
        seen = {int(part.sum()) for part in parts_of(whole.view(1, 1, -1), parts)}
        assert seen == {(2 * parts - 1) * piece**2 + piece * (piece + 1)}


@pytest.mark.parametrize(("dtype", "bound"), [(torch.bfloat16, 2**-6), (torch.float32, 2**-20)])
def test_narrow_dtypes_are_near_fp64(dtype: torch.dtype, bound: float) -> None:
    """Pieces are merged in fp32, and rounded once more."""
    wide = [x.detach().to(dtype) for x in make()]
    q, k, v = (x.double().requires_grad_() for x in wide)
    expected, _ = own.attention(q, k, v, None, True, SCALE, 0)
    grad = torch.linspace(-1, 1, expected.numel(), dtype=torch.float64).view(expected.shape)
    grad = grad.to(dtype).double()
    wanted = torch.autograd.grad(expected, (q, k, v), grad)
    keys, values = (torch.cat(parts_of(x, 4), 2) for x in wide[1:])
    for i in range(4):
        own_q, own_grad, own_out, own_dq = (
            parts_of(x, 4)[i] for x in (wide[0], grad.to(dtype), expected.detach(), wanted[0])
        )
        options = (index_of(i), True, SCALE, 4)
        out, lse = attention_part(own_q, keys, values, *options)
        dq, *_ = attention_part_backward(own_grad, own_q, keys, values, out, lse, *options)
        assert out.dtype == dq.dtype == dtype
        for found, exact in ((out, own_out), (dq, own_dq)):
            assert far(found.double(), exact) <= bound * max(1.0, float(exact.abs().max()))


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
