"""The commands of docs/debugging.md, on the model that docs/architecture.md follows.

python docs/debugging.py step       # stop a training step before one instruction, look at values
python docs/debugging.py check      # train in check mode: a right program, then a wrong kernel
torchrun --nproc-per-node 4 docs/debugging.py train     # three steps, 5 s of patience
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import piper
import torch
from piper_runtime import InstructionError, Program
from piper_runtime.program import seal
from torch import Tensor
from walkthrough import Model, loss_fn, make_batch, make_strategy

ROOT = Path(__file__).resolve().parents[1]


def step() -> None:
    """Run until a backward of rank 2, and look at what it is given and what it makes."""
    batch = make_batch()
    trainer = piper.Trainer(piper.compile(Model(), loss_fn, make_strategy(), batch))
    stepper = trainer.stepper(batch)
    upcoming = stepper.run_until("layer.1$B mb 0", rank=2)
    say(f"next: {upcoming.place()}\nfrom: {upcoming.origin()}")
    for operand in ("head_0_B0_m0", "preamble_P0_m0", "layer_1_F0_m0", "from0_m0"):
        say(f"{operand}: {tuple(stepper.value(operand, rank=2).shape)}")
    stepper.step()
    say(f"layer_1_B0_m0: {tuple(stepper.value('layer_1_B0_m0', rank=2).shape)}")
    say(f"then: {stepper.upcoming.place() if stepper.upcoming else 'nothing'}")
    stepper.finish()


def check() -> None:
    """Compare every value with those of a single process, before and after a kernel is broken."""
    batch = make_batch()
    program = piper.compile(Model(), loss_fn, make_strategy(), batch)
    say(re.sub(r", [\d.e+-]+ of the largest.*", "", str(piper.check(program, loss_fn, batch))))
    try:
        piper.check(with_wrong_kernel(program), loss_fn, batch)
    except InstructionError as error:
        say(re.sub(r", first at .*?;", ";", str(error)))


def with_wrong_kernel(program: Program) -> Program:
    """The program with the first result of layer 1's backward doubled."""
    [kernel] = re.findall(
        r"def layer_1_B\(.*\n(?:    .*\n)*?    .* = k\.(\w+)\(", _stage_1(program)
    )
    wrong = rf"(def {kernel}\((?:.*\n)*?    return )(\w+)"
    kernels = re.sub(wrong, r"\1\2 * 2", program.texts["kernels.py"])
    texts = {**program.texts, "kernels.py": kernels}
    texts = seal(texts, program.constants)
    return Program(
        texts, constants=program.constants, model=program.model, optimizer=program.optimizer
    )


def train() -> None:
    """Take three steps, as one of the processes that torchrun started."""
    torch.manual_seed(0)
    model, batch = Model(), shard(make_batch())
    program = piper.compile(model, loss_fn, make_strategy(), batch)
    trainer = piper.Trainer(program, timeout=5.0)
    for _ in range(3):
        trainer.step(batch)
    trainer.close()


def shard(batch: dict[str, Tensor]) -> dict[str, Tensor]:
    """The rows that this process feeds: dp is the inner axis of two."""
    return {name: value.chunk(2)[int(os.environ["RANK"]) % 2] for name, value in batch.items()}


def say(text: str) -> None:
    """Print with paths as they are in the repository."""
    print(text.replace(f"{ROOT}/", ""), flush=True)


def _stage_1(program: Program) -> str:
    return program.texts["program_pp1.py"]


COMMANDS = {"step": step, "check": check, "train": train}

if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1] not in COMMANDS:
        raise SystemExit((__doc__ or "").strip())
    COMMANDS[sys.argv[1]]()
