"""What ranks hold of a tensor, as its type says, and what follows for the text of a program."""

from __future__ import annotations

import re

from piper.emit.symbols import Symbols
from piper.mlir import ir

__all__ = ["axes_of_kind", "is_flat_pack", "kinds_in", "kinds_of"]

_KIND = re.compile(r'"?([^"\s,<]+)"? = (replicated|partial|varying|shard\(\d+\))')


def kinds_of(type_: ir.Type) -> dict[str, str]:
    """Return the kind by manual axis, in mesh order: {"dp": "shard(0)"}; nothing without layout."""
    return kinds_in(ir.RankedTensorType(type_).encoding)


def kinds_in(layout: ir.Attribute | None) -> dict[str, str]:
    """Return the kind by manual axis that a layout gives; see ``kinds_of``."""
    return dict(_KIND.findall(str(layout)))


def axes_of_kind(type_: ir.Type, kind: str) -> list[str]:
    """Return the axes on which a tensor is of a kind, in mesh order."""
    return [axis for axis, found in kinds_of(type_).items() if found == kind]


def is_flat_pack(pack: ir.Operation, symbols: Symbols) -> bool:
    """Return whether a `pack` makes one flat tensor, since a collective takes it.

    That is so where gradients are of another kind than what is packed. Else they are accumulated,
    one by one, and the pack is a tuple.
    """
    bucket = symbols.buckets[ir.FlatSymbolRefAttr(pack.attributes["bucket"]).value]
    grad = bucket.attributes.get("grad")
    if grad is None:
        return False
    return kinds_of(pack.results[0].type) != kinds_of(ir.TypeAttr(grad).value)
