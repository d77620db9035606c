"""The error of a kernel that cannot be compiled."""

from __future__ import annotations

__all__ = ["KernelError"]


class KernelError(RuntimeError):
    """A kernel that its backend cannot compile; the message names it and says why."""
