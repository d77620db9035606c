"""The runtime of Piper: runs per-rank programs on torch, numpy and safetensors alone.

Read first: ``rank`` (the instruction set), ``transports/local`` (the abstract machine) and
``trainer``.
"""

from piper_runtime.errors import (
    CheckError,
    CheckpointError,
    DeadlockError,
    FaultError,
    InstructionError,
    ProgramError,
    RemoteError,
    StallError,
)
from piper_runtime.failures.faults import Fault
from piper_runtime.kernels import KernelError
from piper_runtime.observe.metrics import Metrics
from piper_runtime.observe.result import StepResult
from piper_runtime.program import Program
from piper_runtime.states.loss_scale import LossScale
from piper_runtime.states.optimizer import takes_names
from piper_runtime.stepper import Stepper
from piper_runtime.trainer import Trainer
from piper_runtime.transports.base import Transport
from piper_runtime.transports.gloo import GlooTransport
from piper_runtime.transports.local import LocalTransport
from piper_runtime.transports.nccl import NcclTransport

__all__ = [
    "CheckError",
    "CheckpointError",
    "DeadlockError",
    "Fault",
    "FaultError",
    "GlooTransport",
    "InstructionError",
    "KernelError",
    "LocalTransport",
    "LossScale",
    "Metrics",
    "NcclTransport",
    "Program",
    "ProgramError",
    "RemoteError",
    "StallError",
    "StepResult",
    "Stepper",
    "Trainer",
    "Transport",
    "takes_names",
]
