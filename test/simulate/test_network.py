"""Which links messages and collectives go over, what they put there, and how long that takes."""

from __future__ import annotations

from collections import Counter
from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st
from piper.simulate import Device, Link, Network, device
from piper.simulate.network import Transfer
from piper.simulate.topology import message_crosses, spreads
from piper_runtime.mesh import Axis, CommSpec, Mesh

MESH = Mesh((Axis("pp", 2, "unrolled"), Axis("dp", 4, "manual")))
SLOW, FAST = Link("slow", "", 10.0, 1.0, {}), Link("fast", "", 100.0, 0.5, {})
RINGS = ("all_reduce", "reduce_scatter", "all_gather", "broadcast")


def mesh(**sizes: int) -> Mesh:
    """A mesh whose axis pp, if it has one, is unrolled."""
    roles = {"pp": "unrolled"}
    return Mesh(tuple(Axis(name, size, roles.get(name, "manual")) for name, size in sizes.items()))


def loads(transfer: Transfer) -> dict[str, float]:
    """Bytes by link."""
    return {load.link.name: load.num_bytes for load in transfer.loads}


# One link for all.


@pytest.mark.parametrize(
    ("kind", "late", "moved"),
    [
        ("all_reduce", 6, 60),
        ("reduce_scatter", 3, 30),
        ("all_to_all", 1, 30),  # messages that do not wait for each other
        ("all_gather", 3, 120),
        ("broadcast", 1, 40),
        ("permute", 1, 40),
    ],
)
def test_collectives_of_four(kind: str, late: int, moved: int) -> None:
    comm = CommSpec("reduce.dp$0", ("dp",), (0,))
    transfer = Network(SLOW).collective(kind, 40, comm, MESH, axis="pp")
    assert transfer.members == 4
    assert loads(transfer) == {"slow": moved}
    assert transfer.busy == moved / 10
    assert transfer.seconds == transfer.busy + late * 1.0


def test_a_collective_goes_at_the_speed_of_its_slowest_axis() -> None:
    network = Network(FAST, {"dp": SLOW})
    across = CommSpec("reduce.dp.pp$0.1", ("dp",), (0, 1))
    assert network.collective("all_reduce", 8, across, MESH, axis="pp").link is SLOW
    assert network.collective("all_reduce", 8, across, MESH, axis="pp").members == 8
    norm = CommSpec("reduce.pp$0.1", (), (0, 1))
    assert network.collective("all_reduce", 8, norm, MESH, axis="pp").link is FAST
    assert network.message(50, (0, 1), MESH, axis="pp").seconds == 1.0
    assert network.message(50, (0, 1), MESH, axis="pp").busy == 0.5


def test_one_member_has_nothing_to_send() -> None:
    alone = CommSpec("alone", (), (0,))
    for network in (Network(SLOW), Network(SLOW, {}, FAST, 2)):
        assert network.collective("all_reduce", 8, alone, MESH, axis="pp").seconds == 0


def test_a_collective_that_is_not_known_is_refused() -> None:
    comm = CommSpec("all", ("dp",), (0,))
    with pytest.raises(ValueError, match="unknown collective 'gossip'"):
        Network(SLOW).collective("gossip", 8, comm, MESH, axis="pp")


# Where ranks are.


@pytest.mark.parametrize(
    ("sizes", "axes", "coordinates", "expected"),
    [
        pytest.param({"pp": 2, "ep": 8}, ["ep"], [0], [(8,)], id="a node each"),
        pytest.param({"ep": 8, "pp": 2}, ["ep"], [0], [(4, 4)], id="every other rank"),
        pytest.param({"pp": 2, "ep": 64}, ["ep"], [1], [(8,) * 8], id="eight nodes"),
        pytest.param({"edp": 2, "ep": 8}, ["edp"], [0], [(1, 1)], id="one in each of two"),
        pytest.param({"edp": 4, "ep": 4}, ["edp"], [0], [(2, 2)], id="two in each of two"),
        pytest.param({"edp": 2, "ep": 4}, ["edp", "ep"], [0], [(8,)], id="two axes in one"),
        pytest.param({"pp": 4, "dp": 4}, ["dp"], [0, 1], [(8,)], id="two coordinates in one"),
        pytest.param({"pp": 4, "dp": 4}, ["dp"], [0, 3], [(4, 4)], id="the ends of a pipeline"),
        pytest.param({"dp": 12}, ["dp"], [0], [(4, 8)], id="a node that is not full"),
        pytest.param({"ep": 4, "tp": 3}, ["tp"], [0], [(3,), (1, 2)], id="some across, some not"),
    ],
)
def test_groups_lie_on_nodes_of_eight(
    sizes: dict[str, int],
    axes: list[str],
    coordinates: list[int],
    expected: list[tuple[int, ...]],
) -> None:
    comm = CommSpec("it", tuple(axes), tuple(coordinates))
    assert sorted(spreads(mesh(**sizes), comm, 8)) == sorted(expected)


