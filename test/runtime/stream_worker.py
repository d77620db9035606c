"""What each process of the stream tests runs, under torchrun: PROGRAM OUTPUT TIMEOUT STEPS.

It trains a compiled program on streams that are threads, and saves what it saw. PIPER_FAULT says
what goes wrong.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from collective_program import collective_program, make_input
from piper_runtime import Program, Trainer
from piper_runtime.instruction import Instruction
from recorded_streams import ThreadedTransport
from stream_model import adamw, make_batch, make_model, shard


def collectives(dtype: torch.dtype) -> dict[str, float]:
    """Run every collective once."""
    program = collective_program(str(dtype).removeprefix("torch."))
    trainer = Trainer(program, transport=ThreadedTransport())
    x = make_input(dtype).chunk(dist.get_world_size())[dist.get_rank()]
    outputs = trainer.outputs("train", {"x": x})
    trainer.close()
    return outputs


def main() -> None:
    torch.set_num_threads(1)
    program, output = Program.open(sys.argv[1]), Path(sys.argv[2])
    timeout, steps = float(sys.argv[3]), int(sys.argv[4])
    transport = ThreadedTransport(timeout=timeout)
    trainer = Trainer(program, transport=transport, model=make_model(), optimizer=adamw)
    rank = dist.get_rank()
    results = [trainer.step(shard(make_batch(step), rank)) for step in range(steps)]
    spans: list[tuple[str, int, int, int]] = []

    def observe(instruction: Instruction, start: int, end: int) -> None:
        spans.append((instruction.stream, instruction.number, start, end))

    transport.observer = observe
    evaluation = trainer.evaluate(shard(make_batch(9), rank))
    transport.observer = None
    seen: dict[str, Any] = {
        "losses": [result.loss for result in results],
        "norms": [result.grad_norm for result in results],
        "gradients": trainer.gradients(),
        "state": trainer.full_state_dict(),
        "evaluation": evaluation,
        "spans": spans,
        "collectives": {dtype: collectives(dtype) for dtype in (torch.float32, torch.int64)},
    }
    torch.save(seen, output / f"rank{rank}.pt")
    trainer.close()


if __name__ == "__main__":
    main()
