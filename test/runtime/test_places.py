"""Places: the ranks of one coordinate."""

from __future__ import annotations

from piper_runtime.checking.places import Places
from piper_runtime.mesh import Axis, Mesh

MESH = Mesh((Axis("dp", 2, "manual"), Axis("pp", 3, "unrolled"), Axis("tp", 2, "auto")))


def test_ranks_of_all_coordinates_share_places() -> None:
    places = Places(MESH, ["dp"])
    assert len(places) == 4
    assert [places.of(rank) for rank in range(12)] == [0, 1] * 3 + [2, 3] * 3


def test_a_place_has_a_shard_that_those_beside_it_have_too() -> None:
    places = Places(MESH, ["dp"])
    assert [places.shard(place) for place in range(4)] == [0, 0, 1, 1]
    assert places.firsts() == [0, 2]


def test_places_of_a_group_differ_along_its_axes() -> None:
    places = Places(MESH, ["dp"])
    assert places.group(1, ["dp"]) == (1, 3)
    assert places.group(2, ["tp"]) == (2, 3)
    assert places.group(2, ["tp", "dp"]) == (0, 1, 2, 3)
    assert places.group(2, []) == (2,)


def test_a_pipeline_alone_has_one_place() -> None:
    places = Places(Mesh((Axis("pp", 2, "unrolled"),)), [])
    assert (len(places), places.of(1), places.group(0, []), places.firsts()) == (1, 0, (0,), [0])
