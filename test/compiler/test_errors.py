"""A model and a strategy that do not fit are refused before anything runs, by name and place."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import piper
import pytest
from levels import piper_opt
from piper.strategy import Directive
from piper_runtime import Program
from torch import Tensor, nn
from torch.nn import functional
from toy import MESH, Toy, batch_of, directives, loss_fn

HERE = r"test_errors\.py:\d+"


def compile_toy(
    given: Sequence[Directive],
    *,
    mesh: dict[str, int] | None = None,
    model: Callable[[], nn.Module] = Toy,
    rows: int = 8,
) -> Program:
    strategy = piper.Strategy(mesh=mesh or MESH, directives=given)
    return piper.compile(model(), loss_fn, strategy, batch_of(rows))


def test_part_of_the_model_without_an_annotation() -> None:
    given = directives(annotate=piper.annotate({"embed": "first", "head": "last"}))
    with pytest.raises(
        piper.CaptureError, match=r"no annotation covers.*'layers\.0' owns layers\.0\.weight"
    ):
        compile_toy(given)


def test_annotation_of_no_module() -> None:
    tags = {"embed": "first", "layer.*": "layer", "head": "last"}
    with pytest.raises(piper.CaptureError, match=r"'layer\.\*' matches no module.*layers\.0"):
        compile_toy(directives(annotate=piper.annotate(tags)))


class WithUnused(Toy):
    """Has a module without parameters that no step calls."""

    def __init__(self) -> None:
        super().__init__()
        self.unused = nn.Identity()


def test_annotation_of_a_module_that_is_not_called() -> None:
    tags = {"embed": "first", "layers.*": "layer", "head": "last", "unused": "never"}
    with pytest.raises(
        piper.CompileError,
        match=rf"{HERE}.*'unused' names no chunk: module 'unused' computes nothing that the loss",
    ):
        compile_toy(directives(annotate=piper.annotate(tags)), model=WithUnused)


def test_batch_that_cannot_be_split() -> None:
    with pytest.raises(
        piper.CaptureError,
        match=r"multiple of 4 \(2 microbatches x 2 ranks along 'dp'\), got 6 \(input 'ids', dim 0\)",
    ):
        compile_toy(directives(), rows=6)


def balanced_in_training(model: nn.Module, batch: Any) -> Tensor:
    loss = loss_fn(model, batch)
    if model.training:
        loss = loss + piper.local_loss(model(batch["ids"]).square().mean(), name="again")
    return loss


def test_losses_that_evaluation_does_not_have() -> None:
    strategy = piper.Strategy(mesh=MESH, directives=directives())
    terms = r"the terms \['loss'\] in evaluation and \['loss', 'again'\] in training"
    with pytest.raises(
        piper.CompileError, match=rf"{HERE}: the loss has {terms}, expected the same"
    ):
        piper.compile(Toy(), balanced_in_training, strategy, batch_of(8))


def test_more_stages_than_chunks() -> None:
    given = directives(place=piper.place(stages=5), replicate=None)
    with pytest.raises(
        piper.CompileError, match=rf"{HERE}.*one chunk per stage, got 4 chunks and 5 stages"
    ):
        compile_toy(given, mesh={"pp": 5})


def test_sizes_that_lose_a_chunk() -> None:
    given = directives(place=piper.place(stages=[1, 2]))
    with pytest.raises(piper.CompileError, match=rf"{HERE}.*add up to 4 chunks, got 3"):
        compile_toy(given)


class Frozen(nn.Linear):
    """Uses its weight without contributing to the gradient."""

    def forward(self, x: Tensor) -> Tensor:
        return functional.linear(x, self.weight.detach())


class HalfTied(Toy):
    """The tied weight is trained at its first use only."""

    def __init__(self) -> None:
        super().__init__()
        self.head = Frozen(self.head.in_features, self.head.out_features, bias=False)
        self.head.weight = self.embed.weight


def test_state_without_a_gradient_at_one_of_its_coordinates() -> None:
    with pytest.raises(
        piper.CompileError, match=r"embed\.weight.*used at coordinate 1 but gets no gradient there"
    ):
        compile_toy(directives(), model=HalfTied)


def test_world_that_is_not_the_mesh(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "3")
    with pytest.raises(ValueError, match=r"expected 4, the ranks of mesh pp=2 x dp=2, got 3"):
        piper.Trainer(program)


# Strategies as text, which no Python has checked.


def refused(levels: dict[str, str], old: str, new: str) -> str:
    """What piper-opt says of the level of chunks with a piece of text replaced."""
    changed = re.sub(old, new, levels["chunks"], count=1)
    assert changed != levels["chunks"]
    made = piper_opt(changed, "--piper-record", "--piper-materialize")
    assert made.returncode != 0
    assert made.stdout == ""
    return made.stderr


def test_microbatches_that_the_step_was_not_captured_for(levels: dict[str, str]) -> None:
    said = refused(levels, "split microbatches = 2", "split microbatches = 4")
    assert re.search(
        r"toy\.py:\d+:\d+.*'piper\.do\.split' op expected 8 examples in 4 microbatches on 2 "
        r'data-parallel ranks, but the step was captured with 2 examples of input "ids"',
        said,
    )


def test_dim_that_the_step_was_not_captured_for(levels: dict[str, str]) -> None:
    said = refused(levels, r"dims = \{ids = 0", "dims = {ids = 1")
    assert re.search(r"toy\.py:\d+:\d+.*expected dim 0 for input \"ids\".*got 1", said)


def test_schedule_of_other_microbatches(levels: dict[str, str]) -> None:
    said = refused(levels, r"0F0 0F1 0B0 0B1", "0F0 0B0")
    assert re.search(r"toy\.py:\d+:\d+.*piper\.schedule", said)


def test_directives_that_contradict_each_other(levels: dict[str, str]) -> None:
    """Both places are told."""
    line = r"( *)(piper\.do\.update <all>.*) clip = .* loc\(#loc\d+\)\n"
    other = r'\g<0>\1\2 loc("other.py":7:1)\n'
    said = refused(levels, line, other)
    assert re.search(r"other\.py:7:1.*sets", said)
    assert re.search(r"toy\.py:\d+:\d+: note: the other directive is here", said)


def test_layout_that_loses_a_layer() -> None:
    letters = {"E": "first", "t": "layer", "L": "last"}
    given = directives(place=piper.place(layout="Et|L", letters=letters))
    with pytest.raises(piper.CompileError, match=rf"{HERE}.*layer"):
        compile_toy(given)


def test_layout_that_fits() -> None:
    letters = {"E": "first", "t": "layer", "L": "last"}
    program = compile_toy(
        directives(place=piper.place(layout="E|t*2L", letters=letters)),
    )
    stages = re.findall(
        r"chunk @([\w.]+)\$F pass = F stage = (\d)", program.texts["ir/programs.mlir"]
    )
    assert stages == [("first.0", "0"), ("layer.0", "1"), ("layer.1", "1"), ("last.0", "1")]
