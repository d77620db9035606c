"""Own C++ is compiled with warnings that are errors."""

from __future__ import annotations

import json
import shlex
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build"
FOLDERS = ("dialect", "passes", "tools", "python/bindings")
SOUND = "int sound(int value) { return value; }\n"
PLANTED = "int planted(int value) { int unused; return value; }\n"


def command_for(folder: str) -> list[str]:
    """How the build compiles the first source of a folder, up to the names of files."""
    entries = json.loads((BUILD / "compile_commands.json").read_text())
    own = [entry for entry in entries if Path(entry["file"]).parent == ROOT / folder]
    assert own, f"no source of {folder} is compiled"
    words = shlex.split(own[0]["command"])
    return [*words[: words.index("-o")], "-fsyntax-only", "-x", "c++"]


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_planted_warning_fails_the_build(folder: str, tmp_path: Path) -> None:
    """An unused variable is an error, and nothing else in the same file is."""
    command = command_for(folder)
    results = []
    for name, text in (("sound.cpp", SOUND), ("planted.cpp", PLANTED)):
        source = tmp_path / name
        source.write_text(text)
        run = subprocess.run(
            [*command, str(source)], cwd=BUILD, capture_output=True, text=True, check=False
        )
        results.append((run.returncode, run.stderr))
    (sound, sound_errors), (planted, planted_errors) = results
    assert sound == 0, sound_errors
    assert planted != 0
    assert "unused variable" in planted_errors
    assert "-Werror" in planted_errors
