"""Errors that a running program can raise, each naming rank, program line and what was expected."""

from __future__ import annotations

__all__ = [
    "CheckError",
    "CheckpointError",
    "DeadlockError",
    "FaultError",
    "InstructionError",
    "ProgramError",
    "RemoteError",
    "StallError",
]


class ProgramError(ValueError):
    """An artifact or a rank program that is not valid: found before anything runs."""


class InstructionError(RuntimeError):
    """An instruction that failed; the original exception is the cause."""


class DeadlockError(RuntimeError):
    """No stream can go on; the message lists the head of every stream that is stuck."""


class RemoteError(RuntimeError):
    """Another rank failed or vanished; the message holds that rank's report, or one about it."""


class StallError(RuntimeError):
    """No rank went on for too long; the message says which is behind, and who waits for whom."""


class FaultError(RuntimeError):
    """An instruction that was told to fail, to see what happens then."""


class CheckError(RuntimeError):
    """A value that is not what the single process computes; found in check mode."""


class CheckpointError(RuntimeError):
    """A checkpoint that cannot be written or read, or that does not fit the program."""
