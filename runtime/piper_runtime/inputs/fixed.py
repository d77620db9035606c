"""Leaves of a batch that are no tensors: a program has their values in it, so they must not change.

They are kept as text, which a manifest can hold and which is compared at each step.
"""

from __future__ import annotations

import enum
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

__all__ = ["FixedLeaf", "check_fixed"]

KNOWN = (
    type(None), bool, int, float, complex, str, bytes, enum.Enum,
    torch.dtype, torch.device, torch.Size,
)  # fmt: skip
LONGEST, SHOWN = 80, 30  # characters


@dataclass(frozen=True, slots=True)
class FixedLeaf:
    """The type of a value, and text that no other value of the type has.

    That is its ``repr``, or of a long one the beginning and a digest.
    """

    type: str
    text: str

    @staticmethod
    def of(value: Any) -> FixedLeaf | None:
        """Return a value as text; None for one of a type whose text may not tell all of it."""
        if not isinstance(value, KNOWN):
            return None
        text = f"{value.name} {value.value!r}" if isinstance(value, enum.Enum) else repr(value)
        if len(text) > LONGEST:
            digest = hashlib.sha256(text.encode()).hexdigest()[:16]
            text = f"{text[:SHOWN]}... ({len(text)} characters, sha256 {digest})"
        return FixedLeaf(type(value).__qualname__, text)

    def __str__(self) -> str:
        """Return value and type."""
        return self.text if self.type == "NoneType" else f"{self.text} of type {self.type}"


def check_fixed(named: Mapping[str, Any], fixed: Mapping[str, FixedLeaf]) -> None:
    """Check that leaves of a batch, by name, are those that a program was compiled with.

    Raises ValueError that names the first one that is not there or has another value or type.
    """
    for name, expected in fixed.items():
        if name not in named:
            raise ValueError(
                f"batch expected leaf {name!r}, {expected}, which the program was compiled with, "
                f"got only {sorted(named)}: put it into the batch, or compile again without it"
            )
        if FixedLeaf.of(named[name]) != expected:
            raise ValueError(
                f"leaf {name!r} of the batch expected {expected}, which was compiled in since it "
                f"is no tensor, got {_told(named[name])}: compile with a tensor for what changes, "
                f"declared as piper.split(dims={{{name!r}: None}}) if it has no batch dim; or "
                "compile again for another value; or leave it out if the loss does not use it"
            )


def _told(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    return str(FixedLeaf.of(value) or f"a {type(value).__qualname__}")
