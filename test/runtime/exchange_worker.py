"""What each process of the exchange tests runs, under torchrun: ``exchange_worker.py FOLDER``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from exchange_program import exchange_program, exchange_text, make_input, shard
from piper_runtime import Trainer, Transport
from piper_runtime.instruction import Instruction
from piper_runtime.transports.gloo import GlooTransport
from recorded_streams import ThreadedTransport

TIMEOUT = 3.0


def outputs(transport: Transport, dtype: torch.dtype) -> tuple[float, dict[Any, int | None]]:
    """Run the program; return its output and the bytes that were sent, by label and microbatch."""
    trainer = Trainer(exchange_program(str(dtype).removeprefix("torch.")), transport=transport)
    found: dict[Any, int | None] = {}

    def observe(instruction: Instruction, start: int, end: int) -> None:
        if instruction.kind == "all_to_all" and instruction.message is not None:
            found[instruction.message.label, instruction.microbatch] = instruction.message.sent

    transport.observer = observe
    output = trainer.outputs("train", shard(make_input(dtype), dist.get_rank()))["back"]
    trainer.close()
    return output, found


def failure(transport: Transport, text: str, fault: str | None = None) -> str:
    """Return what a run of a program raises."""
    trainer = Trainer(exchange_program(text=text), transport=transport, fault=fault)
    try:
        trainer.outputs("train", shard(make_input(), dist.get_rank()))
    except RuntimeError as error:
        return str(error)
    finally:
        trainer.close()
    return "no error"


def main() -> None:
    """Run the cases in one order on every rank; those that fail come last."""
    torch.set_num_threads(1)
    seen: dict[str, Any] = {"outputs": {}, "bytes": {}}
    for kind in (GlooTransport, ThreadedTransport):
        for dtype in (torch.float64, torch.bfloat16, torch.int64):
            output, sent = outputs(kind(), dtype)
            seen["outputs"][kind.name, str(dtype)] = output
            if dtype == torch.float64:
                seen["bytes"][kind.name] = sent
    checked = GlooTransport()
    checked.identify = True
    seen["mismatch"] = failure(checked, exchange_text(sizes="hs_{m}, hs_{m}"))
    seen["bound"] = failure(GlooTransport(), exchange_text(bound=5))
    fault = f"rank=1 instruction='router mb 0' action=sleep:{3 * TIMEOUT}"
    seen["hang"] = failure(GlooTransport(timeout=TIMEOUT), exchange_text(), fault)
    torch.save(seen, Path(sys.argv[1]) / f"rank{dist.get_rank()}.pt")


if __name__ == "__main__":
    main()
