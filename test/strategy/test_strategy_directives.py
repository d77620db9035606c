"""Directives by themselves: what they accept, what they refuse, where they say they were written."""

from __future__ import annotations

import functools
import inspect
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from piper.schedules import Table
from piper.strategy import (
    Annotate,
    Directive,
    annotate,
    order,
    place,
    replicate,
    split,
    update,
)
from piper_runtime import LossScale
from torch import nn

anything: Any = object()


def make_sgd(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1)


def make_local() -> Callable[[list[nn.Parameter]], torch.optim.Optimizer]:
    def make(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        return make_sgd(parameters)

    return make


REFUSED: dict[str, tuple[Callable[[], object], type[Exception], str]] = {
    "no path": (lambda: annotate({}), ValueError, "at least one module path"),
    "path": (lambda: annotate({anything: "a"}), TypeError, "module path must be a str, got"),
    "tag": (lambda: annotate({"a": "b/c"}), ValueError, "tag must be an identifier.*got 'b/c'"),
    "context tag": (lambda: annotate("1st"), ValueError, "tag must be an identifier.*got '1st'"),
    "no microbatch": (lambda: split(microbatches=0), ValueError, "at least 1, got 0"),
    "half": (lambda: split(microbatches=anything), ValueError, "microbatches must be an int"),
    "true": (lambda: split(microbatches=True), ValueError, "microbatches must be an int"),
    "dim": (
        lambda: split(microbatches=2, dims={"x": -1}),
        ValueError,
        "dim of input 'x' must be None or an int of at least 0, got -1",
    ),
    "no stage": (lambda: place(stages=0), ValueError, "stages must be .* at least 1, got 0"),
    "no stages": (lambda: place(stages=[]), ValueError, "number must be .* at least 1, got 0"),
    "empty stage": (lambda: place(stages=[2, 0]), ValueError, "chunks of stage 1 .* got 0"),
    "gap": (
        lambda: place(stages=2, coordinates=[0, 2]),
        ValueError,
        r"place coordinates: homes must put a stage on every rank, got \[0, 2\] without 1",
    ),
    "word": (
        lambda: place(stages=2, coordinates="w"),  # type: ignore[arg-type]
        ValueError,
        "must be 'each', 'loop', 'v', 'bidirectional', the coordinate of each stage .* got 'w'",
    ),
    "no coordinates": (
        lambda: place(stages=2, coordinates=anything),
        TypeError,
        "coordinates must be 'each', 'loop', .* got <object",
    ),
    "stages and layout": (
        lambda: place(stages=2, layout="a|b", letters={"a": "x", "b": "y"}),
        TypeError,
        "either stages or layout, got both or neither",
    ),
    "neither": (lambda: place(), TypeError, "either stages or layout, got both or neither"),
    "no letters": (lambda: place(layout="a|b"), TypeError, "layout and letters together"),
    "letters alone": (
        lambda: place(stages=2, letters={"a": "x"}),
        TypeError,
        "layout and letters together",
    ),
    "layout": (
        lambda: place(layout="a|", letters={"a": "x"}),
        ValueError,
        r"place layout 'a\|' must have a chunk in every stage, got none in stage 1 of 2",
    ),
    "too few": (
        lambda: place(stages=3, coordinates=[1, 0]),
        ValueError,
        r"one coordinate for each of 3 stages, got \[1, 0\]",
    ),
    "zero 4": (lambda: replicate(zero=4), ValueError, "zero must be 0, 1, 2 or 3, got 4"),
    "bucket": (lambda: replicate(bucket_size=0), ValueError, "bucket_size must be .* got 0"),
    "no axis": (lambda: replicate(axis=()), ValueError, r"one or more distinct axes, got \(\)"),
    "axis twice": (
        lambda: replicate(axis=("dp", "dp")),
        ValueError,
        r"axis must be one or more distinct axes, got \('dp', 'dp'\)",
    ),
    "nothing to shard": (
        lambda: replicate(shard="dp"),
        ValueError,
        "shard='dp' has no effect with zero=0, which shards nothing",
    ),
    "other shard": (
        lambda: replicate(zero=1, shard="dp_shard"),
        ValueError,
        r"shard must be one or more distinct axes of \('dp',\), got 'dp_shard'",
    ),
    "gather": (
        lambda: replicate(zero=3, gather="never"),  # type: ignore[arg-type]
        ValueError,
        "gather must be 'each', 'group' or 'step', got 'never'",
    ),
    "nothing to gather": (
        lambda: replicate(zero=2, gather="each"),
        ValueError,
        "gather='each' has no effect with zero=2, expected zero=3",
    ),
    "nothing to limit": (
        lambda: replicate(zero=1, gather_limit=2),
        ValueError,
        "gather_limit=2 has no effect with zero=1, expected zero=3, .* or zero=1 or 2 with gather='",
    ),
    "limit": (
        lambda: replicate(zero=3, gather_limit=0),
        ValueError,
        "gather_limit must be .* at least 1, got 0",
    ),
    "nothing to prefetch": (
        lambda: replicate(prefetch=2),
        ValueError,
        "prefetch=2 has no effect with zero=0, expected zero=3",
    ),
    "prefetch": (
        lambda: replicate(zero=3, prefetch=-1),
        ValueError,
        "prefetch must be an int of at least 0, got -1",
    ),
    "master": (
        lambda: update(make_sgd, master_dtype=torch.int64),
        ValueError,
        "master_dtype must be a floating-point dtype or None, got torch.int64",
    ),
    "reduce": (
        lambda: replicate(reduce="now"),  # type: ignore[arg-type]
        ValueError,
        "reduce must be 'last' or 'each', got 'now'",
    ),
    "dtype": (
        lambda: replicate(reduce_dtype=torch.int64),
        ValueError,
        "reduce_dtype must be a floating-point dtype or None, got torch.int64",
    ),
    "search": (lambda: order("atuo"), ValueError, "unknown schedule 'atuo', did you mean 'auto'"),
    "schedule": (lambda: order("1FB1"), ValueError, "unknown schedule '1FB1', did you mean '1F1B'"),
    "table": (
        lambda: order(anything),
        TypeError,
        "schedule must be a name, 'auto', a Table, a function or a .csv path, got <object",
    ),
    "no file": (lambda: order("none.csv"), OSError, "none.csv"),
    "no costs": (lambda: order("auto", costs="none.json"), OSError, "none.json"),
    "other costs": (
        lambda: order("auto", costs=__file__),
        ValueError,
        "test_strategy_directives.py: expected costs with a list of times for each of F, B, I and",
    ),
    "costs of none": (
        lambda: order("1F1B", costs="none.json"),
        TypeError,
        r"order options costs are for a search, order\('auto'\), got '1F1B'",
    ),
    "optimizer": (
        lambda: update(anything),
        TypeError,
        r"factory must be callable as factory\(parameters\)",
    ),
    "clip": (lambda: update(make_sgd, clip=0.0), ValueError, "clip must be above 0 or None, got 0"),
    "skip": (
        lambda: update(make_sgd, skip_nonfinite=anything),
        TypeError,
        "update skip_nonfinite must be a bool, got <object",
    ),
    "loss scale": (
        lambda: update(make_sgd, loss_scale=-1.0),
        ValueError,
        "update loss_scale must be positive and finite, got -1.0",
    ),
    "infinite loss scale": (
        lambda: update(make_sgd, loss_scale=float("inf")),
        ValueError,
        "update loss_scale must be positive and finite, got inf",
    ),
    "no loss scale": (
        lambda: update(make_sgd, loss_scale=True),
        TypeError,
        "update loss_scale must be a number, got True",
    ),
    "clip text": (
        lambda: update(make_sgd, clip="1"),  # type: ignore[arg-type]
        TypeError,
        "clip must be a number above 0 or None, got '1'",
    ),
    "clip true": (lambda: update(make_sgd, clip=True), TypeError, "must be a number .* got True"),
    "nan": (lambda: update(make_sgd, clip=float("nan")), ValueError, "above 0 or None, got nan"),
}


@pytest.mark.parametrize(("make", "kind", "message"), REFUSED.values(), ids=REFUSED)
def test_refuses(make: Callable[[], object], kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        make()


@pytest.mark.parametrize(
    ("directive", "text"),
    [
        (annotate({"layers.*": "layer"}), "annotate(tags={'layers.*': 'layer'})"),
        (split(microbatches=8), "split(microbatches=8)"),
        (split(microbatches=8, dims={"m": None}), "split(microbatches=8, dims={'m': None})"),
        (place(stages=2), "place(stages=2)"),
        (place(stages=[3, 4], coordinates=[1, 0]), "place(stages=(3, 4), coordinates=(1, 0))"),
        (place(stages=4, coordinates="v"), "place(stages=4, coordinates='v')"),
        (
            place(layout="a|b", letters={"a": "x", "b": "y"}),
            "place(layout='a|b', letters={'a': 'x', 'b': 'y'})",
        ),
        (order(Table.parse(["0F0 0B0"])), "order(schedule=Table.parse(['0F0 0B0']))"),
        (replicate(), "replicate()"),
        (replicate(bucket_size=1), "replicate(bucket_size=1)"),
        (
            replicate(axis=["dp_replicate", "dp_shard"], zero=3, shard="dp_shard"),
            "replicate(axis=('dp_replicate', 'dp_shard'), zero=3, shard='dp_shard')",
        ),
        (order("1f1b"), "order(schedule='1F1B')"),
        (update(make_sgd, clip=1.0), "update(factory=make_sgd, clip=1.0)"),
        (
            update(make_sgd, skip_nonfinite=True, loss_scale=8.0),
            "update(factory=make_sgd, skip_nonfinite=True, loss_scale=8.0)",
        ),
    ],
)
def test_repr_is_the_call(directive: Directive, text: str) -> None:
    assert repr(directive) == text


def test_equality_ignores_where_it_was_written() -> None:
    first = split(microbatches=2)
    second = split(microbatches=2)
    assert first == second
    assert first.source != second.source


def test_source_is_the_users_call() -> None:
    line = inspect.currentframe().f_lineno  # type: ignore[union-attr]
    made = [
        annotate({"a": "b"}),
        place(
            stages=2,
        ),
        Annotate({"a": "b"}),
    ]
    assert [directive.source.line - line for directive in made] == [2, 3, 6]
    assert {directive.source.file for directive in made} == {__file__}
    assert {directive.source.col for directive in made} == {9}


def test_source_prints_as_compilers_do(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("from piper.strategy import split\n\nx = [\n    split(microbatches=2)]\n")
    (made,) = runpy.run_path(str(script))["x"]
    assert str(made.source) == f"{script}:4:5"


def test_arguments_are_copied() -> None:
    tags = {"a": "b"}
    directive = annotate(tags)
    tags["c"] = "d"
    assert directive.tags == {"a": "b"}


def test_context_manager_tags_what_runs_under_it() -> None:
    with annotate("first"), torch.fx.traceback.preserve_node_meta():
        mark = torch.fx.traceback.get_current_meta()["custom"]["piper_tag"]
        assert mark.startswith("first@")  # the rest tells entries apart
    assert "custom" not in torch.fx.traceback.get_current_meta()


@pytest.mark.parametrize(
    ("directive", "text"),
    [
        (update(make_sgd), ""),
        (update(make_sgd, skip_nonfinite=True), " skip_nonfinite"),
        (update(make_sgd, loss_scale=8), " loss_scale = [8.0]"),
        (
            update(make_sgd, loss_scale=LossScale(interval=100)),
            " skip_nonfinite loss_scale = [65536.0, 2.0, 0.5, 100.0]",
        ),
    ],
)
def test_a_loss_scale_that_changes_skips(directive: Directive, text: str) -> None:
    assert directive.op() == f'piper.do.update <all> optimizer = "{__name__}:make_sgd"{text}'


def test_import_path_only_where_there_is_one() -> None:
    assert update(make_sgd).import_path == f"{__name__}:make_sgd"
    assert update(torch.optim.AdamW).import_path == "torch.optim.adamw:AdamW"
    assert update(make_local()).import_path is None
    assert update(functools.partial(make_sgd)).import_path is None
    assert update(lambda parameters: make_sgd(parameters)).import_path is None


def test_label_has_no_address() -> None:
    assert update(make_sgd).label == f"{__name__}:make_sgd"
    assert update(make_local()).label == "make_local.<locals>.make"
    assert update(functools.partial(make_sgd)).label == "partial"


def test_factory_of_a_script_has_no_import_path(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "from piper.strategy import update\n"
        "def make(parameters): ...\n"
        "path = update(make).import_path\n"
    )
    assert runpy.run_path(str(script), run_name="__main__")["path"] is None


def test_tables_are_accepted() -> None:
    table = Table.parse(["0F0 0B0"])
    assert order(table).schedule == table
