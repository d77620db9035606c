"""Python values of a captured graph as MLIR attributes and types, and back, without loss.

Everything here uses the MLIR context and location that are current.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from piper.dtypes import DTYPES, ELEMENTS
from piper.frontend.data import OpSite, Tag
from piper.frontend.op_facts import OpFacts
from piper.mlir import ir

__all__ = [
    "constant_name",
    "decode_argument",
    "dtype_of_type",
    "encode_argument",
    "facts_attribute",
    "find_line",
    "find_name",
    "numbers_attribute",
    "operand_index",
    "site_location",
    "tag_attribute",
    "tensor_type",
    "type_of_dtype",
]

_OPERAND = re.compile(r"#piper\.arg<(\d+)>")
_CONSTANT = re.compile(r'#piper\.const<"(.*)">')
_DEVICE = "#piper.device<rank>"


def type_of_dtype(dtype: torch.dtype) -> ir.Type:
    """Return the element type of tensors of ``dtype``; raises ValueError if there is none."""
    if dtype not in ELEMENTS:
        raise ValueError(f"expected a dtype of {', '.join(map(str, ELEMENTS))}, got {dtype}")
    return ir.Type.parse(ELEMENTS[dtype])


def dtype_of_type(element: ir.Type) -> torch.dtype:
    """Return the dtype of tensors with this element type; the inverse of ``type_of_dtype``."""
    return DTYPES[str(element)]


def tensor_type(value: Tensor) -> ir.RankedTensorType:
    """Return the type of a (fake) tensor; strides are not part of it."""
    return ir.RankedTensorType.get(list(value.shape), type_of_dtype(value.dtype))


def encode_argument(value: Any, operand: Callable[[fx.Node], int]) -> ir.Attribute:
    """Return an argument of an op as a part of its template.

    ``operand`` is called once for each tensor, in order, and gives its operand number. A device is
    always the rank's own. Raises TypeError for a value that a program cannot hold.
    """
    match value:
        case fx.Node():
            return ir.Attribute.parse(f"#piper.arg<{operand(value)}>")
        case list() | tuple():
            return ir.ArrayAttr.get([encode_argument(item, operand) for item in value])
    return _encode_literal(value)


def _encode_literal(value: Any) -> ir.Attribute:
    match value:
        case None:
            return ir.UnitAttr.get()
        case bool():
            return ir.BoolAttr.get(value)
        case int():
            return ir.IntegerAttr.get(ir.IntegerType.get_signless(64), value)
        case float():
            return _encode_float(value)
        case str():
            return ir.StringAttr.get(value)
        case torch.dtype():
            return ir.TypeAttr.get(type_of_dtype(value))
        case torch.device():
            return ir.Attribute.parse(_DEVICE)
        case torch.layout() | torch.memory_format():
            return _constant(str(value))
    raise TypeError(f"an argument of type {type(value).__name__}: {value!r}")


def _encode_float(value: float) -> ir.Attribute:
    """Return a finite float as f64. MLIR prints some floats in hexadecimal, which without a type
    reads as an integer: those, too, are named constants.
    """
    if math.isnan(value):
        return _constant("math.nan")
    if math.isinf(value):
        return _constant("math.inf" if value > 0 else "-math.inf")
    attribute = ir.FloatAttr.get_f64(value)
    return _constant(repr(value)) if "0x" in str(attribute) else attribute


def _constant(name: str) -> ir.Attribute:
    return ir.Attribute.parse(f'#piper.const<"{name}">')


def decode_argument(attribute: ir.Attribute, operand: Callable[[int], Any]) -> Any:
    """Return the Python value of a part of a template; the inverse of ``encode_argument``.

    The rank's device is ``cpu``, where captures live.
    """
    match attribute:
        case ir.ArrayAttr():
            return [decode_argument(item, operand) for item in attribute]
        case ir.UnitAttr():
            return None
        case ir.BoolAttr() | ir.IntegerAttr() | ir.FloatAttr() | ir.StringAttr():
            return attribute.value
        case ir.TypeAttr():
            return dtype_of_type(attribute.value)
    index = operand_index(attribute)
    if index is not None:
        return operand(index)
    name = constant_name(attribute)
    return torch.device("cpu") if name is None else _value_of(name)


def operand_index(attribute: ir.Attribute) -> int | None:
    """Return which operand stands at this place of a template, or None if none does."""
    found = _OPERAND.fullmatch(str(attribute))
    return int(found[1]) if found else None


def constant_name(attribute: ir.Attribute) -> str | None:
    """Return the Python spelling of a named constant, or None for another attribute."""
    found = _CONSTANT.fullmatch(str(attribute))
    return found[1] if found else None


def _value_of(name: str) -> Any:
    """Return the value of ``torch.contiguous_format``, ``-math.inf``, ``123456789.0``."""
    if name.startswith("torch."):
        return getattr(torch, name.removeprefix("torch."))
    return float(name.replace("math.", ""))


def facts_attribute(facts: OpFacts) -> ir.Attribute:
    """Return ``#piper.facts<pure, flops = 4, strided, rule = "a b -> a b">``."""
    known = [facts.effects, f"flops = {facts.flops}"]
    known += ["strided"] * facts.strided + ["heavy"] * facts.heavy
    if facts.mask is not None:
        known.append(f"mask = {facts.mask}")
    if facts.rule is not None:
        known.append(f'rule = "{facts.rule}"')
    return ir.Attribute.parse(f"#piper.facts<{', '.join(known)}>")


def tag_attribute(tag: Tag) -> ir.Attribute:
    """Return ``#piper.tag<"layer.0" F>``."""
    return ir.Attribute.parse(f'#piper.tag<"{tag.chunk}" {tag.pass_}>')


def site_location(site: OpSite) -> ir.Location:
    """Return ``"layers.0.fc"("model.py":12:0)``: the module path around the source line.

    A file below the working directory is named relative to it.
    """
    file = site.file
    root = os.path.join(os.getcwd(), "")
    line = ir.Location.file(file.removeprefix(root), site.line, 0)
    return ir.Location.name(site.module, line) if site.module else line


def find_line(location: ir.Location) -> tuple[str, int] | None:
    """Return file and line of a location, inside names and the first of fused ones; or None."""
    if location.is_a_file():
        return location.filename, location.start_line
    if location.is_a_name():
        return find_line(location.child_loc)
    if location.is_a_fused():
        return next(filter(None, map(find_line, location.locations)), None)
    return None


def find_name(location: ir.Location) -> str:
    """Return the module path, state or input that a location names, or nothing."""
    if location.is_a_fused():
        return find_name(location.locations[0])
    return location.name_str if location.is_a_name() else ""


def numbers_attribute(lists: Sequence[Sequence[int]]) -> ir.ArrayAttr:
    """Return lists of integers as an attribute: ``[[0], [], [1, 2]]``."""
    number = ir.IntegerType.get_signless(64)
    return ir.ArrayAttr.get(
        [ir.ArrayAttr.get([ir.IntegerAttr.get(number, n) for n in numbers]) for numbers in lists]
    )
