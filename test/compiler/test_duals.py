"""Gradients that chunks pass on have the dual kinds of what they are gradients of, at each level."""

from __future__ import annotations

import re
from collections.abc import Iterator

import piper
import pytest
import torch
from levels import piper_opt
from piper.mlir import ir
from torch import Tensor, nn
from toy import MESH, make_sgd

ROWS, WIDTH = 8, 6
NO_DUAL = -1
Duals = dict[str, tuple[list[int], list[int]]]


class Row(nn.Module):
    """The same row for every example."""

    def __init__(self) -> None:
        super().__init__()
        self.row = nn.Parameter(torch.ones(WIDTH))
        self.scale = nn.Parameter(torch.ones(WIDTH))

    def forward(self) -> Tensor:
        return self.row.tanh() * self.scale


class Shift(nn.Linear):
    """A linear layer of a sum."""

    def forward(self, x: Tensor, row: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(x + row)


class Shifted(nn.Module):
    """Two layers, of which the second adds a row that a chunk of its own makes."""

    def __init__(self) -> None:
        super().__init__()
        self.row = Row()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.second = Shift(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        row = self.row()
        y: Tensor = self.second(self.first(x).relu(), row)
        return y


def loss_fn(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    return nn.functional.mse_loss(model(batch["x"]), batch["x"])


@pytest.fixture(scope="module")
def texts() -> dict[str, str]:
    """The text of each level of a program with halved backward passes."""
    strategy = piper.Strategy(
        mesh=MESH,
        directives=[
            piper.annotate({"row": "row", "first": "first", "second": "second"}),
            piper.split(microbatches=2),
            piper.place(stages=[2, 1]),
            piper.replicate(axis="dp"),
            piper.order("ZBH1"),
            piper.update(make_sgd),
        ],
    )
    torch.manual_seed(0)
    program = piper.compile(Shifted(), loss_fn, strategy, {"x": torch.ones(ROWS, WIDTH)})
    return {
        name.removeprefix("ir/").removesuffix(".mlir"): text
        for name, text in program.texts.items()
        if name.startswith("ir/")
    }


def duals_of(text: str) -> Duals:
    """The operands and results of the forward chunk that each backward chunk says its own are
    duals of.
    """
    with ir.Context():
        module = ir.Module.parse(text)
        return {
            ir.StringAttr(op.attributes["sym_name"]).value: (
                list(ir.DenseI64ArrayAttr(op.attributes["dual_results"])),
                list(ir.DenseI64ArrayAttr(op.attributes["dual_operands"])),
            )
            for op in module.body
            if "dual_results" in op.attributes
        }


def test_every_level_knows_the_duals(texts: dict[str, str]) -> None:
    """What outlining finds stays, buckets come with the cluster, halves have what is theirs."""
    chunks = {
        "row.0$B": ([0], []),
        "first.0$B": ([0], []),
        "second.0$B": ([2], [0, 1]),
    }
    assert duals_of(texts["chunks"]) == chunks
    cluster = duals_of(texts["cluster"])
    for name, (results, operands) in chunks.items():
        assert cluster[name][0] == results
        assert cluster[name][1][: len(operands)] == operands
        assert len(cluster[name][1]) == len(operands) + 1  # the bucket's
    assert cluster["second.0$I"][1] == [0, 1]
    assert cluster["second.0$W"] == ([], cluster["second.0$B"][1][2:])
    assert duals_of(texts["programs"]) == cluster


def crossings(text: str) -> Iterator[tuple[str, int, str]]:
    """The operands of backward runs that are tangents, or made by other backward chunks."""
    with ir.Context():
        module = ir.Module.parse(text)
        backward = {
            ir.StringAttr(op.attributes["sym_name"]).value
            for op in module.body
            if "of" in op.attributes and op.operation.name == "piper.chunk"
        }
        step = next(op for op in module.body if op.operation.name == "piper.step")
        for run in step.regions[0].blocks[0]:
            if run.operation.name != "piper.run":
                continue
            chunk = ir.FlatSymbolRefAttr(run.attributes["chunk"]).value
            for index, operand in enumerate(run.operands):
                maker = operand.owner
                if isinstance(maker, ir.Block) or chunk not in backward:
                    continue
                by = (
                    ir.FlatSymbolRefAttr(maker.attributes["chunk"]).value
                    if maker.name == "piper.run"
                    else maker.name
                )
                if by in backward or by == "piper.tangent":
                    yield chunk, index, by


@pytest.mark.parametrize("source", ["texts", "levels"])
def test_every_gradient_between_chunks_is_a_dual(
    source: str, request: pytest.FixtureRequest
) -> None:
    text = request.getfixturevalue(source)["chunks"]
    duals, found = duals_of(text), list(crossings(text))
    assert len(found) >= 3
    for chunk, index, _ in found:
        assert duals[chunk][0][index] != NO_DUAL, (chunk, index)


KINDS = {"R": "replicated", "V": "varying"}
PARTIAL = re.compile(r"(!f32_6_dpP = tensor<6xf32, #piper.layout<dp = )partial>")
CHECKS = {
    "chunks": ["--verify-each"],
    "cluster": ["--piper-verify"],
    "programs": ["--piper-verify"],
}


def with_kinds(texts: dict[str, str], level: str) -> str:
    """The text of a level, that of chunks with kinds and buckets."""
    if level != "chunks":
        return texts[level]
    passes = ("--piper-record", "--piper-assign-kinds", "--piper-form-buckets")
    return piper_opt(texts[level], *passes).stdout


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("level", CHECKS)
def test_a_gradient_of_a_wrong_kind_is_refused(
    texts: dict[str, str], level: str, kind: str
) -> None:
    """The row is the same on all ranks, each of which has a term of its gradient: of another kind
    nobody would add up the terms. All else fits, so only duality tells.
    """
    text, checks = with_kinds(texts, level), (*CHECKS[level], "-o", "/dev/null")
    assert piper_opt(text, *checks).returncode == 0
    text, changes = PARTIAL.subn(rf"\1{KINDS[kind]}>", text)
    assert changes == 1  # an alias, which stands for the type wherever the gradient is passed on
    refused = piper_opt(text, *checks)
    assert refused.returncode == 1
    assert f"to be partial on axis 'dp', got {KINDS[kind]}" in refused.stderr
    text = re.sub(r" dual \[.*?\] -> \[.*?\]", "", text)
    assert piper_opt(text, *checks).returncode == 0
