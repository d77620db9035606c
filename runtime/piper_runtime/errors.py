"""Errors that a running program can raise, each naming rank, program line and what was expected."""

from __future__ import annotations

__all__ = ["DeadlockError", "InstructionError", "ProgramError", "RemoteError"]


class ProgramError(ValueError):
    """An artifact or a rank program that is not valid: found before anything runs."""


class InstructionError(RuntimeError):
    """An instruction that failed; the original exception is the cause."""


class DeadlockError(RuntimeError):
    """No stream can go on; the message lists the head of every stream that is stuck."""


class RemoteError(RuntimeError):
    """Another rank failed; the message holds that rank's report."""
