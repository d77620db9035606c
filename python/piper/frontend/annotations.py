"""Which ops belong to which annotation: globs on module paths, and a context manager."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

import torch
import torch.fx.traceback as fx_traceback
from torch import fx, nn

from piper.frontend.data import CaptureError
from piper.frontend.sites import module_stack

__all__ = ["Hit", "annotate_context", "annotated_nodes", "match_modules"]

_KEY = "piper_tag"
_LISTED = 40


@dataclass(frozen=True, slots=True)
class Hit:
    """The outermost annotation of an op: its tag, and a key that is equal for the ops of one
    occurrence.
    """

    tag: str
    key: str


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _entry_mark(tag: str) -> str:
    """Return the mark of one entry of ``annotate_context``: that of the enclosing entry, or else a
    fresh one.

    Runs once per entry while dynamo traces the forward; the random part only tells entries apart
    and is dropped.
    """
    outer = fx_traceback.current_meta.get("custom", {}).get(_KEY)
    return outer if isinstance(outer, str) else f"{tag}@{uuid.uuid4().hex}"


@contextlib.contextmanager
def annotate_context(tag: str) -> Iterator[None]:
    """Mark the ops of a ``with`` block in a model's forward as one occurrence of ``tag``; the
    outermost block wins.
    """
    with fx_traceback.annotate({_KEY: _entry_mark(tag)}):
        yield


def _matches(path: str, pattern: str) -> bool:
    """Return whether ``pattern`` matches ``path`` part by part (``*`` does not cross a dot).

    The model itself has the path "", which only the pattern "" matches.
    """
    if not path or not pattern:
        return path == pattern
    parts, globs = path.split("."), pattern.split(".")
    return len(parts) == len(globs) and all(map(fnmatchcase, parts, globs))


def match_modules(model: nn.Module, annotations: Mapping[str, str]) -> dict[str, str]:
    """Return the tag of each annotated module path of ``model``.

    Keys are module paths in which each dotted part is an ``fnmatch`` glob; "" is the model itself.
    Raises CaptureError for a key that matches nothing and for a module that gets two different
    tags.
    """
    paths = [path for path, _ in model.named_modules(remove_duplicate=False)]
    tags: dict[str, str] = {}
    origin: dict[str, str] = {}
    for pattern, tag in annotations.items():
        matched = [path for path in paths if _matches(path, pattern)]
        if not matched:
            raise CaptureError(
                f"annotation {pattern!r} matches no module, got modules {_listing(paths)}"
            )
        for path in matched:
            if tags.setdefault(path, tag) != tag:
                raise CaptureError(
                    f"module {path!r} expected one tag, got {tags[path]!r} from {origin[path]!r} "
                    f"and {tag!r} from {pattern!r}"
                )
            origin[path] = pattern
    return tags


def _listing(paths: Sequence[str]) -> str:
    named = [path for path in paths if path]
    more = f" and {len(named) - _LISTED} more" if len(named) > _LISTED else ""
    return ", ".join(named[:_LISTED]) + more


def annotated_nodes(nodes: Sequence[fx.Node], tags: Mapping[str, str]) -> dict[fx.Node, Hit]:
    """Return the outermost annotation of each of the forward ``nodes`` (in graph order) that has
    one.

    ``tags`` is that of ``match_modules``. A context entry is outside an annotated module unless all
    its ops ran in one call of that module. With no annotation at all the whole model is one chunk
    tagged ``model``.
    """
    entries = _context_entries(nodes)
    hits: dict[fx.Node, Hit] = {}
    common = _common_calls(entries)
    for node in nodes:
        module = _outermost_module(node, tags)
        entry = entries.get(node)
        if module is not None and (entry is None or module.key in common[entry.key]):
            hits[node] = module
        elif entry is not None:
            hits[node] = entry
    if not tags and not entries:
        return {node: Hit("model", "") for node in nodes}
    return hits


def _outermost_module(node: fx.Node, tags: Mapping[str, str]) -> Hit | None:
    calls = [("", ""), *module_stack(node)]
    return next((Hit(tags[path], key) for path, key in calls if path in tags), None)


def _context_entries(nodes: Sequence[fx.Node]) -> dict[fx.Node, Hit]:
    """Return the context entry of each node; unmarked metadata makes one entry per uninterrupted
    run of nodes.
    """
    entries: dict[fx.Node, Hit] = {}
    previous: object = None
    run = 0
    for node in nodes:
        mark = (node.meta.get("custom") or {}).get(_KEY)
        run += mark != previous
        previous = mark
        if isinstance(mark, str):
            tag, marked, _ = mark.rpartition("@")
            entries[node] = Hit(tag, mark) if marked else Hit(mark, f"{mark}#{run}")
    return entries


def _common_calls(entries: Mapping[fx.Node, Hit]) -> dict[str, set[str]]:
    """Return, per context entry, the module calls that all its ops ran in."""
    common: dict[str, set[str]] = {}
    for node, hit in entries.items():
        calls = {"", *(key for _, key in module_stack(node))}
        common[hit.key] = common[hit.key] & calls if hit.key in common else calls
    return common
