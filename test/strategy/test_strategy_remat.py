"""remat: what it accepts, what it refuses, what it writes, and conflicts in a strategy."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import piper
import pytest
from piper.strategy import Remat, remat

anything: Any = object()

REFUSED: dict[str, tuple[Callable[[], object], type[Exception], str]] = {
    "policy": (
        lambda: remat(policy="most"),  # type: ignore[arg-type]
        ValueError,
        r"policy must be one of \('min_cut', 'full', 'save'\), got 'most'",
    ),
    "tag": (
        lambda: remat("layer[0"),
        ValueError,
        r"tag must be a name, in which \* and \? may stand, got 'layer\[0'",
    ),
    "chunk": (lambda: remat("layer.0"), ValueError, "tag must be a name, .* got 'layer.0'"),
    "no tag": (lambda: remat(anything), ValueError, "tag must be a name, .* got <object"),
    "op": (
        lambda: remat(ops=["aten gelu"]),
        ValueError,
        "ops must be a name, .* got 'aten gelu'",
    ),
    "one op": (
        lambda: remat(ops="aten.gelu.*"),
        TypeError,
        "ops must be a sequence of globs, got 'aten.gelu",
    ),
    "no op": (lambda: remat(ops=[]), ValueError, "ops must be at least one glob, or None"),
    "ops of save": (
        lambda: remat(policy="save", ops=["aten.gelu.*"]),
        ValueError,
        "ops must be None for policy 'save', which computes none again",
    ),
}


@pytest.mark.parametrize(("make", "kind", "message"), REFUSED.values(), ids=REFUSED)
def test_refuses(make: Callable[[], object], kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=f"^remat {message}"):
        make()


@pytest.mark.parametrize(
    ("directive", "call", "op"),
    [
        (remat(), "remat()", '<all> policy = "min_cut"'),
        (
            remat("l?y*", policy="full"),
            "remat(tag='l?y*', policy='full')",
            '<tag = "l?y*"> policy = "full"',
        ),
        (remat(policy="save"), "remat(policy='save')", '<all> policy = "save"'),
        (
            remat(ops=["aten.gelu.*", "aten.mul.Tensor"]),
            "remat(ops=('aten.gelu.*', 'aten.mul.Tensor'))",
            '<all> policy = "min_cut" ops ["aten.gelu.*", "aten.mul.Tensor"]',
        ),
    ],
)
def test_reads_as_its_call_and_writes_its_op(directive: Remat, call: str, op: str) -> None:
    assert repr(directive) == call
    assert directive.op() == f"piper.do.remat {op}"


def test_remembers_where_it_was_written() -> None:
    frame = inspect.currentframe()
    assert frame is not None
    written = frame.f_lineno + 1
    directive = remat()
    assert (directive.source.file, directive.source.line) == (__file__, written)


def test_two_that_agree_are_one() -> None:
    directives = [remat("layer", policy="full"), remat("layer", policy="full"), remat("head")]
    strategy = piper.Strategy(mesh={}, directives=directives)
    assert str(strategy).count('piper.do.remat <tag = "layer"> policy = "full"') == 2


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        (
            remat("layer", policy="full"),
            remat("layer", policy="save"),
            r"remat sets the policy of chunks 'layer' to 'save', but .*:\d+ sets it to 'full'",
        ),
        (
            remat(ops=["aten.gelu.*"]),
            remat(),
            r"remat sets the ops of all chunks to None, but .*:\d+ sets it to \('aten.gelu.\*',\)",
        ),
    ],
)
def test_two_that_disagree_are_refused(first: Remat, second: Remat, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        piper.Strategy(mesh={}, directives=[first, second])
