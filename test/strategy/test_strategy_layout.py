"""The layout string: what it expands to, what is no layout, and chunks that it would lose."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from piper.strategy import Strategy, order, place
from piper.strategy.layout import check_chunks, parse_layout

LETTERS = {"E": "embed", "t": "layer", "L": "head"}


def expand(layout: str) -> str:
    stages = parse_layout(layout, {letter: letter for letter in set(layout) if letter.isalpha()})
    return "|".join("".join(stage) for stage in stages)


@pytest.mark.parametrize(
    ("layout", "expanded"),
    [
        ("E|t|L", "E|t|L"),
        ("Et*3|L", "Ettt|L"),
        ("E(t|)*2L", "Et|t|L"),
        ("E(t*2|)*2,tL", "Ett|tt|tL"),
        ("(Et)*2", "EtEt"),
        ("((E|)*2t|)*2L", "E|E|t|E|E|t|L"),
        ("E,t,,L", "EtL"),
        ("Et*12", "E" + 12 * "t"),
        ("Et*3|(tt|)*29,m|L", "Ettt|" + 29 * "tt|" + "m|L"),
        ("E(|t)*2", "E|t|t"),
        (100 * "(" + "E" + 100 * ")", "E"),
        ("()*999999999t", "t"),
        ("E|*1t", "E|t"),
    ],
)
def test_expands(layout: str, expanded: str) -> None:
    assert expand(layout) == expanded


def test_letters_become_tags() -> None:
    assert parse_layout("Et|tL", LETTERS) == (("embed", "layer"), ("layer", "head"))


@given(st.lists(st.integers(1, 5), min_size=1, max_size=6))
def test_any_sizes_can_be_written(sizes: list[int]) -> None:
    layout = "|".join(f"t*{size}" for size in sizes)
    assert parse_layout(layout, {"t": "layer"}) == tuple(("layer",) * size for size in sizes)


@pytest.mark.parametrize(
    ("layout", "message"),
    [
        ("ExtL", r"layout 'ExtL' expected one of the letters E, t, L at position 1, got 'x'"),
        ("E t L", "expected one of the letters E, t, L at position 1, got ' '"),
        ("E(tL", r"expected '\)' at position 4, got 'its end'"),
        ("Et)L", r"expected no '\)' without '\(' at position 2, got '\)'"),
        ("E*t", "expected a number of at least 1, of .* at position 2, got 't'"),
        ("E*0tL", "expected a number of at least 1, of .* at position 2, got '0'"),
        ("EtL*", "expected a number of at least 1, of .* at position 4, got 'its end'"),
        ("*3EtL", r"expected a letter or '\(' at position 0, got '\*'"),
        ("E||tL", "must have a chunk in every stage, got none in stage 1 of 3"),
        ("|EtL", "must have a chunk in every stage, got none in stage 0 of 2"),
        ("EtL|", "must have a chunk in every stage, got none in stage 1 of 2"),
        ("Et|t", "must have a letter 'L', which stands for 'head': chunks of that tag would be on"),
        ("", "must have a letter 'E'"),
        ("EtL*999999999", "no more than 100000 chunks and ends of stages at position 13"),
        ("E(t*99999)*2L", "no more than 100000 chunks .* at position 12, got 'L'"),
        ("Et*1000000000", "a number .* of at most 9 digits, at position 3, got '1'"),
        ("Et*" + 5000 * "9", "a number .* of at most 9 digits, at position 3, got '9'"),
        (2000 * "(" + "EtL", r"no more than 100 '\(' within each other at position 100, got '\('"),
    ],
)
def test_refuses(layout: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_layout(layout, LETTERS)


@pytest.mark.parametrize("letter", ["", "ab", "|", "3", "*"])
def test_refuses_letters(letter: str) -> None:
    with pytest.raises(ValueError, match="layout letters must be single letters, got"):
        parse_layout("a", {letter: "x", "a": "y"})


@given(st.integers(1, 9), st.integers(1, 9))
def test_no_chunk_is_lost(placed: int, present: int) -> None:
    """Thirty layers once became 28."""
    stages = parse_layout(f"Et*{placed}|L", LETTERS)
    chunks = ["embed.0", *(f"layer.{i}" for i in range(present)), "head.0"]
    if placed == present:
        check_chunks(stages, chunks)
        return
    message = f"layout must place all chunks, got {placed} of 'layer', of which .* has {present}"
    with pytest.raises(ValueError, match=message):
        check_chunks(stages, chunks)


def test_a_tag_without_a_letter_is_found() -> None:
    stages = parse_layout("E|tL", LETTERS)
    with pytest.raises(ValueError, match="got 0 of 'norm', of which the model has 1"):
        check_chunks(stages, ["embed.0", "layer.0", "norm.0", "head.0"])


def test_the_order_of_chunks_is_the_models() -> None:
    stages = parse_layout("t|EL", LETTERS)
    message = "got 'layer' in stage 0 where the model has chunk 'embed.0'"
    with pytest.raises(ValueError, match=message):
        check_chunks(stages, ["embed.0", "layer.0", "head.0"])


def test_a_strategy_writes_sizes_and_checks_chunks() -> None:
    layout = "Et|(t*2|)*2,tL"
    strategy = Strategy(
        mesh={"pp": 4},
        directives=[place(layout=layout, letters=LETTERS), order("1F1B")],
    )
    assert 'piper.do.place <all> stages = 4 axis = "pp" sizes [2, 2, 2, 2] loc' in strategy.ir()
    assert strategy.num_stages == 4
    layers = [f"layer.{index}" for index in range(6)]
    strategy.check_chunks(["embed.0", *layers, "head.0"])
    with pytest.raises(ValueError, match="place layout must place all chunks") as error:
        strategy.check_chunks(["embed.0", *layers[1:], "head.0"])
    assert str(error.value).startswith(f"{__file__}:")


def test_without_a_layout_any_chunks_do() -> None:
    strategy = Strategy(mesh={"pp": 2}, directives=[place(stages=[1, 2]), order("1F1B")])
    strategy.check_chunks(["anything.0"])
