"""The event engine: lanes, waits, rendezvous, links, and circles by name."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from piper.simulate import CycleError, Graph


def test_nothing_takes_no_time() -> None:
    timing = Graph().run()
    assert timing.makespan == 0
    assert timing.critical_path() == ()


def test_a_lane_is_first_in_first_out() -> None:
    graph = Graph()
    slow = graph.add(5)
    first, second = graph.add(1, after=[slow]), graph.add(1)
    graph.enqueue(first, "lane")
    graph.enqueue(second, "lane")
    timing = graph.run()
    assert timing.start.tolist() == [0, 5, 6]  # the second could have gone first, but may not
    assert timing.cause.tolist() == [-1, slow, first]


def test_a_rendezvous_holds_all_of_its_lanes_until_the_last_has_come() -> None:
    graph = Graph()
    busy, meeting, after = graph.add(3), graph.add(2), graph.add(1)
    graph.enqueue(busy, "a")
    graph.enqueue(meeting, "a")
    graph.enqueue(meeting, "b")
    graph.enqueue(after, "b")
    timing = graph.run()
    assert timing.start.tolist() == [0, 3, 5]
    assert timing.critical_path() == ((busy, 0, 3), (meeting, 3, 5), (after, 5, 6))


def test_a_wait_may_be_added_later() -> None:
    graph = Graph()
    early, late = graph.add(1), graph.add(4)
    graph.wait(early, on=late)
    assert graph.run().start.tolist() == [4, 0]


def test_a_link_serves_by_arrival_and_not_by_number() -> None:
    graph = Graph()
    delay = graph.add(2)
    late = graph.add(3, after=[delay])
    early = graph.add(3)
    for node in (late, early):
        graph.claim(node, ["link"], time=3)
    timing = graph.run()
    assert timing.start[early] == 0
    assert timing.start[late] == 3
    assert timing.cause[late] == early


def test_a_link_is_free_when_the_message_still_travels() -> None:
    graph = Graph()
    first, second = graph.add(10), graph.add(10)
    for node in (first, second):
        graph.claim(node, ["link"], time=4)
    timing = graph.run()
    assert timing.end.tolist() == [10, 14]
    assert timing.critical_path() == ((first, 0, 4), (second, 4, 14))


def test_a_node_takes_all_of_its_links_at_once() -> None:
    graph = Graph()
    first, both, third = graph.add(5), graph.add(5), graph.add(5)
    graph.claim(first, ["out of 0"], time=5)
    graph.claim(both, ["out of 0", "into 1"], time=5)
    graph.claim(third, ["into 1"], time=5)
    assert graph.run().start.tolist() == [0, 5, 10]


def test_a_circle_is_named_and_lanes_are_passed_over() -> None:
    graph = Graph()
    names = ["send", "between", "recv", "bystander"]
    send, between, recv, bystander = (graph.add(1) for _ in names)
    for node in (recv, between, send):
        graph.enqueue(node, "lane")
    graph.wait(recv, on=send)
    graph.enqueue(bystander, "another lane")
    with pytest.raises(CycleError) as caught:
        graph.run(names.__getitem__)
    assert str(caught.value).splitlines() == [
        "expected an order, got a circle:",
        "recv waits for send",
        "send waits for recv, which comes before it there",
    ]
    assert [(wait.node, wait.on) for wait in caught.value.waits] == [(recv, send), (send, recv)]


def test_a_circle_of_two_rendezvous_in_two_orders() -> None:
    graph = Graph()
    one, two = graph.add(1), graph.add(1)
    for lane, order in (("a", (one, two)), ("b", (two, one))):
        for node in order:
            graph.enqueue(node, lane)
    with pytest.raises(CycleError, match="0 waits for 1, which comes before it there"):
        graph.run()


@pytest.mark.parametrize("duration", [-1, float("nan"), float("inf")])
def test_durations_are_numbers(duration: float) -> None:
    with pytest.raises(ValueError, match="duration must be finite and at least 0, got"):
        Graph().add(duration)


def test_a_link_is_not_held_longer_than_the_node_takes() -> None:
    graph = Graph()
    node = graph.add(1)
    with pytest.raises(ValueError, match=r"between 0 and the node's duration 1, got 2"):
        graph.claim(node, ["link"], time=2)


def random_graph(seed: int, *, scale: float = 1, links: bool = False) -> Graph:
    choice, graph = random.Random(seed), Graph()
    for node in range(60):
        before = choice.sample(range(node), min(node, choice.randrange(3)))
        graph.add(scale * choice.randrange(6), after=before)
        for lane in choice.sample("abcd", choice.randrange(3)):
            graph.enqueue(node, lane)
        if links and choice.random() < 0.5:
            graph.claim(node, choice.sample("xyz", choice.randrange(1, 3)), time=0)
    return graph


@given(st.integers(0, 10**6), st.booleans())
def test_the_critical_path_fills_the_makespan(seed: int, links: bool) -> None:
    timing = random_graph(seed, links=links).run()
    path = timing.critical_path()
    assert sum(end - start for _, start, end in path) == timing.makespan
    assert [start for _, start, _ in path] == [0, *(end for _, _, end in path[:-1])]


@given(st.integers(0, 10**6), st.integers(1, 9))
def test_scaled_durations_scale_all_times(seed: int, scale: int) -> None:
    plain, scaled = random_graph(seed).run(), random_graph(seed, scale=scale).run()
    assert np.array_equal(plain.start * scale, scaled.start)
    assert np.array_equal(plain.end * scale, scaled.end)


def test_cost_is_linear_enough_for_many_nodes() -> None:
    """A hundred thousand nodes on a hundred lanes: a quadratic engine would not come back."""
    graph, lanes = Graph(), 100
    for node in range(100_000):
        graph.add(1, after=[node - lanes - 1] if node > lanes else [])
        graph.enqueue(node, node % lanes)
    assert graph.run().makespan == 100_000 / lanes
