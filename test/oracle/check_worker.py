"""What each of two processes runs, under torchrun: ``check_worker.py OUTPUT_FOLDER``."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path += [str(ROOT / "examples"), str(ROOT / "test" / "support")]

import piper
import sequence_models
import small_moe
import small_tensors
import torch
import torch.distributed as dist
from oracle import BOUND
from piper_runtime import InstructionError
from planted import scaled_kernel
from sequence_models import Sequences
from small_gpt import token_loss
from small_moe import Experted
from small_tensors import Tensors
from torch import nn

LossFunction = Callable[..., Any]
TENSORS = Tensors("1F1B", 0, 1, 2, tp=2)
CONTEXT = Sequences("1F1B", 0, 0, 2, cp=2)
EXPERTS = Experted("1F1B", 0, 1, 2, ep=2)


def compare(
    strategy: piper.Strategy, model: nn.Module, loss_fn: LossFunction, batch: Any
) -> tuple[int, int, str]:
    """Check a program; return how many values were compared, how many not, and what is said if a
    kernel is wrong.
    """
    program = piper.compile(model, loss_fn, strategy, batch)
    summary = piper.check(program, loss_fn, batch, bound=BOUND, steps=2)
    try:
        wrong = scaled_kernel(program, "program_0.py", "layer_0_F1")
        piper.check(wrong, loss_fn, batch, model=model)
    except InstructionError as error:
        return summary.compared, summary.unknown, str(error)
    raise AssertionError("the wrong kernel was not found")


def main() -> None:
    """Check cases in one order on both ranks, each of which feeds what is its own."""
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    seen = {}
    dense = small_tensors.captures(small_tensors.Config()).model
    (batch,) = small_tensors.batches(TENSORS, steps=1)
    seen["tensors"] = compare(TENSORS.plan(), dense, token_loss, batch)
    model = sequence_models.captures(sequence_models.Config()).model
    (batch,) = sequence_models.batches(CONTEXT, steps=1)
    seen["context"] = compare(CONTEXT.plan(), model, sequence_models.token_loss, batch)
    (batch,) = small_moe.batches(EXPERTS, steps=1)
    own = {name: value.chunk(2)[rank] for name, value in batch.items()}
    sparse = small_moe.captures().model
    seen["experts"] = compare(EXPERTS.plan(), sparse, small_moe.token_loss, own)
    torch.save(seen, Path(sys.argv[1]) / f"rank{rank}.pt")


if __name__ == "__main__":
    main()
