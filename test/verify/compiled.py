"""A small GPT compiled once per strategy, and what one step of it computes."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol

import torch
from oracle import Step, check_steps, piper_steps, sgd
from piper.emit import emit_kernels, emit_manifest, emit_programs
from piper.emit.symbols import Symbols
from piper.mlir import ir
from piper.mlir.passmanager import PassManager
from piper_runtime import Program
from piper_runtime.program import seal
from small_gpt import TAGS, batches, captures
from strategies import Case
from torch import nn

__all__ = [
    "DUAL_PIPE_V",
    "ONE_F_ONE_B",
    "ZBV",
    "Compiled",
    "Source",
    "Strategy",
    "compiled",
    "refusal",
]

CLIP = 0.05


@dataclass(frozen=True)
class Strategy:
    """A case of the oracle's, how many chunks or stages there are, and how many steps to train."""

    case: Case
    sizes: tuple[int, ...] | int
    layers: int = 4
    steps: int = 1
    reduce_dtype: torch.dtype | None = None

    def __str__(self) -> str:
        """As a test id."""
        return str(self.case)

    def compile(self) -> tuple[Program, nn.Module, Sequence[Any]]:
        """The program, the model of the first step, and its batches."""
        shared = captures(tied=True, layers=self.layers)
        made = batches(self.case, steps=self.steps)
        directives = self.case.strategy(
            TAGS, sgd, clip=CLIP, stages=self.sizes, reduce_dtype=self.reduce_dtype
        )
        return shared.compile(directives, made[0]), shared.model, made


class Source(Protocol):
    """What compiles a program, equal if it compiles an equal one."""

    def compile(self) -> tuple[Program, nn.Module, Sequence[Any]]:
        """See `Strategy`."""

    def __hash__(self) -> int:
        """Made once per process."""


ONE_F_ONE_B = Strategy(Case("1F1B", pp=2, dp=2, microbatches=3), (3, 3))
ZBV = Strategy(Case("ZBVZeroBubble", pp=2, microbatches=4), (2, 1, 1, 2))
DUAL_PIPE_V = Strategy(Case("DualPipeV", pp=3, microbatches=6), (1, 1, 1, 1, 1, 1))


@dataclass(frozen=True)
class Compiled:
    """A compiled program, and the steps that it must still make when it is changed."""

    program: Program
    model: nn.Module
    batches: Sequence[Any]
    steps: Sequence[Step]

    @property
    def text(self) -> str:
        """The lowered module."""
        return self.level("programs")

    def level(self, name: str) -> str:
        """The module at a level of the IR."""
        return self.program.texts[f"ir/{name}.mlir"]

    def run(
        self, module: ir.Module, *, kernels: str | None = None, seed: int | None = None
    ) -> list[Step]:
        """Train with the programs of a lowered module, and its kernels where they are others."""
        symbols = Symbols(module)
        kernels = kernels or self.program.texts["kernels.py"]
        texts = {"kernels.py": kernels, **emit_programs(symbols)}
        texts["manifest.json"] = emit_manifest(symbols, texts)
        constants = self.program.constants
        texts = seal(texts, constants)
        program = Program(texts, constants=constants, model=self.model, optimizer=sgd)
        return _train(program, self.model, self.batches, seed=seed)

    def check(self, module: ir.Module, *, bound: float) -> None:
        """Assert that a lowered module makes the same steps, up to `bound`."""
        steps = self.run(module, kernels=emit_kernels(module))
        check_steps(steps, self.steps, bound=bound)


@cache
def compiled(strategy: Source) -> Compiled:
    """Compile a strategy and train for its steps."""
    program, model, made = strategy.compile()
    return Compiled(program, model, made, _train(program, model, made))


def _train(
    program: Program, model: nn.Module, batches: Sequence[Any], *, seed: int | None = None
) -> list[Step]:
    with contextlib.redirect_stderr(io.StringIO()):  # every trainer says where it runs
        return piper_steps(program, model, batches, sgd, seed=seed)


def refusal(module: ir.Operation, pipeline: str = "piper-verify") -> str | None:
    """The first error of the ops' own verifiers or of passes, or None."""
    try:
        module.verify()
        PassManager.parse(f"builtin.module({pipeline})").run(module)
    except ir.MLIRError as error:  # type: ignore[attr-defined]  # the stub lacks it
        return str(error.error_diagnostics[0].message)
    return None
