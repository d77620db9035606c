"""The run whose line and trace docs/observability.md shows: a GPT on two processes over gloo.

torchrun --nproc-per-node 2 docs/traced_run.py DIR TRACE
    # compile to DIR, train eight steps with metrics in DIR.jsonl, record three of them in TRACE
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "examples"))

import piper
import torch
import torch.nn.functional as F  # noqa: N812
from gpt import GPT, Config
from torch import Tensor, nn

CONFIG = Config(layers=8, width=256, context=128)
ROWS, MICROBATCHES = 16, 4
STEPS, TRACED = 8, range(5, 8)
PEAK_FLOPS = 5e10  # per second: what one core is taken for, so that the line has an MFU


def loss_fn(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    """Mean cross-entropy of the next byte."""
    logits: Tensor = model(batch["ids"])
    return F.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten())


def adamw(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    """AdamW."""
    return torch.optim.AdamW(parameters, lr=1e-3)


def main(folder: str, trace: str) -> None:
    """Compile, train, and print the line of the last step."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    strategy = piper.Strategy(
        mesh={"pp": 2},
        directives=[
            piper.annotate({"embed": "embed", "layers.*": "layer", "head": "head"}),
            piper.split(microbatches=MICROBATCHES),
            piper.place(stages=2),
            piper.order("1F1B"),
            piper.update(adamw, clip=1.0),
        ],
    )
    ids = torch.randint(CONFIG.vocabulary, (ROWS, CONFIG.context + 1))
    batch = {"ids": ids[:, :-1], "labels": ids[:, 1:]}
    program = piper.compile(GPT(CONFIG), loss_fn, strategy, batch)
    is_first = os.environ.get("RANK", "0") == "0"
    if is_first:
        program.save(folder)
    trainer = piper.Trainer(program, metrics=f"{folder}.jsonl", peak_flops=PEAK_FLOPS)
    with trainer.trace(trace, steps=TRACED):
        results = [trainer.step(batch) for _ in range(STEPS)]
    if is_first:
        print(results[-1])
    trainer.close()


if __name__ == "__main__":
    if len(sys.argv) != 3:
        raise SystemExit((__doc__ or "").strip())
    main(sys.argv[1], sys.argv[2])
