"""Ops on a part of a vocabulary, as torch sees them. What they compute is compared with the ops that
they stand for where the rules of these are tested.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from piper_runtime.ops import (
    embedding_backward_part,
    embedding_part,
    log_softmax_part,
    log_sum_exp_part,
    sum_part,
)
from torch import Tensor

own = torch.ops.piper
PART: dict[str, Any] = {"index": torch.tensor([1]), "parts": 2, "size": 5}
IDS, LABELS = torch.tensor([[0, 4], [3, 2]]), torch.tensor([3, -100])


def values(*shape: int) -> Tensor:
    return torch.rand(shape, dtype=torch.float64)


def scores() -> tuple[Tensor, int, bool]:
    return values(2, 3), 1, False


def gradients() -> tuple[Tensor, Tensor, int, torch.dtype]:
    return values(2, 3), values(2, 3), 1, torch.float64


CALLS: list[tuple[Any, Callable[[], tuple[Any, ...]], bool]] = [
    (own.embedding_part, lambda: (values(3, 2), IDS, -1, False, False), False),
    (own.embedding_backward_part, lambda: (values(2, 2, 2), IDS, 3, -1, False), False),
    (own.log_sum_exp_part, scores, False),
    (own.softmax_part, scores, True),
    (own.log_softmax_part, scores, True),
    (own.sum_part, gradients, False),
    (own.softmax_backward_sum_part, gradients, False),
    (own.softmax_backward_part, gradients, True),
    (own.log_softmax_backward_part, gradients, True),
    (own.nll_loss_part, lambda: (values(2, 3), LABELS, None, 2, -100), False),
    (own.nll_loss_part, lambda: (values(2, 3), LABELS, None, 0, -100), False),
    (
        own.nll_loss_backward_part,
        lambda: (values(2), values(2, 3), LABELS, None, 0, -100, values()),
        False,
    ),
    (
        own.nll_loss_backward_part,
        lambda: (values(), values(2, 3), LABELS, None, 2, -100, values()),
        False,
    ),
]


@pytest.mark.parametrize(("packet", "make", "stats"), CALLS, ids=[str(call[0]) for call in CALLS])
def test_shapes_are_known_without_values(
    packet: Any, make: Callable[[], tuple[Any, ...]], stats: bool
) -> None:
    more = {"stats": values(2, 2)} if stats else {}
    checks = ("test_schema", "test_faketensor")
    torch.library.opcheck(packet.default, make(), {**PART, **more}, test_utils=checks)
    results = packet.default(*make(), **PART, **more)
    for result in results if isinstance(results, tuple) else (results,):
        assert result.is_contiguous()


def test_bf16_is_summed_in_fp32() -> None:
    """As torch does where it has all parts."""
    x = torch.linspace(-4, 4, 6).view(1, 6).bfloat16()
    about: dict[str, Any] = {"parts": 2, "size": 6}
    places: list[dict[str, Any]] = [{"index": torch.tensor([index])} for index in range(2)]
    parts = x.chunk(2, 1)
    pairs = [*zip(parts, places, strict=True)]
    stats = [log_sum_exp_part(y, 1, False, **at, **about) for y, at in pairs]
    assert {one.dtype for one in stats} == {torch.float32}
    for dtype, wide in ((torch.bfloat16, False), (torch.float32, True)):
        found = [
            log_softmax_part(y, 1, wide, **at, **about, stats=torch.cat(stats, 1))
            for y, at in pairs
        ]
        assert {one.dtype for one in found} == {dtype}
        wanted = torch.log_softmax(x.float(), 1).to(dtype)
        torch.testing.assert_close(torch.cat(found, 1), wanted, rtol=1e-6, atol=1e-6)
    grad = torch.full((1, 3), 0.1, dtype=torch.bfloat16)
    total = sum_part(grad, found[0], 1, torch.bfloat16, **places[0], **about)
    assert total.dtype == torch.float32


def test_rows_of_a_padding_index_get_no_gradient() -> None:
    table, grad = values(6, 2), values(2, 2, 2)
    ids = torch.tensor([[4, 5], [5, 3]])
    wanted = torch.ops.aten.embedding_dense_backward.default(grad, ids, 6, 5, True)
    about: dict[str, Any] = {"index": torch.tensor([1]), "parts": 2, "size": 6}
    found = embedding_backward_part(grad, ids, 3, 5, True, **about)
    torch.testing.assert_close(found, wanted[3:])
    assert torch.equal(embedding_part(table[3:], ids, 5, **about), table[ids])


@pytest.mark.parametrize("wrong", [-1, 5])
def test_numbers_of_nothing_are_refused(wrong: int) -> None:
    """Also where the part has a row of padding."""
    with pytest.raises(IndexError, match="out of range"):
        embedding_part(values(3, 2), torch.tensor([wrong]), **PART)
    for reduction in (0, 2):
        with pytest.raises(RuntimeError, match="out of bounds"):
            own.nll_loss_part(values(1, 3), torch.tensor([wrong]), None, reduction, -100, **PART)
