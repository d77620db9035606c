"""The memory that piper-verify bounds is what the simulation predicts of the same storages."""

from __future__ import annotations

import re

import pytest
import torch
from compiled import DUAL_PIPE_V, ONE_F_ONE_B, ZBV, Strategy, compiled, refusal
from oracle import sgd
from piper.mlir import ir
from piper_runtime import Program
from small_gpt import TAGS, batches, captures

PROGRAM = re.compile(r"(\w+)\$(?:pp)?(\d+)")


def predicted(program: Program) -> dict[tuple[str, int], int]:
    """Peak bytes by entry point and coordinate, without what instructions need inside."""
    return {
        (entry, at): memory.peak(optimizer=0, inside=False)
        for entry, coordinates in program.manifest.memory.items()
        for at, memory in enumerate(coordinates)
    }


def alone(module: ir.Module, entry: str, at: int) -> None:
    """Drop all programs of a module but one."""
    for view in list(module.body.operations):
        if view.operation.name == "piper.program":
            name = PROGRAM.fullmatch(ir.StringAttr(view.operation.attributes["sym_name"]).value)
            assert name is not None
            if (name[1], int(name[2])) != (entry, at):
                view.operation.erase()


def refused(module: ir.Module, limit: int) -> int | None:
    """The peak that is refused under a limit of bytes; None if memory is not why, or nothing is."""
    error = refusal(module.operation, f"piper-verify{{max-memory={limit}}}") or ""
    found = re.search(rf"to hold at most {limit} bytes at once, got (\d+) bytes (at|before)", error)
    return int(found[1]) if found else None


def check(program: Program) -> None:
    text = program.texts["ir/programs.mlir"]
    peaks = predicted(program)
    assert len(peaks) == 2 * program.manifest.mesh.num_coordinates
    with ir.Context():
        for (entry, at), peak in peaks.items():
            module = ir.Module.parse(text)
            alone(module, entry, at)
            assert refused(module, 1) == peak
            assert refused(module, peak - 1) == peak
            assert refused(module, peak) is None
        whole, most = ir.Module.parse(text), max(peaks.values())
        assert refused(whole, most - 1) == most
        assert refusal(whole.operation, f"piper-verify{{max-memory={most}}}") is None


@pytest.mark.parametrize("strategy", [ONE_F_ONE_B, ZBV, DUAL_PIPE_V], ids=str)
def test_peak_equals_the_simulation(strategy: Strategy) -> None:
    check(compiled(strategy).program)


def test_peak_with_gradients_of_another_dtype() -> None:
    case = ONE_F_ONE_B.case
    [batch] = batches(case, steps=1)
    shared = captures(tied=True, layers=ONE_F_ONE_B.layers)
    usual = shared.compile(case.strategy(TAGS, sgd, stages=ONE_F_ONE_B.sizes), batch)
    directives = case.strategy(TAGS, sgd, stages=ONE_F_ONE_B.sizes, reduce_dtype=torch.float32)
    narrow = shared.compile(directives, batch)
    assert predicted(narrow)["train", 0] < predicted(usual)["train", 0]
    check(narrow)


def test_what_is_never_freed_stays() -> None:
    program = compiled(ONE_F_ONE_B).program
    with ir.Context():
        module = ir.Module.parse(program.texts["ir/programs.mlir"])
        alone(module, "train", 0)
        before = refused(module, 1)
        for view in list(module.body.operations):
            if view.operation.name == "piper.program":
                block = view.operation.regions[0].blocks[0]
                for op in [op.operation for op in block.operations]:
                    if op.name == "piper.free":
                        op.erase()
        after = refused(module, 1)
        assert before is not None
        assert after is not None
        assert after > before
