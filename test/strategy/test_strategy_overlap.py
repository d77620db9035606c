"""The overlap directive: what it accepts, what it refuses, what it becomes."""

from __future__ import annotations

import re

import pytest
from piper.schedules import Pair, generate, halve_pairs
from piper.strategy import Overlap, Strategy, order, overlap, place, split


@pytest.mark.parametrize(
    ("tag", "order", "message"),
    [
        ("", "F B", "overlap tag must be a glob over tags of chunks, got ''"),
        ("moe", "", "overlap order must be names of pieces such as 'F1' and 'B.dispatch', got ()"),
        ("moe", [1], "overlap order must be names of pieces such as 'F1' and 'B.dispatch', got (1"),
        ("moe", "I F B1", "overlap order must name pieces of a whole backward, which is B, or of "),
        ("moe", "B F W", "its two halves, which are I and W, got 'B F W'"),
        ("moe", "F W", "its two halves, which are I and W, got 'F W'"),
    ],
)
def test_what_is_refused(tag: str, order: list[str] | str, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        overlap(tag, order)


def test_words_and_lists_are_one() -> None:
    directive = overlap("moe", "B F.counts F1")
    assert directive.op() == 'piper.do.overlap <tag = "moe"> order = ["B", "F.counts", "F1"]'
    assert directive.facts() == overlap("moe", ["B", "F.counts", "F1"]).facts()
    assert isinstance(directive, Overlap)


@pytest.mark.parametrize(
    ("template", "halved"), [("F B", False), ("F I", True), ("I.dispatch F I1 W", True)]
)
def test_pairs_are_halved_if_the_template_has_halves(template: str, halved: bool) -> None:
    directives = [place(stages=4), split(microbatches=4), order("DualPipeV")]
    strategy = Strategy(mesh={"pp": 2}, directives=[*directives, overlap("moe", template)])
    whole = generate("DualPipeV", ranks=2, microbatches=4)
    assert strategy.table == (halve_pairs(whole) if halved else whole)
    pairs = [cell for row in strategy.table.rows for cell in row if isinstance(cell, Pair)]
    assert {pair.backward.pass_ for pair in pairs} == {"I" if halved else "B"}
