"""What is emitted of lowered programs, and of such as no strategy makes: flags, skips, other ops."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import piper
import pytest
import torch
from piper.emit import emit_kernels, emit_manifest, emit_programs
from piper.emit.dump import read_programs, row_flags
from piper.emit.symbols import Symbols
from piper.mlir import ir
from piper_runtime import Program, Trainer
from piper_runtime.listing import Line, Listing
from piper_runtime.program import seal
from piper_runtime.rank import Rank
from toy import MESH, Toy, batch_of, directives, loss_fn, make_sgd

NORM = re.compile(r"(update @\S+ %\S+ norm )(%\S+ : !\S+)")
FIELDS = ("place", "cell", "source", "module", "directive")
RELU = re.compile(r'(torch "aten\.relu\.default"\(%\w+\) facts )<pure, flops = \d+>')


@pytest.fixture(scope="module")
def program() -> Program:
    torch.manual_seed(0)
    strategy = piper.Strategy(mesh=MESH, directives=directives())
    return piper.compile(Toy(), loss_fn, strategy, batch_of())


def emit(program: Program, text: str) -> Program:
    """The program of a changed last level."""
    with ir.Context():
        module = ir.Module.parse(text)
        symbols = Symbols(module)
        texts = {"kernels.py": emit_kernels(module), **emit_programs(symbols)}
        texts["manifest.json"] = emit_manifest(symbols, texts)
    levels = {name: level for name, level in program.texts.items() if name.startswith("ir/")}
    texts = seal({**levels, **texts, "ir/programs.mlir": text}, {})
    return Program(texts, model=program.model, optimizer=make_sgd)


def lowered(program: Program) -> str:
    return program.texts["ir/programs.mlir"]


def changed(pattern: re.Pattern[str], new: str, text: str) -> str:
    result = pattern.sub(new, text)
    assert result != text
    return result


# Flags.


def rows_of(text: str) -> list[Mapping[str, Any]]:
    with ir.Context():
        programs = read_programs(ir.Module.parse(text))
    return [row for program in programs for row in program["rows"]]


def test_no_instruction_of_a_usual_program_has_a_flag(program: Program) -> None:
    assert not [row for row in rows_of(lowered(program)) if row_flags(row)]


def test_runs_whose_kernels_wait_for_the_device_are_flagged(program: Program) -> None:
    """Forward, backward with recomputation and evaluation of the layers have the op."""
    text = changed(RELU, r"\1<host_sync>", lowered(program))
    flagged = [row for row in rows_of(text) if row_flags(row)]
    assert {row["op"] for row in flagged} == {"run"}
    assert all(row["host_sync"] is True and "dynamic_shape" not in row for row in flagged)
    chunks = {row["chunk"] for row in flagged}
    assert {"layer.0$F", "layer.1$F", "layer.0$F.eval"} <= chunks
    assert not [name for name in chunks if name.startswith(("first", "last"))]


def test_flags_stand_behind_the_line_and_are_read_from_there(program: Program) -> None:
    emitted = emit(program, changed(RELU, r"\1<host_sync>", lowered(program)))
    listing, plain = Listing(emitted), Listing(program)
    lines = emitted.texts["program_pp0.py"].splitlines()
    assert lines != program.texts["program_pp0.py"].splitlines()
    flagged = []
    for number, line in enumerate(lines, start=1):
        with_flags, without = listing.line(0, number), plain.line(0, number)
        assert Line(*(getattr(with_flags, name) for name in FIELDS)) == without
        if with_flags.flags:
            assert with_flags.flags == ("host_sync",)
            assert line.endswith(" [host_sync]")
            flagged.append(line.partition("r.run(")[2].partition(",")[0])
    assert set(flagged) >= {"layer_0_F", "layer_0_F_eval"}


MODULE = """
piper.mesh @mesh [pp = 2 unrolled]
piper.stream @pp
piper.comm @send$1.0 axes [] coordinates [1, 0] for @pp
piper.chunk @a.0$F pass = F stage = 0 (%x: !x) -> !x { return %x : !x }
piper.program @train$pp0 of @train$cluster at 0 {
  %n = input "n" mb 0 : tensor<2xi64>
  %s, %t = host_wait %n, %n : tensor<2xi64>, tensor<2xi64> -> !piper.sizes, !piper.sizes
  %e = record
  %y, %f = recv from 1 mb 0 on @send$1.0 after %e : !x
  %z = run @a.0$F(%y) mb 0 after %f : (!x) -> !x
}
"""
STATIC, DYNAMIC = "tensor<4xf32>", "tensor<?xf32, #piper.layout<bound = 8>>"


@pytest.mark.parametrize(("type_", "dynamic"), [(STATIC, []), (DYNAMIC, ["dynamic_shape"])])
def test_waits_of_the_host_and_sizes_that_depend_on_data(type_: str, dynamic: list[str]) -> None:
    flags = {row["op"]: row_flags(row) for row in rows_of(MODULE.replace("!x", type_))}
    assert flags == {
        "input": [],
        "host_wait": ["host_sync"],
        "record": [],
        "recv": dynamic,
        "run": dynamic,
    }


# Other ops.


# No rank program has an op of the cluster, with two ends.
TRANSFER = """
piper.mesh @mesh [pp = 2 unrolled]
piper.program @train$pp0 of @train$cluster at 0 {
  %n = input "n" mb 0 : tensor<2xi64>
  %m = transfer %n from 0 to 1 mb 0 : tensor<2xi64>
}
"""


def test_an_instruction_that_cannot_be_emitted_is_named() -> None:
    with ir.Context():
        symbols = Symbols(ir.Module.parse(TRANSFER))
        message = r"emission expected one of accumulate, .*recv, .*update, write, got transfer$"
        with pytest.raises(ValueError, match=message):
            emit_programs(symbols)
        located = TRANSFER.replace("\n}", ' loc("model.py":12:0)\n}')
        symbols = Symbols(ir.Module.parse(located))
        with pytest.raises(ValueError, match=r"^model\.py:12: emission expected one of "):
            emit_programs(symbols)


def test_what_is_no_instruction_is_not_expected() -> None:
    """Helpers of emission are named like instructions."""
    with ir.Context():
        symbols = Symbols(ir.Module.parse(TRANSFER))
        with pytest.raises(ValueError, match="emission expected") as error:
            emit_programs(symbols)
    known = str(error.value).partition("one of ")[2].partition(", got")[0].split(", ")
    with_methods = {name for name in known if hasattr(Rank, name)}
    assert with_methods == set(known)
    assert {"run", "update", "free", "send", "all_reduce", "input"} <= set(known)


# Skipped updates.


def test_a_skip_is_emitted_and_flagged(program: Program) -> None:
    text = changed(NORM, r"\1\2 skip \2", lowered(program))
    rows = [row for row in rows_of(text) if row["op"] == "update"]
    assert rows
    for row in rows:
        assert row["skip"] == row["norm"] == row["in"][-1]
        assert row_flags(row) == ["host_sync"]
    updates = [
        line
        for line in emit(program, text).texts["program_pp0.py"].splitlines()
        if "update(" in line
    ]
    assert updates
    for line in updates:
        assert re.search(r"r\.update\('.*', \w+, norm=(\w+), skip=\1, clip=1.*\[host_sync\]$", line)


def test_an_update_that_a_directive_lets_skip_is_all_that_is_flagged() -> None:
    """Capture refuses ops that make the host wait, so what is left is what directives make."""
    skips = piper.update(make_sgd, clip=1.0, skip_nonfinite=True)
    strategy = piper.Strategy(mesh=MESH, directives=directives(update=skips))
    program = piper.compile(Toy(), loss_fn, strategy, batch_of())
    flagged = [(row["op"], row_flags(row)) for row in rows_of(lowered(program)) if row_flags(row)]
    assert flagged
    assert all(row == ("update", ["host_sync"]) for row in flagged)
    listing = Listing(program)
    for at, file in enumerate(program.manifest.programs):
        lines = program.texts[file].splitlines()
        for number in listing.entry_lines(at, "train"):
            flags = ("host_sync",) if "r.update(" in lines[number - 1] else ()
            assert listing.line(at, number).flags == flags


def test_a_program_that_skips_keeps_its_state_and_passes_check_mode(program: Program) -> None:
    """The norm is not zero on any rank, so no update happens."""
    skips = emit(program, changed(NORM, r"\1\2 skip \2", lowered(program)))
    assert program.model is not None
    before = {name: value.clone() for name, value in program.model.state_dict().items()}
    trainer = Trainer(skips, transport="local")
    first, second = trainer.step(batch_of()), trainer.step(batch_of())
    assert first.loss == second.loss
    for name, value in trainer.full_state_dict().items():
        assert torch.equal(value, before[name])
    assert any(gradient.any() for gradient in trainer.gradients().values())
    summary = piper.check(skips, loss_fn, batch_of())
    assert summary.compared > 50