@given(
    st.lists(st.integers(1, 4), min_size=3, max_size=3),
    st.permutations(["pp", "dp", "tp"]),
    st.sets(st.sampled_from(["dp", "tp"])),
    st.integers(1, 9),
    st.data(),
)
def test_groups_are_those_of_the_runtime(
    sizes: list[int], names: list[str], axes: set[str], node: int, data: st.DataObject
) -> None:
    where = mesh(**dict(zip(names, sizes, strict=True)))
    everywhere = range(where.num_coordinates)
    coordinates = data.draw(st.sets(st.sampled_from(everywhere), min_size=1))
    comm = CommSpec("it", tuple(sorted(axes)), tuple(sorted(coordinates)))
    groups = [group for group in where.groups(comm) if group]
    expected = {tuple(sorted(Counter(rank // node for rank in g).values())) for g in groups}
    assert set(spreads(where, comm, node)) == expected
    if len(coordinates) > 1:
        ends = comm.coordinates[0], comm.coordinates[-1]
        peers = [where.peers(where.first_rank(ends[0])), *map(where.peers, range(where.world_size))]
        crosses = any(
            {rank // node for rank in group if where.coordinate(rank) == ends[0]}
            != {rank // node for rank in group if where.coordinate(rank) == ends[1]}
            for group in peers
        )
        assert message_crosses(where, ends, node) == crosses


# Nodes.


def nodes(node: int = 2) -> Network:
    """Fast links within nodes, slow ones between them."""
    return Network(FAST, {}, SLOW, node)


def test_within_a_node_all_goes_over_its_link() -> None:
    comm = CommSpec("it", ("dp",), (0,))
    for kind in (*RINGS, "all_to_all", "permute"):
        inside = nodes(4).collective(kind, 40, comm, MESH, axis="pp")
        assert inside == Network(FAST).collective(kind, 40, comm, MESH, axis="pp")


def test_where_every_member_has_its_own_node_all_goes_between_them() -> None:
    apart = mesh(dp=4, tp=2)
    comm = CommSpec("it", ("dp",), (0,))
    for kind in (*RINGS, "all_to_all", "permute"):
        found = nodes().collective(kind, 40, comm, apart, axis="")
        assert found == Network(SLOW).collective(kind, 40, comm, apart, axis="")


@pytest.mark.parametrize(
    ("kind", "fast", "slow", "late"),
    [
        # Rings: two, each through both members of a node, one step in each of which leaves it.
        ("all_reduce", 30, 30, 4 * 0.5 + 2 * 1),
        ("reduce_scatter", 15, 15, 2 * 0.5 + 1),
        ("all_gather", 60, 60, 2 * 0.5 + 1),
        ("broadcast", 20, 20, 1),
        # A quarter of the operand to each of the others, of whom two are in the other node.
        ("all_to_all", 10, 20, 1),
        ("permute", 0, 40, 1),
    ],
)
def test_four_members_in_two_nodes(kind: str, fast: float, slow: float, late: float) -> None:
    comm = CommSpec("it", ("dp",), (0,))
    found = nodes().collective(kind, 40, comm, MESH, axis="pp")
    assert loads(found) == {name: x for name, x in (("slow", slow), ("fast", fast)) if x}
    assert found.link is SLOW
    assert found.busy == slow / 10
    assert found.seconds == found.busy + late


def test_the_longer_part_is_what_takes_the_time() -> None:
    faster = Network(SLOW, {}, FAST, 2)
    comm = CommSpec("it", ("dp",), (0,))
    found = faster.collective("all_to_all", 40, comm, MESH, axis="pp")
    assert (found.link, found.busy) == (SLOW, 1.0)
    assert loads(found) == {"slow": 10, "fast": 20}


def test_nodes_with_unequal_members() -> None:
    """Twelve ranks, eight and four: those in the smaller node have most to send to the other."""
    comm = CommSpec("it", ("dp",), (0,))
    found = nodes(8).collective("all_to_all", 120, comm, mesh(dp=12), axis="")
    assert loads(found) == {"fast": 70, "slow": 80}
    ring = nodes(8).collective("reduce_scatter", 120, comm, mesh(dp=12), axis="")
    assert loads(ring) == {"fast": 110 * 3 / 4, "slow": 110 / 4}


def test_the_slowest_group_counts() -> None:
    """Of groups of three on nodes of eight, some have their members in two nodes."""
    where = mesh(ep=4, tp=3)
    comm = CommSpec("it", ("tp",), (0,))
    found = nodes(8).collective("all_to_all", 30, comm, where, axis="")
    assert loads(found) == {"slow": 20, "fast": 10}


def test_messages_between_coordinates() -> None:
    assert nodes(4).message(50, (0, 1), MESH, axis="pp").link is SLOW
    assert nodes(8).message(50, (0, 1), MESH, axis="pp").link is FAST
    inner = mesh(dp=4, pp=2)
    assert nodes().message(50, (0, 1), inner, axis="pp").link is FAST
    assert nodes(3).message(50, (0, 1), inner, axis="pp").link is SLOW  # ranks 2 and 3


def test_an_axis_with_its_own_link_uses_it_wherever_ranks_are() -> None:
    own = Link("own", "", 1000.0, 0.0, {})
    network = Network(FAST, {"dp": own}, SLOW, 2)
    inner = CommSpec("it", ("dp",), (0,))
    assert network.collective("all_reduce", 8, inner, MESH, axis="pp").loads[0].link is own
    both = CommSpec("it", ("dp",), (0, 1))
    assert network.collective("all_reduce", 8, both, MESH, axis="pp").link is SLOW
    assert network.message(8, (0, 1), MESH, axis="pp").link is SLOW


@given(
    st.sampled_from([*RINGS, "all_to_all"]),
    st.integers(1, 4),
    st.integers(1, 4),
)
def test_both_parts_together_are_what_the_kind_moves(kind: str, node: int, count: int) -> None:
    """What stays in the node and what leaves it are the bytes of the textbook."""
    where = mesh(dp=node * count)
    comm = CommSpec("it", ("dp",), (0,))
    together = sum(loads(nodes(node).collective(kind, 96, comm, where, axis="")).values())
    flat = sum(loads(Network(FAST).collective(kind, 96, comm, where, axis="")).values())
    assert together == pytest.approx(flat)


# Devices.


@pytest.mark.parametrize("name", ["a100", "h100", "h200", "h800"])
def test_the_network_of_a_device_is_as_published(name: str) -> None:
    found: Device = device(name)
    network = Network.of(found)
    assert network.node == 8
    assert network.default.bandwidth > network.across.bandwidth if network.across else False
    where = mesh(pp=2, ep=64)
    experts = CommSpec("it", ("ep",), (0,))
    transfer = network.collective("all_to_all", 64, experts, where, axis="pp")
    assert loads(transfer) == {found.links["nvlink"]: 7, found.links["infiniband"]: 56}
    assert network.message(1, (0, 1), where, axis="pp").link.name == found.links["infiniband"]
    one = Network.of(found, node=prod(axis.size for axis in where.axes))
    assert one.message(1, (0, 1), where, axis="pp").link.name == found.links["nvlink"]


def test_a_network_of_nodes_needs_both_numbers() -> None:
    with pytest.raises(ValueError, match=r"expected their ranks and the link between them, got n"):
        Network(FAST, {}, None, 8)
    with pytest.raises(ValueError, match=r"the link between them, got link slow"):
        Network(FAST, {}, SLOW)
    with pytest.raises(ValueError, match="a node expected at least 1 rank, got 0"):
        Network.of(device("h800"), node=0)
    with pytest.raises(ValueError, match="links of device cpu must be given: it has no known node"):
        Network.of(device("cpu"))
