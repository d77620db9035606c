"""The runtime of Piper: runs per-rank programs. Needs only torch, never imports the compiler.

Read first: ``rank`` (the instruction set), ``transports/local`` (the abstract machine) and
``trainer``.
"""

from piper_runtime.errors import DeadlockError, InstructionError, ProgramError, RemoteError
from piper_runtime.program import Program
from piper_runtime.result import StepResult
from piper_runtime.trainer import Trainer
from piper_runtime.transports.base import Transport
from piper_runtime.transports.gloo import GlooTransport
from piper_runtime.transports.local import LocalTransport

__all__ = [
    "DeadlockError",
    "GlooTransport",
    "InstructionError",
    "LocalTransport",
    "Program",
    "ProgramError",
    "RemoteError",
    "StepResult",
    "Trainer",
    "Transport",
]
