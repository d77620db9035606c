"""Passes on modules that are not meant for them: an error or a result, never a signal."""

from __future__ import annotations

import random
import re
import subprocess
import sys
from pathlib import Path

import pytest

OPT = str(Path(sys.executable).with_name("piper-opt"))
ROOT = Path(__file__).parents[1]
MODULES = sorted(file for file in ROOT.rglob("*.mlir") if "Output" not in file.parts)


def pass_names() -> list[str]:
    """Names of the passes and sequences of passes that piper-opt has."""
    told = subprocess.run([OPT, "--help"], capture_output=True, text=True, check=True).stdout
    return sorted(set(re.findall(r"^ +--(piper-[a-z-]+)", told, re.MULTILINE)))


def check(module: Path, *names: str) -> None:
    """Run passes on a file, one behind the other; its modules are taken one by one."""
    flags = [f"--{name}" for name in names]
    command = [OPT, str(module), "--split-input-file", *flags]
    ended = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)
    assert ended.returncode in (0, 1), f"{module.name} {flags}: {ended.stderr[:2000]}"
    assert ended.returncode == 0 or "error:" in ended.stderr, f"{module.name} {flags}"


def test_all_that_runs_is_found() -> None:
    names = pass_names()
    assert {"piper-remat", "piper-verify", "piper-materialize"} <= set(names)
    assert len(MODULES) > 90


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name == "piper-unroll-microbatches" else pytest.mark.slow)
        for name in pass_names()
    ],
)
def test_a_pass_alone(name: str, tmp_path: Path) -> None:
    empty = tmp_path / "empty.mlir"
    empty.write_text("")
    for module in (empty, *MODULES):
        check(module, name)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
def test_passes_in_any_order(seed: int) -> None:
    generator, names = random.Random(seed), pass_names()
    for _ in range(500):
        count = generator.randint(2, 4)
        check(generator.choice(MODULES), *generator.choices(names, k=count))
