"""Pieces of MLIR text that directives are written with."""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping

import torch

from piper.dtypes import ELEMENTS

__all__ = ["attributes", "element_name", "number", "quoted"]


def quoted(text: str) -> str:
    """Return a string attribute: quotes and backslashes escaped."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\0A")
    return f'"{escaped}"'


def attributes(values: Mapping[str, str | float]) -> str:
    """Return a dictionary attribute of strings, numbers and booleans."""
    entries = (f"{quoted(name)} = {_literal(value)}" for name, value in values.items())
    return f"{{{', '.join(entries)}}}"


def number(value: float) -> str:
    """Return the text of a float, from which MLIR reads the very same number.

    Python's own text does not do: MLIR wants a point before an exponent, as in `1.0e-06`, and has
    no words for what is not finite, which stands there as its bits.
    """
    if not math.isfinite(value):
        return f"0x{struct.pack('>d', value).hex().upper()}"
    digits, mark, exponent = repr(float(value)).partition("e")
    return f"{digits}{'' if '.' in digits else '.0'}{mark}{exponent}"


def _literal(value: str | float) -> str:
    match value:
        case str():
            return quoted(value)
        case bool():
            return str(value).lower()
        case int():
            return str(value)
    text = number(value)
    return text if math.isfinite(value) else f"{text} : f64"


def element_name(dtype: torch.dtype) -> str:
    """Return the element type of a dtype, such as ``f32``."""
    return ELEMENTS[dtype]
