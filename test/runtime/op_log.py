"""What torch ops are called."""

from __future__ import annotations

from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

__all__ = ["OpLog"]


class OpLog(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """The names of all ops that are called while it is on."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Note an op and call it."""
        self.names.add(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))
