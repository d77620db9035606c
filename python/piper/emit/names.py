"""Python names for the symbols and values of emitted programs."""

from __future__ import annotations

import keyword
import re

from piper_runtime.names import dtype_name

from piper.frontend.attributes import dtype_of_type
from piper.mlir import ir

__all__ = ["Namer", "identifier", "torch_name"]

_RESERVED = {"r", "k", "chunk", "flatten"}


def identifier(symbol: str) -> str:
    """Turn a symbol such as ``layer.0$F`` into a Python name such as ``layer_0_F``."""
    name = re.sub(r"\W", "_", symbol)
    return f"_{name}" if not name or name[0].isdigit() or keyword.iskeyword(name) else name


def torch_name(element: ir.Type) -> str:
    """Return torch's name, without ``torch.``, of an element type: ``float32`` of ``f32``."""
    return dtype_name(dtype_of_type(element))


class Namer:
    """Gives out names, each once."""

    def __init__(self) -> None:
        """Start with what a program uses itself: its rank, kernels and the chunk decorator."""
        self._taken = set(_RESERVED)

    def fresh(self, wish: str) -> str:
        """Return ``wish`` as an identifier, with a number behind it if it is taken."""
        base = identifier(wish)
        name, count = base, 1
        while name in self._taken:
            count += 1
            name = f"{base}_{count}"
        self._taken.add(name)
        return name
