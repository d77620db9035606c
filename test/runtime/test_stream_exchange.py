"""Buffers of messages and collectives: whose they are, and when nothing is copied."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from piper_runtime.devices import device_for
from piper_runtime.instruction import Message
from piper_runtime.mesh import Comm
from piper_runtime.transports.stream_exchange import Work, exchange

ALONE = Comm("alone", (0,))


def prepare(kind: str, *values: Any, comm: Comm = ALONE, **options: Any) -> Work:
    message = Message(comm, own=0, **options)
    return exchange(kind, message, None, values, device=device_for("cpu"))


def test_an_all_reduce_in_place_takes_no_buffer() -> None:
    value = torch.ones(4)
    work = prepare("all_reduce", value, in_place=True)
    work.action()
    assert work.result is value
    assert work.buffers == ()


def test_an_all_reduce_in_place_of_a_strided_value_writes_it() -> None:
    whole = torch.zeros(4, 2)
    value = whole[:, 0].fill_(3.0)
    work = prepare("all_reduce", value, in_place=True)
    assert work.result is value
    assert len(work.buffers) == 1
    work.action()
    assert whole.tolist() == [[3.0, 0.0]] * 4


KINDS = ["all_reduce", "broadcast", "all_gather", "reduce_scatter", "all_to_all"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("strided", [False, True])
def test_the_only_member_gets_a_copy(kind: str, dim: int, strided: bool) -> None:
    value = torch.arange(12.0).view(3, 4)
    value = value.t() if strided else value
    work = prepare(kind, value, dim=dim)
    work.action()
    assert torch.equal(work.result, value)
    assert work.result.is_contiguous()
    assert work.result.untyped_storage().data_ptr() != value.untyped_storage().data_ptr()
    assert any(buffer is work.result for buffer in work.buffers)


def test_nothing_is_done_before_the_action() -> None:
    value = torch.zeros(2)
    work = prepare("broadcast", value)
    value.fill_(5.0)
    work.action()
    assert work.result.tolist() == [5.0, 5.0]


def test_what_is_received_has_the_shape_of_the_message() -> None:
    group: Any = object()
    message = Message(Comm("pair", (0, 1)), peer=1, shape=(2, 3), dtype=torch.bfloat16)
    work = exchange("recv", message, group, (), device=device_for("cpu"))
    assert work.result.shape == (2, 3)
    assert work.result.dtype == torch.bfloat16
    assert work.buffers == (work.result,)


def test_a_value_in_one_piece_is_sent_as_it_is() -> None:
    group: Any = object()
    message = Message(Comm("pair", (0, 1)), peer=1)
    value = torch.ones(2, 3)
    assert exchange("send", message, group, (value,), device=device_for("cpu")).buffers == ()
    strided = exchange("send", message, group, (value.t(),), device=device_for("cpu"))
    assert [tuple(buffer.shape) for buffer in strided.buffers] == [(3, 2)]


def test_unequal_parts_cannot_be_scattered() -> None:
    with pytest.raises(ValueError, match="reduce_scatter expected dim 1 divisible by 2, got 3"):
        prepare("reduce_scatter", torch.ones(4, 3), comm=Comm("two", (0, 1)), dim=1)


@pytest.mark.parametrize("dim", [0, 1])
def test_rows_that_arrive_have_a_buffer_of_their_number(dim: int) -> None:
    """Of a group of two, sizes say the shape before anything is exchanged."""
    value = torch.ones(3, 3)
    work = prepare("all_to_all", value, [1, 2], [4, 0], comm=Comm("two", (0, 1)), dim=dim)
    assert tuple(work.result.shape) == ((4, 3) if dim == 0 else (3, 4))
    assert any(buffer is work.result for buffer in work.buffers)


def test_too_many_rows_are_refused_before_there_is_a_buffer() -> None:
    with pytest.raises(ValueError, match=r"at most 3 rows, got 4: \[4, 0\] from ranks 0, 1"):
        prepare("all_to_all", torch.ones(3, 3), [1, 2], [4, 0], comm=Comm("two", (0, 1)), bound=3)
