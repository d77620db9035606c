"""Lines of calls, as a frame itself says."""

from __future__ import annotations

import sys

from piper_runtime.lines import Lines

LINES = Lines()


def seen() -> tuple[int, int]:
    """Return the line of the caller, found both ways."""
    frame = sys._getframe(1)
    return LINES.at(frame), frame.f_lineno


def test_lines_are_those_of_the_frame() -> None:
    first = seen()
    found = [first, seen(), (seen())]
    for _ in range(2):
        found.append(
            seen(),
        )
    assert all(ours == theirs for ours, theirs in found)
    assert len({line for line, _ in found}) == 3


def test_each_function_has_its_own() -> None:
    texts = ["\n" * blank + "def call(seen):\n  return seen()" for blank in range(20)]
    for blank, text in enumerate(texts):
        scope: dict[str, object] = {}
        exec(text, scope)  # noqa: S102 (functions that come and go)
        call = scope["call"]
        assert callable(call)
        assert call(seen) == (blank + 2, blank + 2)
