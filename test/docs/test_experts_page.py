"""The strategy that README.md and docs/experts.md show is that of docs/experts.py."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("page", ["README.md", "docs/experts.md"])
def test_strategy_is_that_of_the_script(page: str) -> None:
    _, body = (ROOT / "docs" / "experts.py").read_text().split("    return piper.Strategy(\n")
    arguments = textwrap.dedent(body.partition("\n    )\n")[0])
    assert arguments.count("piper.") == 8
    assert (
        f"piper.Strategy(\n{textwrap.indent(arguments, '    ')}\n)\n" in (ROOT / page).read_text()
    )
