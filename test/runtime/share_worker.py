"""What each process of the share test runs, under torchrun: ``share_worker.py FOLDER CASE``.

Every process writes what it saw: how often it captured, the program's hash, and two losses.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
from pathlib import Path
from typing import Any

import piper
import piper.compiler
import piper.frontend
import torch
from mlp_program import sealed
from piper_runtime import InstructionError, Program, ProgramError, RemoteError
from shared_model import make_batch, make_model, make_strategy, token_loss
from torch import Tensor

RANK = int(os.environ["RANK"])


def shard(batch: dict[str, Tensor]) -> dict[str, Tensor]:
    """What this process feeds."""
    return {name: value.chunk(2)[RANK % 2] for name, value in batch.items()}


def train(captured: list[str]) -> dict[str, Any]:
    """Compile twice, train twice in check mode, and run a program that only some ranks have."""
    batch = shard(make_batch())
    first = piper.compile(make_model(), token_loss, make_strategy("GPipe"), batch)
    program = piper.compile(make_model(), token_loss, make_strategy("1F1B"), batch)
    reference = piper.Reference(program, token_loss, batch)
    trainer = piper.Trainer(program, check=reference)
    losses = [trainer.step(batch).loss for _ in range(2)]
    assert trainer.checked is not None
    seen = {
        "captured": len(captured),
        "hash": program.manifest.hash,
        "losses": losses,
        "compared": trainer.checked.compared,
        "unknown": trainer.checked.unknown,
        "other": "",
    }
    trainer.close()
    if RANK == 0:
        first.save(Path(sys.argv[1]) / "saved")
    try:
        piper.Trainer(program if RANK == 2 else first, model=make_model())
    except ProgramError as error:
        seen["other"] = str(error)
    return seen


def refuse() -> dict[str, Any]:
    """Compile what rank 0 refuses, and then what differs between ranks."""
    batch, errors = shard(make_batch()), []
    wrong = make_strategy("1F1B", pattern="blocks.*")
    for strategy in (wrong, make_strategy("GPipe" if RANK == 3 else "1F1B")):
        try:
            piper.compile(make_model(), token_loss, strategy, batch)
            errors.append("")
        except (piper.CaptureError, piper.CompileError, piper.ShareError) as error:
            errors.append(f"{type(error).__name__}: {error}")
    start = time.monotonic()
    if RANK:
        try:
            piper.compile(make_model(), token_loss, wrong, batch, timeout=1.0)
        except piper.ShareError as error:
            errors.append(f"{type(error).__name__}: {error}")
    return {"errors": errors, "seconds": time.monotonic() - start}


def mix() -> dict[str, Any]:
    """Receive two messages in the wrong order at one end, in check mode."""
    batch = shard(make_batch())
    program = piper.compile(make_model(), token_loss, make_strategy("1F1B"), batch)
    name = "program_pp1.py"
    train, _, evaluation = program.texts[name].partition("def eval(")
    swap = {f"mb={a}, label='layer.1$F#1'": f"mb={b}, label='layer.1$F#1'" for a, b in ("01", "10")}
    wrong = re.sub("|".join(map(re.escape, swap)), lambda found: swap[found[0]], train)
    texts = sealed({**program.texts, name: f"{wrong}def eval({evaluation}"})
    mixed = Program(texts, model=program.model, optimizer=program.optimizer)
    reference = piper.Reference(mixed, token_loss, batch)
    try:
        piper.Trainer(mixed, check=reference).step(batch)
    except (InstructionError, RemoteError) as error:
        return {"error": str(error)}
    return {"error": ""}


CASES = {"refuse": refuse, "mix": mix}


def main() -> None:
    """Run a case and write what was seen."""
    torch.set_num_threads(1)
    captured: list[str] = []
    capture = piper.frontend.capture

    def counted(*arguments: Any, **options: Any) -> Any:
        captured.append("train")
        return capture(*arguments, **options)

    setattr(piper.compiler, "capture", counted)  # noqa: B010 (it is not exported)
    seen = train(captured) if sys.argv[2] == "train" else CASES[sys.argv[2]]()
    (Path(sys.argv[1]) / f"{sys.argv[2]}{RANK}.json").write_text(json.dumps(seen))


if __name__ == "__main__":
    main()
