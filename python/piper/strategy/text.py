"""Pieces of MLIR text that directives are written with."""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping

import torch

from piper.dtypes import ELEMENTS

__all__ = ["attributes", "element_name", "quoted"]


def quoted(text: str) -> str:
    """Return a string attribute: quotes and backslashes escaped."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\0A")
    return f'"{escaped}"'


def attributes(values: Mapping[str, str | float]) -> str:
    """Return a dictionary attribute of strings, numbers and booleans."""
    entries = (f"{quoted(name)} = {_literal(value)}" for name, value in values.items())
    return f"{{{', '.join(entries)}}}"


def _literal(value: str | float) -> str:
    """Return an attribute; of a float the bits, which are the same number for certain."""
    match value:
        case str():
            return quoted(value)
        case bool():
            return str(value).lower()
        case int():
            return str(value)
    short = f"{value:e}"
    if math.isfinite(value) and float(short) == value:
        return short
    return f"0x{struct.pack('>d', value).hex().upper()} : f64"


def element_name(dtype: torch.dtype) -> str:
    """Return the element type of a dtype, such as ``f32``."""
    return ELEMENTS[dtype]
