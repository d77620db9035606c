"""Parts of flat tensors: who holds which elements of which member."""

from __future__ import annotations

from math import prod

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from piper_runtime.manifest import BucketSpec
from piper_runtime.mesh import Axis, Comm, Mesh
from piper_runtime.program import flatten
from piper_runtime.states.sharding import Local, Piece, Shard, pad

SHAPES = st.lists(st.lists(st.integers(0, 4), max_size=3), min_size=1, max_size=5)


@given(SHAPES, st.integers(1, 6))
def test_parts_put_together_are_the_padded_whole(shapes: list[list[int]], count: int) -> None:
    numel = sum(map(prod, shapes))
    shards = [Shard(numel, index, count) for index in range(count)]
    whole = pad(torch.arange(numel), shards[0].padded)
    assert torch.equal(torch.cat([shard.of(whole) for shard in shards]), whole)
    assert sum(shard.filled for shard in shards) == numel
    assert shards[0].padded - numel < max(1, count)


@given(SHAPES, st.integers(1, 6))
def test_pieces_of_all_parts_are_the_members(shapes: list[list[int]], count: int) -> None:
    numel = sum(map(prod, shapes))
    starts = [sum(map(prod, shapes[:index])) for index in range(len(shapes))]
    found: list[int] = []
    for index in range(count):
        shard = Shard(numel, index, count)
        pieces = list(shard.pieces(shapes))
        assert sum(piece.length for piece in pieces) == shard.filled
        for piece in pieces:
            first = starts[piece.index] + piece.start
            found += range(first, first + piece.length)
            assert prod(piece.shape) == piece.length
            assert len(piece.shape) == len(shapes[piece.index])
            whole = piece.length == prod(shapes[piece.index])
            assert (list(piece.shape) == shapes[piece.index]) or not whole
    assert found == list(range(numel))


def test_a_member_may_lie_on_several_ranks() -> None:
    shapes = [(4, 2), (), (3,)]
    parts = [list(Shard(12, index, 4).pieces(shapes)) for index in range(4)]
    assert parts == [
        [Piece(0, 0, 3, (1, 3))],
        [Piece(0, 3, 3, (1, 3))],
        [Piece(0, 6, 2, (1, 2)), Piece(1, 0, 1, ())],
        [Piece(2, 0, 3, (3,))],
    ]


def test_a_rank_may_hold_padding_only() -> None:
    shard = Shard(3, 3, 4)
    assert (shard.part, shard.padded, shard.filled) == (1, 4, 0)
    assert list(shard.pieces([(3,)])) == []


@given(st.integers(1, 9), st.integers(1, 6), st.integers(0, 1))
def test_local_parts_have_zeros_behind_the_whole(size: int, count: int, dim: int) -> None:
    """They are equally large, and put together they are the whole."""
    whole = torch.arange(1, 2 * size + 1).view(size, 2).transpose(0, dim)
    locals_ = [Local(index, count, dim) for index in range(count)]
    parts = [local.of(whole) for local in locals_]
    again = torch.zeros_like(whole)
    for local, part in zip(locals_, parts, strict=True):
        assert tuple(part.shape) == local.shape(tuple(whole.shape))
        local.put(part, again)
    assert torch.equal(again, whole)
    joined = torch.cat(parts, dim)
    assert torch.equal(joined.narrow(dim, 0, size), whole)
    assert not joined.narrow(dim, size, joined.shape[dim] - size).any()
    starts = [local.offsets(tuple(whole.shape))[dim] for local in locals_]
    assert starts == [index * parts[0].shape[dim] for index in range(count)]


# In a mesh.

MESH = Mesh((Axis("pp", 2, "unrolled"), Axis("rep", 2, "manual"), Axis("dp", 3, "manual")))
SPEC = BucketSpec("b", ("w",), (1,), "float32", 7, "float32", shard_axes=("dp",))


def test_shards_are_numbered_in_mesh_order() -> None:
    assert [SPEC.shard(MESH, rank).index for rank in range(12)] == [0, 1, 2] * 4
    both = BucketSpec("b", ("w",), (1,), "float32", 7, None, shard_axes=("rep", "dp"))
    assert [both.shard(MESH, rank).index for rank in range(12)] == [0, 1, 2, 3, 4, 5] * 2
    assert [MESH.owner(1, (("dp",), index)) for index in range(3)] == [6, 7, 8]
    assert [MESH.owner(1, (("rep", "dp"), index)) for index in range(6)] == list(range(6, 12))
    assert MESH.owner(1) == 6


def test_slots_are_parts_or_padded() -> None:
    assert SPEC.shards(MESH) == 3
    assert [SPEC.slot_numel(slot, MESH) for slot in ("value", "compute", "grad")] == [3, 9, 9]
    assert SPEC.slot_dtype("compute") is None
    assert not SPEC.is_view
    whole = BucketSpec("b", ("w",), (0,), "float32", 7, None)
    assert [whole.slot_numel(slot, MESH) for slot in ("value", "grad")] == [7, 7]


def test_members_at_several_coordinates_share_parts() -> None:
    """Of a tied weight, each of its holders keeps a shard per rank."""
    assert Comm("c", (0, 1, 6, 7)).parts == (0, 1, 2, 3)
    assert Comm("c", (0, 1, 6, 7), (0, 1, 0, 1)).num_parts == 2


# Flat packs.


def test_a_flat_pack_is_padded_with_zeros() -> None:
    flat = flatten(torch.ones(2, 2), torch.tensor(3.0), numel=7)
    assert torch.equal(flat, torch.tensor([1.0, 1, 1, 1, 3, 0, 0]))
    assert flat.is_contiguous()
    assert flatten(torch.ones(2).bfloat16(), numel=3).dtype == torch.bfloat16


def test_one_part_that_is_all_is_not_copied() -> None:
    part = torch.ones(2, 2)
    assert flatten(part, numel=4).data_ptr() == part.data_ptr()


def test_a_flat_pack_has_room_for_its_parts() -> None:
    with pytest.raises(ValueError, match="flatten expected at most 3 elements, got 4"):
        flatten(torch.ones(4), numel=3)
