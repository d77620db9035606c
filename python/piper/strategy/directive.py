"""What all directives have in common. To add one: subclass `Directive` in its own file."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from piper.strategy.location import SourceLocation
from piper.strategy.mesh import Mesh


@dataclass(frozen=True, repr=False)
class Directive(ABC):
    """One line of a strategy: plain data, validated when made, applied by the compiler.

    A subclass checks its own fields in `__post_init__`, its mesh axes in `check_mesh`, and lists in
    `facts` what it sets, from which conflicts between directives are found.
    """

    source: SourceLocation = field(
        default_factory=SourceLocation.of_caller, compare=False, kw_only=True
    )

    @classmethod
    def keyword(cls) -> str:
        """The name users call it by."""
        return cls.__name__.lower()

    def axes(self) -> tuple[str, ...]:
        """The mesh axes that this directive gives a use to."""
        return ()

    def facts(self) -> Mapping[str, object]:
        """What it sets: a description that completes "sets the ..." -> the value."""
        return {}

    @abstractmethod
    def op(self) -> str:
        """The op of a ``piper.strategy`` that says the same, as text without its location."""

    def check_mesh(self, mesh: Mesh) -> None:  # noqa: B027 (most fit every mesh)
        """Raise `error` where the directive does not fit the mesh; its axes are known to exist."""

    def error(self, message: str) -> ValueError:
        """An error that starts with where the directive was written and its name."""
        return ValueError(f"{self.source}: {self.keyword()} {message}")

    def __repr__(self) -> str:
        """The call that makes it, without what is left at its default."""
        shown = (
            f"{f.name}={_text(getattr(self, f.name))}"
            for f in dataclasses.fields(self)
            if f.name != "source" and getattr(self, f.name) != f.default
        )
        return f"{self.keyword()}({', '.join(shown)})"


def check_count(what: str, value: object) -> None:
    """Check that a count is an int of at least 1.

    Raises:
        ValueError: names `what` and gives the value.
    """
    if type(value) is not int or value < 1:
        raise ValueError(f"{what} must be an int of at least 1, got {value!r}")


def check_dtype(what: str, value: object) -> None:
    """Check that a dtype is floating-point, or None.

    Raises:
        ValueError: names `what` and gives the value.
    """
    if value is not None and not (isinstance(value, torch.dtype) and value.is_floating_point):
        raise ValueError(f"{what} must be a floating-point dtype or None, got {value!r}")


def _text(value: object) -> str:
    name = getattr(value, "__qualname__", None)
    return name if callable(value) and isinstance(name, str) else repr(value)
