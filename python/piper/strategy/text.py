"""Pieces of MLIR text that directives are written with."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from piper.dtypes import ELEMENTS

__all__ = ["attributes", "element_name", "quoted"]


def quoted(text: str) -> str:
    """Return a string attribute: quotes and backslashes escaped."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\0A")
    return f'"{escaped}"'


def attributes(values: Mapping[str, str | int]) -> str:
    """Return a dictionary attribute of strings and integers."""
    entries = (
        f"{quoted(name)} = {quoted(value) if isinstance(value, str) else value}"
        for name, value in values.items()
    )
    return f"{{{', '.join(entries)}}}"


def element_name(dtype: torch.dtype) -> str:
    """Return the element type of a dtype, such as ``f32``."""
    return ELEMENTS[dtype]
