"""What this machine reaches: the figures of the device `cpu` and of the link `loopback`.

    python benchmarks/device_figures.py            # print them
    python benchmarks/device_figures.py --write    # write them into their files, too

Of one core, best of some runs: FLOPs per second of a product per dtype, bytes per second of a copy.
Of gloo between two processes, half of a round trip: of 8 bytes for the latency; of a long message,
less that, for the bandwidth. The machine must be idle. The titles of the files stay as they are.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.distributed as dist

DEVICES = Path(__file__).parents[1] / "python" / "piper" / "simulate" / "devices"
HOW = "measured on the machine that this file is about, by python benchmarks/device_figures.py"
RUNS, TRIPS = 5, 50


def core(size: int = 1536, copied: int = 1 << 28) -> dict[str, Any]:
    """Return the figures of one core, with their sources."""
    torch.set_num_threads(1)
    flops = {}
    for dtype in ("float64", "float32", "float16", "bfloat16"):
        matrix = torch.randn(size, size).to(getattr(torch, dtype))
        seconds = min(_time(partial(torch.mm, matrix, matrix)) for _ in range(RUNS))
        flops[dtype] = _figure(2 * size**3 / seconds, "product")
    source = torch.ones(copied // 4)
    target = source.clone()  # its pages are there before the first copy that counts
    seconds = min(_time(partial(target.copy_, source)) for _ in range(RUNS))
    cores, num_bytes = os.cpu_count() or 1, os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {
        "flops": flops,
        "memory_bandwidth": _figure(2 * copied / seconds, "copy"),
        "memory": _figure(num_bytes / cores, "memory"),
        "sources": {
            "product": _source(f"product of {size} x {size}, one thread, best of {RUNS}"),
            "copy": _source(f"copy of {copied} bytes, read plus written, best of {RUNS}"),
            "memory": _source(f"what the system has, over {cores} cores"),
        },
    }


def link(sent: int = 1 << 26) -> dict[str, Any]:
    """Return the figures of gloo between two processes, with their source."""
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder, ProcessPoolExecutor(2, context) as pool:
        talk = partial(_talk, f"file://{folder}/meeting", (8, sent))
        short, long = next(pool.map(talk, range(2)))
    return {
        "bandwidth": _figure((sent - 8) / (long - short), "round trip"),
        "latency": _figure(short, "round trip"),
        "sources": {"round trip": _source(f"gloo, half a round trip, median of {TRIPS}")},
    }


def _talk(meeting: str, sizes: tuple[int, ...], rank: int) -> list[float]:
    """Send there and back, and return the seconds of one way by size."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", meeting, rank=rank, world_size=2)

    def trip(message: torch.Tensor) -> None:
        for sender in (0, 1):
            dist.send(message, 1 - rank) if rank == sender else dist.recv(message, 1 - rank)

    messages = (torch.zeros(size, dtype=torch.uint8) for size in sizes)
    return [median(_time(partial(trip, message)) for _ in range(TRIPS)) / 2 for message in messages]


def _time(run: Callable[[], Any]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def _figure(value: float, source: str) -> dict[str, Any]:
    return {"value": float(f"{value:.3g}"), "source": source}


def _source(what: str) -> dict[str, Any]:
    return {"title": f"{HOW}: torch {torch.__version__}, {what}", "url": None}


def main() -> None:
    """Measure and print, and write if asked to."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--write", action="store_true", help="write the figures into their files")
    write = parser.parse_args().write
    for name, part in (("cpu.json", core()), ("links/loopback.json", link())):
        path = DEVICES / name
        print(f"{name}: {json.dumps(part, indent=1)}")
        if write:
            path.write_text(json.dumps(json.loads(path.read_text()) | part, indent=1) + "\n")


if __name__ == "__main__":
    main()
