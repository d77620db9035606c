"""The overlap directive: what it accepts, what it refuses, what it becomes."""

from __future__ import annotations

import re

import pytest
from piper.strategy import Overlap, overlap


@pytest.mark.parametrize(
    ("tag", "order", "message"),
    [
        ("", "F B", "overlap tag must be a glob over tags of chunks, got ''"),
        ("moe", "", "overlap order must be names of pieces such as 'F1' and 'B.dispatch', got ()"),
        ("moe", [1], "overlap order must be names of pieces such as 'F1' and 'B.dispatch', got (1"),
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
