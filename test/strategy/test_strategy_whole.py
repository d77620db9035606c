"""Whole strategies: what follows from the directives, and every contradiction among them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from piper.schedules import Homes, Table, generate, validate
from piper.strategy import (
    Directive,
    Strategy,
    annotate,
    order,
    place,
    replicate,
    split,
    update,
)
from torch import nn

PLACE, ORDER, REPLICATE = place(stages=2), order("1F1B"), replicate()


def make_sgd(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1)


def test_collects_what_directives_say() -> None:
    strategy = Strategy(
        mesh={"pp": 2, "dp": 2},
        directives=[
            annotate({"embed": "first", "layers.*": "layer"}),
            annotate({"head": "last"}),
            split(microbatches=4, dims={"mask": None}),
            split(microbatches=4, dims={"x": 1}),
            place(stages=[3, 2], coordinates=[1, 0]),
            replicate(),
            order("gpipe"),
            update(make_sgd, clip=1.0),
        ],
    )
    assert strategy.tags == {"embed": "first", "layers.*": "layer", "head": "last"}
    assert strategy.microbatches == 4
    assert strategy.dims == {"mask": None, "x": 1}
    assert strategy.homes == Homes.listed([1, 0])
    assert strategy.num_stages == 2
    assert strategy.table.rows == generate("GPipe", ranks=2, microbatches=4).rows[::-1]
    assert strategy.update is not None
    assert strategy.update.clip == 1.0
    assert strategy.source.file == __file__


def test_defaults_without_directives() -> None:
    strategy = Strategy(mesh={}, directives=[])
    assert strategy.microbatches == 1
    assert strategy.homes == Homes.each(1)
    assert strategy.table == Table.parse(["0F0 0B0"])
    assert strategy.update is None


def test_one_stage_accumulates_gradients() -> None:
    strategy = Strategy(mesh={"pp": 1}, directives=[split(microbatches=2)])
    assert strategy.table.lines() == ("0F0 0B0 0F1 0B1",)


LAYOUT: dict[str, Any] = {"layout": "Ett|tL", "letters": {"E": "first", "t": "layer", "L": "last"}}


@pytest.mark.parametrize(
    ("places", "sizes"),
    [
        ([place(stages=2), place(stages=[3, 3])], [3, 3]),
        ([place(stages=2), place(**LAYOUT)], [3, 2]),
        ([place(stages=[3, 2]), place(**LAYOUT), place(stages=2)], [3, 2]),
    ],
)
def test_places_add_up(places: list[Directive], sizes: list[int]) -> None:
    """One says how many stages there are, another how large; all then say so to the compiler."""
    for said in (places, places[::-1]):
        strategy = Strategy(mesh={"pp": 2}, directives=[*said, ORDER])
        assert strategy.num_stages == 2
        clause = f'place <all> stages = 2 axis = "pp" sizes {sizes} loc'
        assert strategy.ir().count(clause) == len(places)


def test_table_of_the_user_loses_its_idle_cells() -> None:
    table = Table.parse(["0F0 . . 0B0", ". 1F0 1B0 ."])
    strategy = Strategy(mesh={"pp": 2}, directives=[PLACE, order(table)])
    assert strategy.table == table.without_idle()


@given(st.permutations(range(4)), st.integers(1, 6), st.sampled_from(["GPipe", "1F1B"]))
def test_rows_follow_their_stages(homes: Sequence[int], microbatches: int, name: str) -> None:
    strategy = Strategy(
        mesh={"pp": 4},
        directives=[
            place(stages=4, coordinates=homes),
            split(microbatches=microbatches),
            order(name),
        ],
    )
    validate(strategy.table, Homes.listed(homes), microbatches)


def test_repr_is_the_call() -> None:
    strategy = Strategy(mesh={"pp": 2}, directives=[PLACE, ORDER, split(microbatches=2)])
    assert repr(strategy) == (
        "Strategy(mesh={'pp': 2}, directives=[\n"
        "    place(stages=2),\n"
        "    order(schedule='1F1B'),\n"
        "    split(microbatches=2),\n"
        "])"
    )


REFUSED: dict[str, tuple[dict[str, int], list[Directive], str]] = {
    "unknown axis": (
        {"pp": 2, "dp": 2},
        [place(stages=2, axis="qq")],
        "place axis 'qq' is not in the mesh, which has pp, dp",
    ),
    "no axis": ({}, [REPLICATE], "replicate axis 'dp' is not in the mesh, which has no axis"),
    "place on dp": (
        {"dp": 2},
        [place(stages=2, axis="dp")],
        "place axis must be unrolled, got 'dp', which is manual",
    ),
    "replicate on pp": (
        {"pp": 2},
        [replicate(axis="pp")],
        "replicate axis must be manual, got 'pp', which is unrolled",
    ),
    "stages": (
        {"pp": 2},
        [place(stages=3), ORDER],
        "order 1F1B needs stages == ranks = 2, got 3",
    ),
    "chunk counts": (
        {"pp": 2},
        [place(stages=[1, 1, 1]), ORDER],
        "order 1F1B needs stages == ranks = 2, got 3",
    ),
    "one stage": (
        {"pp": 2},
        [place(stages=1)],
        "stages must equal the size of axis 'pp', one stage .* got 1 stages and size 2: coord",
    ),
    "no place": (
        {"pp": 2},
        [ORDER],
        r"mesh axis 'pp' of size 2 is used by no directive, expected place\(stages=2, axis='pp'\)",
    ),
    "no replicate": (
        {"dp": 4},
        [],
        r"mesh axis 'dp' of size 4 is used by no directive, expected replicate\(axis='dp'\)",
    ),
    "no order": ({"pp": 2}, [PLACE], r"2 stages have no order, expected one such as order\('1F1B'"),
    "table": (
        {"pp": 2},
        [PLACE, order(Table.parse(["0F0 0B0 0F1", "1F0 1B0"]))],
        "(?s)order schedule table: rank 0, step 2: 0F1 expected a microbatch below 1.*>0F1<",
    ),
}


@pytest.mark.parametrize(("mesh", "directives", "message"), REFUSED.values(), ids=REFUSED)
def test_refuses(mesh: dict[str, int], directives: list[Directive], message: str) -> None:
    with pytest.raises(ValueError, match=message) as error:
        Strategy(mesh=mesh, directives=directives)
    assert str(error.value).startswith(f"{__file__}:"), "the message starts with a place"


def test_refuses_what_is_no_directive() -> None:
    wrong: Any = "1F1B"
    with pytest.raises(TypeError, match=r"directives\[1\] must be made by annotate, .* got '1F1B'"):
        Strategy(mesh={}, directives=[split(microbatches=1), wrong])


CONFLICTS: list[tuple[Directive, Directive, str]] = [
    (
        split(microbatches=2),
        split(microbatches=4),
        "split sets the number of microbatches to 4, but .* sets it to 2",
    ),
    (
        split(microbatches=2, dims={"x": 0}),
        split(microbatches=2, dims={"x": None}),
        "split sets the batch dim of 'x' to None, but .* sets it to 0",
    ),
    (
        annotate({"a": "x"}),
        annotate({"a": "y"}),
        "annotate sets the tag of 'a' to 'y', but .* sets it to 'x'",
    ),
    (
        place(stages=2, coordinates="each"),
        place(stages=2, coordinates=[1, 0]),
        r"place sets the coordinates of 'pp' to \[1, 0\], but .* sets it to each",
    ),
    (
        place(stages=2),
        place(stages=3),
        "place sets the number of stages on 'pp' to 3, but .* sets it to 2",
    ),
    (
        place(stages=[3, 3]),
        place(stages=[2, 4]),
        r"place sets the sizes of stages on 'pp' to \(2, 4\), but .* sets it to \(3, 3\)",
    ),
    (
        place(layout="E|tt", letters={"E": "first", "t": "layer"}),
        place(stages=[2, 1]),
        r"place sets the sizes of stages on 'pp' to \(2, 1\), but .* sets it to \(1, 2\)",
    ),
    (
        replicate(),
        replicate(bucket_size=1),
        "replicate sets the bucket_size on 'dp' to 1, but .* sets it to 25000000",
    ),
    (order("1F1B"), order("GPipe"), "order sets the schedule to 'GPipe', but .* to '1F1B'"),
    (update(make_sgd), update(make_sgd, clip=1.0), "update sets the gradient clip to 1.0, but"),
]


@pytest.mark.parametrize(("first", "second", "message"), CONFLICTS)
def test_contradictions_name_both_places(first: Directive, second: Directive, message: str) -> None:
    with pytest.raises(ValueError, match=message) as error:
        Strategy(mesh={"pp": 2, "dp": 2}, directives=[first, second])
    assert str(error.value).startswith(f"{second.source}: ")
    assert f"but {first.source} sets" in str(error.value)


@given(st.permutations([PLACE, ORDER, REPLICATE, split(microbatches=2), split(microbatches=2)]))
def test_order_and_repetition_have_no_meaning(directives: list[Directive]) -> None:
    strategy = Strategy(mesh={"pp": 2, "dp": 2}, directives=directives)
    assert strategy.table == generate("1F1B", ranks=2, microbatches=2)
