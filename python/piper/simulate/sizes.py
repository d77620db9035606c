"""Bytes of tensors, some of which have as many rows as ranks are sent."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from piper.frontend.attributes import dtype_of_type
from piper.mlir import ir

__all__ = ["Rows", "Size", "dynamic_rows", "is_dynamic", "shape_bytes", "type_bytes", "type_size"]

_ROWS = re.compile(r"\b(bound|expect) = (\d+)")  # an axis of that name has a kind, no number


@dataclass(frozen=True, slots=True)
class Rows:
    """How many rows a value has that are known at run time only: what to expect, and at most."""

    expect: int
    bound: int


@dataclass(frozen=True, slots=True)
class Size:
    """Bytes of a value: as `expected`, which is what takes time, and at `most`, of memory.

    They differ only where rows are known at run time only; `dynamic` says that they are.
    """

    expected: int
    most: int
    dynamic: bool = False

    @classmethod
    def of(cls, num_bytes: int) -> Size:
        """The size of a value whose shape is known."""
        return cls(num_bytes, num_bytes)


def dynamic_rows(type_: ir.Type) -> Rows | None:
    """The rows of a dynamic tensor as its layout has them; None if it does not say.

    A layout that gives nothing to expect lets expect its bound.
    """
    tensor = ir.RankedTensorType(type_)
    found = {name: int(number) for name, number in _ROWS.findall(str(tensor.encoding))}
    if not is_dynamic(type_) or "bound" not in found:
        return None
    return Rows(found.get("expect") or found["bound"], found["bound"])


def is_dynamic(type_: ir.Type) -> bool:
    """Whether the shape of a tensor is known at run time only."""
    return any(size < 0 for size in ir.RankedTensorType(type_).shape)


def type_bytes(type_: ir.Type, *, rows: int = 0) -> int:
    """Bytes of a tensor; a dimension that is known at run time only counts as `rows`."""
    tensor = ir.RankedTensorType(type_)
    return shape_bytes(tensor.shape, dtype_of_type(tensor.element_type), rows=rows)


def shape_bytes(shape: Sequence[int], dtype: torch.dtype, *, rows: int = 0) -> int:
    """Bytes of a shape, in which what is known at run time only is below 0."""
    return math.prod(rows if size < 0 else size for size in shape) * dtype.itemsize


def type_size(type_: ir.Type) -> Size:
    """Bytes of a tensor with the rows that its layout gives; none where it gives none."""
    rows = dynamic_rows(type_) or Rows(0, 0)
    expected, most = (type_bytes(type_, rows=count) for count in (rows.expect, rows.bound))
    return Size(expected, most, is_dynamic(type_))
