"""Source locations and module paths of the nodes of a traced graph."""

from __future__ import annotations

import os
import re
import traceback
from collections.abc import Iterable
from dataclasses import replace

import torch
from piper_runtime import ops
from torch import fx

from piper.frontend.data import OpSite

__all__ = ["module_stack", "node_site", "site_of_frames", "site_of_text"]

_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+)')
_OWN_ROOTS = tuple(
    os.path.dirname(file) + os.sep for file in (torch.__file__, __file__, ops.__file__)
)
# How dynamo spells the path of a submodule of the traced module, whose attribute `model` is the
# user's model.
_PATH = re.compile(r"^L\['self'\]\.model(?:\.|$)")
_INDEX = re.compile(r"\[(?:'([^']*)'|(\d+))\]|\._modules\['([^']*)'\]")


def _is_own(file: str) -> bool:
    """Return whether ``file`` is torch's or Piper's, thus not the user's code."""
    return file.startswith(_OWN_ROOTS) or file.startswith("<")


def _innermost(frames: Iterable[tuple[str, int]]) -> tuple[str, int] | None:
    """Return the last frame of the user's code."""
    users = [frame for frame in frames if not _is_own(frame[0])]
    return users[-1] if users else None


def _clean_path(text: str) -> str:
    """Return the FQN of a module of the user's model from dynamo's spelling of it."""
    bare = _PATH.sub("", text)
    dotted = _INDEX.sub(lambda m: "." + next(part for part in m.groups() if part is not None), bare)
    return dotted.strip(".")


def module_stack(node: fx.Node) -> list[tuple[str, str]]:
    """Return (FQN, call key) of the modules of the user's model that ran ``node``, outermost first.

    A backward node has the stack of its forward op. The call key tells two calls of one module
    apart.
    """
    stack = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack") or {}
    found = []
    for key, (path, _) in stack.items():
        if _PATH.match(path):
            call = key.rpartition("@")[2] if "@" in key else ""
            fqn = _clean_path(path)
            found.append((fqn, f"{fqn}@{call}"))
    return found


def node_site(node: fx.Node) -> OpSite | None:
    """Return where ``node`` was written, or None if its stack trace has no frame of the user's
    code.
    """
    trace = str(node.meta.get("stack_trace") or "")
    site = site_of_text(trace)
    modules = module_stack(node)
    return replace(site, module=modules[-1][0]) if site and modules else site


def site_of_text(trace: str) -> OpSite | None:
    """Return the innermost frame of the user's code in the text of a traceback."""
    frame = _innermost((m["file"], int(m["line"])) for m in _FRAME.finditer(trace))
    return None if frame is None else OpSite(*frame)


def site_of_frames(frames: traceback.StackSummary | None) -> OpSite | None:
    """Return the innermost frame of the user's code in ``frames``."""
    frame = _innermost((f.filename, f.lineno or 0) for f in frames or ())
    return None if frame is None else OpSite(*frame)
