"""The IR in the pages of docs/ is what the compiler makes, and what tests hold, today."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from types import ModuleType

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"


@pytest.fixture
def walkthrough(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(DOCS))
    return importlib.import_module("walkthrough")


def test_excerpts_are_as_generated(walkthrough: ModuleType) -> None:
    """If this fails, run `python docs/walkthrough.py --pages` and read the pages again."""
    texts = walkthrough.sources()
    lines = {line for text in texts.values() for line in text.splitlines()}
    for path in walkthrough.PAGES:
        page = path.read_text()
        assert walkthrough.cut(page, texts) == page
        for excerpt in re.findall(r"```(?:mlir|python)\n(.*?)```", page, re.DOTALL):
            for line in excerpt.splitlines():
                assert line in lines or line.strip() in ("// ...", "# ..."), line


def test_missing_line_is_named(walkthrough: ModuleType) -> None:
    page = "<!-- cut: a.mlir\nfirst\nthird\n-->\n```mlir\n```\n"
    with pytest.raises(
        ValueError, match=r"a.mlir: expected a line 'third' behind line 1, got none"
    ):
        walkthrough.cut(page, {"a.mlir": "first\nsecond\n"})
