"""The scripts of README.md print what README.md says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

README = Path(__file__).resolve().parents[2] / "README.md"
SCRIPT = re.compile(r"```python\n(.*?)```", re.DOTALL)
OUTPUT = re.compile(r"```text\n(.*?)```", re.DOTALL)


def test_scripts_print_what_the_page_says(tmp_path: Path) -> None:
    _, text = README.read_text().split("## A script\n")
    script = tmp_path / "script.py"
    script.write_text("".join(SCRIPT.findall(text)))
    command = [sys.executable, script.name]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    printed = run.stdout.replace(f"{tmp_path}/", "")
    assert printed == "".join(OUTPUT.findall(text))
