"""Run by MLIR's bindings on import: every new context knows Piper."""

from ._piper import register_dialects, register_passes

__all__ = ["register_dialects"]

register_passes()
