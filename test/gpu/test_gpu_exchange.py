"""One rank: the host waits for counts that the device makes late, and rows go round.

On a CPU the same code runs with streams that do nothing and gloo.
"""

from __future__ import annotations

import json
from contextlib import closing

import pytest
import torch
from piper_runtime import Program, Trainer
from piper_runtime.instruction import Instruction
from piper_runtime.program import seal
from test_gpu_nccl import transport_on

TEXT = """\
import torch
from piper_runtime.program import chunk
from . import kernels as k


@chunk(results=2)
def router(x):
    if x.is_cuda:
        torch.cuda._sleep(200_000_000)
    return x * 2, (x[:, 0] > 0).sum().view(1, 1) + torch.zeros_like(x[:1, :2], dtype=torch.int64)


@chunk(results=1)
def busy(x):
    if x.is_cuda:
        torch.cuda._sleep(2_000_000_000)
    return x + 1


@chunk(results=1)
def pick(rows, counts):
    return rows[: counts[0, 0]].clone()


@chunk(results=1)
def total(x, y):
    return x.sum() + y.sum()


def train(r):
    x = r.input("x", mb=0)
    rows, sc = r.run(router, x, mb=0)
    e = r.record()
    rc, a = r.all_to_all(sc, comm="ep", stream="ep", mb=0, label="counts", after=[e])
    other = r.run(busy, x, mb=0)
    hs, hr = r.host_wait(sc, rc, mb=0, after=[a])
    picked = r.run(pick, rows, rc, mb=0, after=[a])
    f = r.record()
    there, b = r.all_to_all(picked, comm="ep", stream="ep", sizes=(hs, hr), mb=0, after=[f])
    r.output("there", r.run(total, there, other, mb=0, after=[b]))
    r.output("plain", r.tangent("plain", coeff=1.0))
"""


def program(*, factor: int) -> Program:
    """Counts are two of ``factor`` columns, so that sizes are their sum."""
    manifest = {
        "version": 1,
        "hash": "",
        "mesh": [{"name": "ep", "size": 1, "role": "manual"}],
        "microbatches": 1,
        "inputs": [{"name": "x", "shape": [8, 4], "dtype": "float32", "dim": 0}],
        "data_axes": ["ep"],
        "states": [],
        "buckets": [],
        "comms": [{"name": "ep", "axes": ["ep"], "coordinates": [0]}],
        "programs": ["program_0.py"],
        "entry_points": ["train"],
        "losses": [{"name": "plain", "dtype": "float32"}],
    }
    text = TEXT.replace(":2]", f":{factor}]")
    texts = {"kernels.py": "", "program_0.py": text, "manifest.json": json.dumps(manifest)}
    return Program(seal(texts, {}))


@pytest.mark.usefixtures("world")
def test_the_host_knows_what_the_device_makes_late(device: torch.device) -> None:
    """It does not wait for what compute was given meanwhile, which is ten times as long."""
    x = torch.tensor([1.0, -1, 1, 1, -1, -1, 1, 1])[:, None].repeat(1, 4)
    spans: dict[str, tuple[int, int]] = {}

    def observe(instruction: Instruction, start: int, end: int) -> None:
        spans[instruction.label if instruction.kind == "run" else instruction.kind] = start, end

    with closing(Trainer(program(factor=1), transport=transport_on(device))) as trainer:
        for _ in range(2):  # the first one makes memory and streams
            trainer.transport.observer = observe
            found = trainer.outputs("train", {"x": x})["there"]
        assert found == (2 * x[:5]).sum() + (x + 1).sum()
        if device.type == "cuda":
            assert spans["host_wait"][1] < spans["chunk busy"][1]


@pytest.mark.usefixtures("world")
def test_sizes_that_do_not_fit_are_an_error_before_anything_is_sent(device: torch.device) -> None:
    with (
        closing(Trainer(program(factor=2), transport=transport_on(device))) as trainer,
        pytest.raises(RuntimeError, match=r"sizes to send that add up to 8, its rows, got \[16\]"),
    ):
        trainer.outputs("train", {"x": torch.ones(8, 4)})
