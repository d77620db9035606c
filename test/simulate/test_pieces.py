"""Cells of pieces: equal to plain tables where a cell is one piece, and checked by hand elsewhere."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from piper.schedules import SCHEDULES, Action, Pair, Table, generate
from piper.simulate import Costs, Link, simulate
from piper.simulate.network import Load, Transfer
from piper.simulate.pieces import Piece, chain, simulate_pieces

WIRE, FREE = Link("wire", "", 1.0, 0.0, {}), Link("free", "", 1e30, 0.0, {})


def moved(size: float, link: Link = WIRE, *, late: float = 0.0) -> Transfer:
    return Transfer(4, (Load(link, size),), size / link.bandwidth + late)


def nothing(source: int, rank: int) -> Transfer:
    return moved(0.0)


def members(cell: Action | Pair) -> tuple[Action, ...]:
    return (cell,) if isinstance(cell, Action) else (cell.forward, cell.backward)


@pytest.mark.parametrize("name", sorted(SCHEDULES))
@pytest.mark.parametrize("latency", [0.0, 0.75])
def test_cells_of_one_piece_are_those_of_a_table(name: str, latency: float) -> None:
    table = generate(name, ranks=4, microbatches=8)
    costs = Costs.uniform(F=1.5, I=1.25, W=1, pair=3.5)

    def pieces(cell: Action | Pair) -> Sequence[Piece]:
        return [Piece("all", costs.of(cell), (), members(cell), members(cell))]

    found = simulate_pieces(table, pieces, lambda *_: moved(0.0, FREE, late=latency))
    plain = simulate(table, costs, latency=latency)
    assert found.makespan == pytest.approx(plain.makespan)
    assert found.busy == pytest.approx(plain.busy_per_rank)


F, B = Action(0, "F", 0), Action(0, "B", 0)
NEXT = Action(0, "F", 1)


def layer(action: Action) -> list[Piece]:
    """A forward or backward of a layer of experts, one piece behind the other."""
    return list(
        chain(("attention", 2), ("to", moved(3)), ("experts", 1), ("from", moved(3)), of=action)
    )


def test_without_overlap_all_of_an_exchange_is_exposed() -> None:
    found = simulate_pieces(Table.parse("0F0 0B0"), layer, nothing)  # type: ignore[arg-type]
    assert (found.makespan, found.busy) == (18, (6,))
    assert found.exposed("all_to_all") == found.under_way("all_to_all") == 12
    assert found.exposed("messages") == 0
    assert found.spans[B, "to"] == (11, 14)


def test_a_pair_hides_exchanges_behind_compute() -> None:
    """Each of two microbatches computes while the rows of the other are under way."""

    def pieces(cell: Action | Pair) -> Sequence[Piece]:
        if isinstance(cell, Action):
            return layer(cell)
        f, b = cell.forward, cell.backward
        return [
            Piece("B to", moved(3), begins=(b,)),
            Piece("F attention", 2, begins=(f,)),
            Piece("F to", moved(3), after=("F attention",)),
            Piece("B experts", 2, after=("B to",)),
            Piece("B from", moved(3), after=("B experts",)),
            Piece("F experts", 1, after=("F to",)),
            Piece("F from", moved(3), after=("F experts",), ends=(f,)),
            Piece("B attention", 4, after=("B from",), ends=(b,)),
        ]

    # after 0F0, whose last exchange ends at 9; the next attention need not wait for that
    #                6    9         12        15        18        21
    # compute        |F 2|. . . . . | B 2 |.1 |F 1|..2  |  B attention 4 |
    # exchange   from     | B to    | F to    | B from  | F from  |
    found = simulate_pieces(Table.parse("0F0 (0F1;0B0)OVERLAP_F_B"), pieces, nothing)
    pair = Pair(NEXT, B)
    spans = {name: span for (cell, name), span in found.spans.items() if cell == pair}
    assert {name: (start - 9, end - 9) for name, (start, end) in spans.items()} == {
        "B to": (0, 3),
        "F attention": (-3, -1),
        "F to": (3, 6),
        "B experts": (3, 5),
        "B from": (6, 9),
        "F experts": (6, 7),
        "F from": (9, 12),
        "B attention": (9, 13),
    }
    assert found.exposed("all_to_all") == 3 + 1 + (3 + 1 + 2)
    assert found.makespan == 9 + 13


def test_messages_and_exchanges_share_the_way_out() -> None:
    """Rank 0 sends what its forward made while the rows of its next forward want the same way."""

    def pieces(cell: Action | Pair) -> Sequence[Piece]:
        assert isinstance(cell, Action)
        if cell.stage:
            return list(chain(("all", 1), of=cell))
        return list(chain(("attention", 1), ("to", moved(4)), ("experts", 1), of=cell))

    table = Table.parse(["0F0 0F1", "1F0 1F1"])
    found = simulate_pieces(table, pieces, lambda *_: moved(2))
    assert found.spans[Action(0, "F", 0), "experts"] == (5, 6)
    assert found.spans[Action(0, "F", 1), "to"] == (8, 12)  # not from 7: the message takes until 8
    assert found.spans[Action(1, "F", 0), "all"] == (8, 9)
    by_kind = [{part.kind: part for part in parts} for parts in found.exposures]
    assert by_kind[0]["all_to_all"].axis == "ep"
    assert by_kind[0]["all_to_all"].exposed == 8
    assert by_kind[1]["messages"].axis == "pp"
    assert by_kind[1]["messages"].exposed == 4
    assert [dict(by_kind[rank]["messages"].num_bytes) for rank in (0, 1)] == [{"wire": 4}] * 2


def test_a_result_is_there_when_the_piece_that_ends_it_is() -> None:
    """What comes behind it in its cell, such as weight gradients, holds up nobody else."""

    def pieces(cell: Action | Pair) -> Sequence[Piece]:
        assert isinstance(cell, Action)
        if cell.pass_ == "F":
            return list(chain(("all", 1), of=cell))
        return [Piece("inputs", 1, begins=(cell,), ends=(cell,)), Piece("weights", 5)]

    found = simulate_pieces(Table.parse(["0F0 0B0", "1F0 1B0"]), pieces, nothing)
    assert found.spans[Action(0, "B", 0), "inputs"] == (3, 4)
    assert found.makespan == 9


@pytest.mark.parametrize(
    ("pieces", "message"),
    [
        ([Piece("a", 1)], "pieces of 0F0 must begin each of its actions, got nothing"),
        ([Piece("a", 1, begins=(F,))], "pieces of 0F0 must end each of its actions, got nothing"),
        (
            [Piece("a", 1, begins=(F, F), ends=(F,))],
            "pieces of 0F0 must begin each of its actions, got 0F0, 0F0",
        ),
        (
            [Piece("a", 1, after=("b",), begins=(F,), ends=(F,))],
            "piece a of 0F0 waits for b, which is no piece before it",
        ),
    ],
)
def test_pieces_must_make_their_cell(pieces: Sequence[Piece], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        simulate_pieces(Table.parse("0F0"), lambda _: pieces, nothing)


def test_a_table_that_lacks_an_input_is_refused() -> None:
    with pytest.raises(ValueError, match="1F0 waits for 0F0, which never runs"):
        simulate_pieces(Table.parse("1F0"), layer, nothing)  # type: ignore[arg-type]
