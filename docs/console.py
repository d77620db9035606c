"""Runs the commands of the pages in docs/ and of README.md, and writes what they print.

    python docs/console.py     # after it, read the pages again

A block of kind `console` holds commands, each behind `$ `, and what they printed. They run one
after the other, in an empty folder, with the folder of this interpreter first on the path.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
_BLOCK = re.compile(r"(?<=```console\n)\$ .*?(?=```)", re.DOTALL)


def rerun(page: str, folder: Path) -> str:
    """The page with what its commands print today, run in `folder`.

    Raises:
        RuntimeError: a command that fails; the message holds what it printed.
    """
    return _BLOCK.sub(lambda block: _run(block[0], folder), page)


def _run(block: str, folder: Path) -> str:
    commands = re.findall(r"^\$ (.*)$", block, re.MULTILINE)
    return "".join(f"$ {command}\n{_output(command, folder)}" for command in commands)


def _output(command: str, folder: Path) -> str:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    done = subprocess.run(
        command.replace("python docs/", f"python {ROOT}/docs/"),
        shell=True,
        cwd=folder,
        env=os.environ | {"PATH": path, "COLUMNS": "100"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(f"{command}: status {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout + done.stderr


def main() -> None:
    """Rewrite all pages."""
    for page in PAGES:
        with tempfile.TemporaryDirectory() as folder:
            page.write_text(rerun(page.read_text(), Path(folder)))


if __name__ == "__main__":
    main()
