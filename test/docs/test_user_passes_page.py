"""What docs/user-passes.md shows is what its example is, makes and prints."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import piper
import pytest
from piper import opt
from piper.mlir import ir
from piper.user_passes import run_passes
from piper_runtime import Program

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "user-passes.md").read_text()
EXAMPLE = (ROOT / "examples" / "own_pass.py").read_text()


def blocks(kind: str) -> list[str]:
    return re.findall(rf"```{kind}\n(.*?)```", PAGE, re.DOTALL)


def without_hash(text: str) -> str:
    """Kernels without the part of their names that comes from all of their content."""
    return re.sub(r"_[0-9a-f]{8}\(", "_HASH(", text)


@pytest.fixture(scope="module")
def own_pass() -> ModuleType:
    sys.path.insert(0, str(ROOT / "examples"))
    try:
        return importlib.import_module("own_pass")
    finally:
        sys.path.pop(0)


@pytest.fixture(scope="module")
def program(own_pass: ModuleType) -> Program:
    model, strategy = own_pass.make_model(), own_pass.make_strategy()
    return piper.compile(model, own_pass.loss_fn, strategy, own_pass.make_batch())


def test_code_is_that_of_the_example(program: Program) -> None:
    directive, function, kernel = blocks("python")
    assert f" {directive.strip()},\n" in EXAMPLE
    assert function in EXAMPLE
    head, *lines = without_hash(kernel).splitlines()
    _, found, body = without_hash(program.texts["kernels.py"]).partition(head)
    assert found
    body = body.partition("def ")[0]
    assert [line for line in body.splitlines() if line in lines] == lines


def test_ir_is_what_the_pass_makes(
    program: Program, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "step.mlir"
    file.write_text(program.texts["ir/step.mlir"])
    assert opt.main([str(file), "--piper-user-passes=at=step"]) == 0
    texts = (program.texts["ir/step.mlir"], capsys.readouterr().out)
    for block, text in zip(blocks("mlir"), texts, strict=True):
        plain = re.sub(r" loc\(.*\)$", "", text, flags=re.MULTILINE)
        assert block in re.sub(r" facts <.*> tag", " tag", plain)


LOSSY = """
from piper.mlir.dialects import piper

def drop_one(module):
    cluster = next(op for op in module.body.operations if isinstance(op, piper.ClusterOp))
    for op in cluster.body.blocks[0].operations:
        if isinstance(op, piper.AccumulateOp) and op.onto is not None:
            op.result.replace_all_uses_with(op.onto)
            op.operation.erase()
            return
"""


def test_lost_contribution(
    program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lossy.py").write_text(LOSSY)
    monkeypatch.syspath_prepend(str(tmp_path))
    text = program.texts["ir/cluster.mlir"]
    known, new = '"own_pass:centralize" at "step"', '"lossy:drop_one" at "cluster"'
    text = re.sub(rf"{known} .* done", new, text)
    with ir.Context(), pytest.raises(piper.CompileError) as error:
        run_passes(ir.Module.parse(text), "builtin.module(piper-lower)")
    said = re.sub(r"^\S*examples/own_pass\.py:\d+", "", str(error.value))
    shown = re.sub(r"^examples/own_pass\.py:\d+", "", blocks("text")[1].strip())
    assert said == shown


def test_refusal_without_python(program: Program, tmp_path: Path) -> None:
    file = tmp_path / "step.mlir"
    file.write_text(program.texts["ir/step.mlir"])
    command = [str(Path(sys.executable).parent / "piper-opt"), "--piper-user-passes=at=step"]
    made = subprocess.run([*command, file], capture_output=True, text=True, check=False)
    assert made.returncode == 1
    assert blocks("text")[2].strip() in made.stderr


def test_numbers_are_those_of_the_example(
    own_pass: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    assert own_pass.main() == 0
    lines = capsys.readouterr().out.splitlines()
    first, last = blocks("text")[0].splitlines()
    assert first in lines
    assert last in lines
