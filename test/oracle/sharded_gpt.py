"""The small GPT under the strategies of `sharded`: compiled, and held against plain PyTorch."""

from __future__ import annotations

import piper
import small_gpt
from oracle import adamw, check_steps, piper_steps, plain_steps, sgd
from piper_runtime import Program
from sharded import Sharded
from small_gpt import TAGS, token_loss
from strategies import Captures

__all__ = ["CLIP", "NAMES", "check_training", "compile_case", "strategy_of"]

CLIP = 0.5
LAYERS = 6  # with embedding and head 8 chunks, two for each of 4 stages
NAMES = ("1F1B", "Interleaved1F1B", "ZBVZeroBubble", "DualPipeV", "DualPipe")


def strategy_of(case: Sharded) -> piper.Strategy:
    """The strategy of a case, which clips gradients."""
    return case.strategy(TAGS, sgd, clip=CLIP, stages=case.stages)


def compile_case(case: Sharded) -> tuple[Program, Captures, list[small_gpt.Batch]]:
    """The program of the tied model, the model, and batches of three steps."""
    captures, batches = small_gpt.captures(tied=True, layers=LAYERS), small_gpt.batches(case)
    return captures.compile(strategy_of(case), batches[0]), captures, batches


def check_training(case: Sharded) -> None:
    """Three steps each of SGD with momentum and of AdamW, clipped, equal plain PyTorch."""
    program, captures, batches = compile_case(case)
    for factory in (sgd, adamw):
        expected = plain_steps(captures.model, token_loss, batches, factory, clip=CLIP)
        check_steps(piper_steps(program, captures.model, batches, factory), expected)
