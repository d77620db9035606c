"""What each process of the test of group creation runs, under torchrun: FOLDER SECONDS.

Rank 2 sleeps when it comes to the first group of the last communicator, whose members are ranks 0
and 2: until ranks 1 and 3 have opened all communicators, but no longer than so many seconds. Then
it writes down who has by then.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from mlp_program import program_texts
from piper_runtime import GlooTransport, Program

RANK, SLEEPER, OTHERS = int(os.environ["RANK"]), 2, {1, 3}
FOLDER, SECONDS = Path(sys.argv[1]), float(sys.argv[2])

manifest = Program(program_texts()).manifest
new_group = dist.new_group
made: list[list[int]] = []


def started() -> set[int]:
    """The ranks that have opened all."""
    return {rank for rank in range(4) if (FOLDER / f"started{rank}").exists()}


def sleep_in_the_last(ranks: list[int] | None = None, **options: Any) -> Any:
    """Make a group; the sleeping rank is late for one."""
    if ranks == [0, SLEEPER]:
        made.append(ranks)
        if RANK == SLEEPER and len(made) == sum(not spec.axes for spec in manifest.comms):
            until = time.monotonic() + SECONDS
            while not started() >= OTHERS and time.monotonic() < until:
                time.sleep(0.01)
            (FOLDER / "seen.json").write_text(json.dumps(sorted(started())))
    return new_group(ranks, **options)


def main() -> None:
    """Open all communicators."""
    torch.set_num_threads(1)
    setattr(dist, "new_group", sleep_in_the_last)  # noqa: B010 (it is a function of torch)
    transport = GlooTransport(timeout=60.0)
    transport.start(manifest)
    (FOLDER / f"started{RANK}").touch()
    dist.barrier()
    transport.close()


if __name__ == "__main__":
    main()
