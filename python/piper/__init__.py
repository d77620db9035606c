"""Piper compiles the training step of a PyTorch model and a strategy into per-rank programs.

    strategy = piper.Strategy(mesh={"pp": 2}, directives=[piper.annotate(...), ...])
    program = piper.compile(model, loss_fn, strategy, batch)
    trainer = piper.Trainer(program)

Read first: `compiler` (the flow), `strategy` (what users say), `frontend` (how a step is captured),
`emit` (what comes out). The passes between are in C++.
"""

from piper_runtime import LossScale, Trainer, takes_names
from piper_runtime.ops import local_loss

from piper import ops
from piper.compiler import CompileError, compile
from piper.frontend import CaptureError, register_rule
from piper.limits import Limits
from piper.reference import Reference, check
from piper.schedules import Table
from piper.share import ShareError
from piper.strategy import (
    Strategy,
    annotate,
    order,
    overlap,
    place,
    remat,
    replicate,
    sequence,
    shard,
    split,
    stream,
    update,
    user_pass,
)

__all__ = [
    "CaptureError",
    "CompileError",
    "Limits",
    "LossScale",
    "Reference",
    "ShareError",
    "Strategy",
    "Table",
    "Trainer",
    "annotate",
    "check",
    "compile",
    "local_loss",
    "ops",
    "order",
    "overlap",
    "place",
    "register_rule",
    "remat",
    "replicate",
    "sequence",
    "shard",
    "split",
    "stream",
    "takes_names",
    "update",
    "user_pass",
]
