"""The commands of README.md and of the pages in docs/ print what the pages say."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.fixture
def console(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    return importlib.import_module("console")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_print_what_the_page_says(console: ModuleType, page: Path, tmp_path: Path) -> None:
    """If this fails, run `python docs/console.py` and read the page again."""
    text = page.read_text()
    assert console.rerun(text, tmp_path) == text


def test_failing_command_is_named(console: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=r"python -c 'exit\(3\)': status 3"):
        console.rerun("```console\n$ python -c 'exit(3)'\n```\n", tmp_path)
