"""Dtypes of torch and element types of MLIR, one for one."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import torch

__all__ = ["DTYPES", "ELEMENTS"]

ELEMENTS: Final[Mapping[torch.dtype, str]] = MappingProxyType(
    {
        torch.float64: "f64",
        torch.float32: "f32",
        torch.float16: "f16",
        torch.bfloat16: "bf16",
        torch.float8_e4m3fn: "f8E4M3FN",
        torch.float8_e5m2: "f8E5M2",
        torch.int64: "i64",
        torch.int32: "i32",
        torch.int16: "i16",
        torch.int8: "i8",
        torch.uint8: "ui8",
        torch.bool: "i1",
        torch.complex64: "complex<f32>",
        torch.complex128: "complex<f64>",
    }
)
"""The element type, as MLIR writes it, of each dtype that a program can hold."""

DTYPES: Final[Mapping[str, torch.dtype]] = MappingProxyType(
    {element: dtype for dtype, element in ELEMENTS.items()}
)
"""The inverse of ``ELEMENTS``."""
