"""The user_pass directive: what it accepts, what it refuses, what it becomes."""

from __future__ import annotations

import math
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from piper.mlir import ir
from piper.mlir.dialects import piper
from piper.strategy import Strategy, UserPass, user_pass
from piper.user_passes import read_options

MODULE = """
from __future__ import annotations

def plain(module): ...

def typed(module, *, name: str = "", rate: float = 0.0, count: int = 0, on: bool = False): ...

def needs(module, *, states: str): ...

def open(module, **options): ...

class Group:
    @staticmethod
    def inner(module): ...

text = "no function"
"""


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "passes_of_a_user.py").write_text(MODULE)
    (tmp_path / "broken_module.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "passes_of_a_user", raising=False)


def make(function: str = "typed", /, at: Any = "step", **options: Any) -> UserPass:
    name = function if ":" in function else f"passes_of_a_user:{function}"
    return user_pass(name, at=at, **options)


@pytest.mark.parametrize(
    ("function", "options", "message"),
    [
        (":plain", {}, "function must be a name such as \"package.module:function\", got ':plain'"),
        ("a:b:c", {}, "function must be a name such as"),
        ("typed", {"at": "programs"}, "at must be one of ('step', 'chunks', 'facts', 'cluster'), "),
        (
            "no.such.module:plain",
            {},
            (
                "expected module 'no.such.module' to be importable (its folder in sys.path, to which "
                "PYTHONPATH adds), got ModuleNotFoundError: No module named 'no'"
            ),
        ),
        ("broken_module:plain", {}, "got ZeroDivisionError: division by zero"),
        (
            "absent",
            {},
            (
                "'passes_of_a_user:absent' expected a function of module 'passes_of_a_user' "
                "(plain, typed, needs, open), got 'absent'"
            ),
        ),
        ("text", {}, "(plain, typed, needs, open), got 'text'"),
        ("Group.absent", {}, "got 'Group.absent'"),
        (
            "plain",
            {"rate": 1.0},
            (
                "'passes_of_a_user:plain' expected the arguments (module), got a module and rate: "
                "got an unexpected keyword argument 'rate'"
            ),
        ),
        (
            "needs",
            {},
            (
                "'passes_of_a_user:needs' expected the arguments (module, *, states: 'str'), got a "
                "module and no option: missing a required"
            ),
        ),
        ("typed", {"name": 3}, "'passes_of_a_user:typed' option name must be str, got 3"),
        ("typed", {"rate": "3"}, "option rate must be float, got '3'"),
        ("typed", {"count": 3.0}, "option count must be int, got 3.0"),
        ("typed", {"count": True}, "option count must be int, got True"),
        ("typed", {"on": 1}, "option on must be bool, got 1"),
        ("open", {"sizes": [1]}, "option sizes must be str, int, float or bool, got [1]"),
        ("open", {"nothing": None}, "option nothing must be str, int, float or bool, got None"),
        ("open", {"count": 2**63}, f"option count must fit in 64 bits, got {2**63}"),
        ("open", {"a b": 1}, "option must have a name, got 'a b'"),
    ],
)
def test_refuses(function: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^user_pass .*{re.escape(message)}"):
        make(function, **options)


def test_function_must_be_named() -> None:
    named: Any = test_function_must_be_named
    with pytest.raises(ValueError, match=r"function must be a name .*, got <function test_"):
        user_pass(named, at="step")


def test_op_and_call() -> None:
    directive = make(name="layers.*", rate=0.5, count=-3, on=True)
    assert directive.op() == (
        'piper.do.user_pass "passes_of_a_user:typed" at "step" options {"name" = "layers.*", '
        '"rate" = 0.5, "count" = -3, "on" = true}'
    )
    assert repr(directive) == (
        "user_pass('passes_of_a_user:typed', at='step', name='layers.*', rate=0.5, count=-3, "
        "on=True)"
    )
    assert make("plain", at="cluster").op() == (
        'piper.do.user_pass "passes_of_a_user:plain" at "cluster"'
    )
    assert make("Group.inner").op() == 'piper.do.user_pass "passes_of_a_user:Group.inner" at "step"'


@pytest.mark.parametrize(
    "value",
    [
        *("", 'a"b\\c\nd', "é"),
        *(0, -(2**63), 2**63 - 1, True, False),
        *(0.1, 1e-6, 1e300, -0.0, 1 / 3, math.inf, -math.inf, 5e-324, math.pi * 1e22),
    ],
)
def test_options_are_read_back_as_they_were(value: Any) -> None:
    """Also after a second print."""
    text = Strategy(mesh={}, directives=[make("open", value=value)]).ir()
    with ir.Context():
        module = ir.Module.parse(str(ir.Module.parse(text)))
        strategy = module.body.operations[1]
        assert isinstance(strategy, piper.StrategyOp)
        [directive] = strategy.body.blocks[0].operations
        assert isinstance(directive, piper.DoUserPassOp)
        [(name, found)] = read_options(directive).items()
    assert name == "value"
    assert type(found) is type(value)
    assert repr(found) == repr(value)


def test_ints_are_floats() -> None:
    assert make(rate=2).op().endswith('options {"rate" = 2}')


def test_stands_in_the_strategy_with_its_line() -> None:
    made = Strategy(mesh={}, directives=[make("plain"), make("plain", at="facts")])
    lines = [line for line in str(made).splitlines() if "do.user_pass" in line]
    assert len(lines) == 2
    assert re.search(r'at "step" loc\("[^"]*test_strategy_user_pass\.py":\d+:\d+\)$', lines[0])
    assert ' at "facts" loc(' in lines[1]


def test_a_pass_may_stand_twice_with_other_options() -> None:
    given = [make(rate=0.5), make(rate=0.25)]
    assert Strategy(mesh={}, directives=given).all(UserPass) == tuple(given)
