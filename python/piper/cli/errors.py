"""Which errors are messages to the user, and what they say."""

from __future__ import annotations

import os
import traceback
from types import FrameType

__all__ = ["is_message", "message"]

_OWN = ("piper", "piper_runtime")


def is_message(error: BaseException) -> bool:
    """Whether Piper raised it about its input; a traceback says more about any other error."""
    return _package(_frames(error)[-1]) in _OWN


def message(error: BaseException) -> str:
    """Return the error's text; if that names no place, behind the user's line that led to it."""
    text = str(error)
    outside = [frame for frame in reversed(_frames(error)) if _package(frame) not in _OWN]
    if not outside or _package(outside[0]) == "torch":
        return text
    file, line = outside[0].f_code.co_filename, outside[0].f_lineno
    shown = file.removeprefix(os.path.join(os.getcwd(), ""))
    return text if f"{shown}:" in text else f"{shown}:{line}: {text}"


def _frames(error: BaseException) -> list[FrameType]:
    """Return the frames of the traceback, the innermost last."""
    return [frame for frame, _ in traceback.walk_tb(error.__traceback__)]


def _package(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__")).partition(".")[0]
