"""Why an annotation names no chunk: what is wrong, and what would be right."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch import nn

from piper.frontend.data import Capture, Tag

__all__ = ["why_no_chunk", "why_uncalled"]

# What a module has as its forward whose class defines none: it only holds other modules.
_NO_FORWARD = nn.Module.forward


def why_uncalled(model: nn.Module, paths: Sequence[str]) -> str | None:
    """Say why no call can run any of the modules at ``paths``; None if one can be called."""
    modules = [model.get_submodule(path) for path in paths]
    if any(getattr(module.forward, "__func__", None) is not _NO_FORWARD for module in modules):
        return None
    path, module = paths[0], modules[0]
    inside = next(module.named_children(), None)
    told = f"module {path!r}, a {type(module).__name__}, only holds others and is never called"
    if inside is None:
        return f"{told}: annotate the module that uses it, or that use by `with piper.annotate('tag'):`"
    return f"{told}: annotate what it holds, such as {f'{path}.*'.lstrip('.')!r}"


def why_no_chunk(paths: Sequence[str], taken: Capture) -> str:
    """Say why no chunk has the tag of the modules at ``paths``, from where the ops of a capture
    were written and which chunks these joined.
    """
    tags = [tag for path in paths for tag in _tags_inside(path, taken)]
    told = f"module {paths[0]!r}" + (f" (and {len(paths) - 1} more)" if len(paths) > 1 else "")
    others = sorted({tag.chunk.rpartition(".")[0] for tag in tags if tag.pass_ == "F"})
    if others:
        return (
            f"{told} runs inside what is annotated as {' and '.join(map(repr, others))}, and the "
            "outermost annotation wins: leave out one of the two"
        )
    if tags:
        return f"{told} reads no parameter, so that it runs before all chunks: leave this out"
    return f"{told} computes nothing that the loss needs, or is never called: leave this out"


def _tags_inside(path: str, taken: Capture) -> Iterator[Tag]:
    """Yield the tags of the forward ops that ran in the module at ``path``."""
    for node in taken.ops():
        module, tag = node.meta["site"].module, node.meta["tag"]
        inside = not path or module == path or module.startswith(f"{path}.")
        if inside and tag.pass_ != "B":
            yield tag
