"""The same model and strategy give the same texts: in any process, in any order of directives."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import piper
import pytest
from levels import FLAGS, LEVELS, permuted, piper_opt, run, without_strategy
from piper_runtime import Program
from toy import MESH, Toy, batch_of, directives, loss_fn

RECORD = "piper-record,piper-materialize"


@pytest.mark.parametrize("level", FLAGS)
def test_piper_opt_makes_each_level_of_the_one_before(level: str, levels: dict[str, str]) -> None:
    before = levels[LEVELS[LEVELS.index(level) - 1]]
    made = piper_opt(before, *FLAGS[level])
    assert made.stderr == ""
    assert made.stdout == levels[level]


@pytest.mark.parametrize("level", LEVELS)
def test_levels_read_back_as_they_are(level: str, levels: dict[str, str]) -> None:
    assert piper_opt(levels[level]).stdout == levels[level]


def test_the_strategy_is_its_own_file(levels: dict[str, str]) -> None:
    made = piper_opt(levels["strategy"])
    assert made.stderr == ""
    assert "piper.do.split microbatches = 2 dims = {ids = 0 : i64, labels = 0 : i64}" in made.stdout


def test_another_process_writes_the_same_files(program: Program, tmp_path: Path) -> None:
    source = Path(__file__).parent / "toy.py"
    command = [sys.executable, "-c", "import sys; from piper.cli import main; sys.exit(main())"]
    subprocess.run(
        [*command, "compile", f"{source}:build", "-o", str(tmp_path)],
        env={**os.environ, "PYTHONHASHSEED": "1"},
        check=True,
    )
    files = {str(f.relative_to(tmp_path)) for f in tmp_path.rglob("*") if f.is_file()}
    assert files == set(program.texts)
    for name, text in program.texts.items():
        assert (tmp_path / name).read_text() == text, name


def test_order_of_directives_has_no_meaning(levels: dict[str, str]) -> None:
    """Each directive first, and each last."""
    expected = without_strategy(levels["cluster"])
    for first in range(1, 6):
        order = [(first + index) % 6 for index in range(6)]
        made = run(permuted(levels["chunks"], order), RECORD)
        assert without_strategy(made) == expected, order


@pytest.mark.slow
def test_no_order_of_directives_has_a_meaning(levels: dict[str, str]) -> None:
    expected = without_strategy(levels["cluster"])
    for order in itertools.permutations(range(6)):
        made = run(permuted(levels["chunks"], order), RECORD)
        assert without_strategy(made) == expected, order


def test_a_permuted_strategy_compiles_to_the_same(levels: dict[str, str]) -> None:
    """The same directive objects, so that even their locations are equal."""
    given = directives()
    made = [
        piper.compile(Toy(), loss_fn, piper.Strategy(mesh=MESH, directives=order), batch_of())
        for order in (given, given[::-1])
    ]
    for level in ("cluster", "programs"):
        texts = [without_strategy(program.texts[f"ir/{level}.mlir"]) for program in made]
        # The line of the strategy itself is that of the call in the comprehension: the same.
        assert texts[0] == texts[1]
    # What ranks run is the same; the IR shows the order of the directives, and so does the hash.
    for name in (*made[0].manifest.programs, "kernels.py"):
        assert made[0].texts[name] == made[1].texts[name]
    assert replace(made[0].manifest, hash="") == replace(made[1].manifest, hash="")
    assert made[0].manifest.hash != made[1].manifest.hash
