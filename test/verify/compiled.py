"""A small GPT compiled once per strategy, and what one step of it computes."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

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

__all__ = ["DUAL_PIPE_V", "ONE_F_ONE_B", "ZBV", "Compiled", "Strategy", "compiled", "refusal"]

CLIP = 0.05


@dataclass(frozen=True)
class Strategy:
    """A case of the oracle's, and the chunks of each stage."""

    case: Case
    sizes: tuple[int, ...]
    layers: int = 4

    def __str__(self) -> str:
        """As a test id."""
        return str(self.case)


ONE_F_ONE_B = Strategy(Case("1F1B", pp=2, dp=2, microbatches=3), (3, 3))
ZBV = Strategy(Case("ZBVZeroBubble", pp=2, microbatches=4), (2, 1, 1, 2))
DUAL_PIPE_V = Strategy(Case("DualPipeV", pp=3, microbatches=6), (1, 1, 1, 1, 1, 1))


@dataclass(frozen=True)
class Compiled:
    """A compiled program, and the step that it must still make when it is changed."""

    program: Program
    model: nn.Module
    batch: Any
    steps: Sequence[Step]

    @property
    def text(self) -> str:
        """The lowered module."""
        return self.level("programs")

    def level(self, name: str) -> str:
        """The module at a level of the IR."""
        return self.program.texts[f"ir/{name}.mlir"]

    def check(self, module: ir.Module, *, bound: float) -> None:
        """Assert that a lowered module makes the same step, up to `bound`."""
        symbols = Symbols(module)
        texts = {"kernels.py": emit_kernels(module), **emit_programs(symbols)}
        texts["manifest.json"] = emit_manifest(symbols, texts)
        constants = self.program.constants
        texts = seal(texts, constants)
        program = Program(texts, constants=constants, model=self.model, optimizer=sgd)
        check_steps(_step(program, self.model, self.batch), self.steps, bound=bound)


@cache
def compiled(strategy: Strategy) -> Compiled:
    """Compile a strategy and run one step."""
    case = strategy.case
    shared = captures(tied=True, layers=strategy.layers)
    [batch] = batches(case, steps=1)
    directives = case.strategy(TAGS, sgd, clip=CLIP, stages=strategy.sizes)
    program = shared.compile(directives, batch)
    return Compiled(program, shared.model, batch, _step(program, shared.model, batch))


def _step(program: Program, model: nn.Module, batch: Any) -> list[Step]:
    with contextlib.redirect_stderr(io.StringIO()):  # every trainer says where it runs
        return piper_steps(program, model, [batch], sgd)


def refusal(module: ir.Operation, pipeline: str = "piper-verify") -> str | None:
    """The first error of the ops' own verifiers or of passes, or None."""
    try:
        module.verify()
        PassManager.parse(f"builtin.module({pipeline})").run(module)
    except ir.MLIRError as error:  # type: ignore[attr-defined]  # the stub lacks it
        return str(error.error_diagnostics[0].message)
    return None
