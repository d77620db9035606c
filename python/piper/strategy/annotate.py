"""annotate: which parts of the model are chunks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Final, overload

from torch import nn

from piper.frontend import Capture, annotate_context
from piper.frontend.annotated import why_no_chunk, why_uncalled
from piper.frontend.annotations import match_modules
from piper.strategy.directive import Directive
from piper.strategy.text import attributes

# The path of the model itself in the IR, where an attribute needs a name. No module has it.
_ROOT: Final = "."


@dataclass(frozen=True, repr=False)
class Annotate(Directive):
    """Tags by module path: a glob over paths -> the tag of the chunks that matching modules become.

    Each module that matches is a chunk of its own: `{"layers.*": "layer"}` makes one per layer. `*`
    does not cross a dot, and the path "" is the model itself, which is one chunk then: of
    annotations inside each other, the outermost wins.

    An op under no annotation joins the chunk that makes what it reads. A parameter must be read by
    an op under an annotation, or belong to a module that is annotated or inside one. For those of
    the model itself, `with annotate("first"):` in its forward marks what reads them.

    Raises:
        ValueError: no path, or a tag that is not an identifier.
        TypeError: a path that is not a str.
    """

    tags: Mapping[str, str]

    def __post_init__(self) -> None:
        """Check the fields."""
        object.__setattr__(self, "tags", dict(self.tags))
        if not self.tags:
            raise ValueError("annotate must have at least one module path, got {}")
        for pattern, tag in self.tags.items():
            if not isinstance(pattern, str):
                raise TypeError(f"annotate module path must be a str, got {pattern!r}")
            _check_tag(tag)

    def op(self) -> str:
        """See `Directive`; the path of the model itself is written "."."""
        tags = {pattern or _ROOT: tag for pattern, tag in self.tags.items()}
        return f"piper.do.annotate {attributes(tags)}"

    def facts(self) -> Mapping[str, object]:
        """See `Directive`."""
        return {f"tag of {pattern!r}": tag for pattern, tag in self.tags.items()}

    def check_calls(self, model: nn.Module) -> None:
        """Check that what is annotated can be called.

        Raises:
            ValueError: a path all of whose modules only hold others, such as a ModuleList.
            CaptureError: a path that matches no module.
        """
        for pattern, paths in self._paths(model):
            if reason := why_uncalled(model, paths):
                raise self.error(f"{pattern!r} names no chunk: {reason}")

    def check_chunks(self, model: nn.Module, taken: Capture) -> None:
        """Check that every tag is that of a chunk.

        Raises:
            ValueError: a tag that is not; the message says why.
        """
        known = {chunk.rpartition(".")[0] for chunk in taken.chunks}
        for pattern, paths in self._paths(model):
            if self.tags[pattern] not in known:
                raise self.error(f"{pattern!r} names no chunk: {why_no_chunk(paths, taken)}")

    def _paths(self, model: nn.Module) -> Iterator[tuple[str, list[str]]]:
        """Yield each pattern with the paths of the modules that it matches."""
        for pattern, tag in self.tags.items():
            yield pattern, list(match_modules(model, {pattern: tag}))


@overload
def annotate(tags: str) -> AbstractContextManager[None]: ...
@overload
def annotate(tags: Mapping[str, str]) -> Annotate: ...
def annotate(tags: str | Mapping[str, str]) -> AbstractContextManager[None] | Annotate:
    """Mark chunks, from outside or from inside the model.

    `annotate({"embed": "first", "layers.*": "layer"})` is a directive; see `Annotate`.
    `with annotate("first"):` in a model's forward marks what runs under it.

    Raises:
        ValueError: a tag that is not an identifier, or an empty mapping.
    """
    if isinstance(tags, str):
        _check_tag(tags)
        return annotate_context(tags)
    return Annotate(tags)


def _check_tag(tag: object) -> None:
    if not isinstance(tag, str) or not tag.isidentifier():
        raise ValueError(f"annotate tag must be an identifier such as 'layer', got {tag!r}")
