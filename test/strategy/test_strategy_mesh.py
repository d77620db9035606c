"""Meshes: axes, ranks, torch's DeviceMesh."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from piper.strategy import Axis, Mesh
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore


@pytest.fixture
def fake_world() -> Iterator[None]:
    dist.init_process_group("fake", rank=0, world_size=4, store=FakeStore())
    yield
    dist.destroy_process_group()


def test_axes_keep_their_order_and_have_roles() -> None:
    mesh = Mesh.of({"pp": 4, "dp": 2})
    assert mesh.names == ("pp", "dp")
    assert mesh.unrolled == (Axis("pp", 4),)
    assert mesh.manual == (Axis("dp", 2),)
    assert (mesh.num_coordinates, mesh.num_ranks) == (4, 8)
    assert str(mesh) == "pp=4,dp=2"
    assert mesh["dp"].size == 2


def test_a_mesh_may_be_one_rank() -> None:
    assert Mesh.of({}).num_ranks == 1
    assert Mesh.of({}).indices(0) == {}


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"pp": 0}, "axis 'pp' must have an int size of at least 1, got 0"),
        ({"dp": 1.5}, "axis 'dp' must have an int size of at least 1, got 1.5"),
        ({"sp": 2}, "axis 'sp' is not implemented yet, expected one of pp .unrolled., dp .manual."),
        ({"data": 2}, "axis 'data' is unknown, expected one of pp"),
    ],
)
def test_refuses_sizes(sizes: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Mesh.of(sizes)


@given(st.permutations(["pp", "dp"]), st.integers(1, 5), st.integers(1, 5))
def test_ranks_are_row_major(names: list[str], outer: int, inner: int) -> None:
    mesh = Mesh.of({names[0]: outer, names[1]: inner})
    for rank in range(mesh.num_ranks):
        indices = mesh.indices(rank)
        assert list(indices) == names
        assert rank == indices[names[0]] * inner + indices[names[1]]


def test_refuses_ranks_outside() -> None:
    with pytest.raises(ValueError, match=r"rank must be in 0\.\.3 on mesh pp=2,dp=2, got 4"):
        Mesh.of({"pp": 2, "dp": 2}).indices(4)


def test_world_size_must_be_the_mesh() -> None:
    mesh = Mesh.of({"pp": 2, "dp": 2})
    mesh.check_world_size(4)
    with pytest.raises(ValueError, match="needs 4 ranks, got a world of 2: launch with torchrun"):
        mesh.check_world_size(2)


@pytest.mark.usefixtures("fake_world")
def test_device_mesh() -> None:
    device_mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("pp", "dp"))
    assert Mesh.of(device_mesh) == Mesh.of({"pp": 2, "dp": 2})


@pytest.mark.usefixtures("fake_world")
def test_device_mesh_must_have_names_and_rank_order() -> None:
    with pytest.raises(ValueError, match="or a DeviceMesh with mesh_dim_names"):
        Mesh.of(init_device_mesh("cpu", (2, 2)))
    swapped = DeviceMesh("cpu", torch.tensor([[0, 2], [1, 3]]), mesh_dim_names=("pp", "dp"))
    with pytest.raises(ValueError, match=r"row-major order, got \[0, 2, 1, 3\]"):
        Mesh.of(swapped)
