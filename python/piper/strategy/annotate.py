"""annotate: which parts of the model are chunks."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import overload

from piper.frontend import annotate_context
from piper.strategy.directive import Directive
from piper.strategy.text import attributes


@dataclass(frozen=True, repr=False)
class Annotate(Directive):
    """Tags by module path: a glob over paths -> the tag of the chunks that matching modules become.

    Each module that matches is a chunk of its own: `{"layers.*": "layer"}` makes one per layer. `*`
    does not cross a dot, and the path "" is the whole model.

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
        """See `Directive`."""
        return f"piper.do.annotate {attributes(self.tags)}"

    def facts(self) -> Mapping[str, object]:
        """See `Directive`."""
        return {f"tag of {pattern!r}": tag for pattern, tag in self.tags.items()}


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
