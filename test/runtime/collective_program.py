"""A program of one line per collective on four ranks, and what plain PyTorch says of it."""

from __future__ import annotations

import json

import torch
from mlp_program import sealed
from piper_runtime import Program
from torch import Tensor

NUM_RANKS = 4
ROWS, COLUMNS = 4, 3

TEXT = """\
import torch
from piper_runtime.program import chunk
from . import kernels as k


@chunk(results=1)
def weigh(x):
    return (x.double().flatten() * torch.arange(1.0, x.numel() + 1).double()).sum()


@chunk(results=0)
def look(x):
    assert x.shape[1] == 3


def train(r):
    x = r.input("x", mb=0)
    r.run(look, x, mb=0)
    e = r.record()
    a, e0 = r.all_reduce(x, comm="dp", stream="dp", after=[e])
    b, e1 = r.all_gather(x, comm="dp", stream="dp", dim=1, after=[e])
    c, e2 = r.reduce_scatter(x, comm="dp", stream="dp", dim=SCATTER_DIM, after=[e])
    d, e3 = r.broadcast(x, comm="dp", stream="dp", root=2, after=[e])
    f, e4 = r.all_reduce(x, comm="alone", stream="alone", after=[e])
    r.output("all_reduce", r.run(weigh, a, after=[e0]))
    r.output("all_gather", r.run(weigh, b, after=[e1]))
    r.output("reduce_scatter", r.run(weigh, c, after=[e2]))
    r.output("broadcast", r.run(weigh, d, after=[e3]))
    r.output("alone", r.run(weigh, f, after=[e4]), mb=0)
    r.output("alone", r.run(weigh, x), mb=0)
    r.output("plain", r.tangent("plain", coeff=0.5))
    r.free(a, b, c, d, f)
"""


def collective_program(dtype: str, *, scatter_dim: int = 0) -> Program:
    """Return the program for an input ``x`` of 4 x 3 elements per rank."""
    manifest = {
        "version": 1,
        "hash": "",
        "mesh": [{"name": "dp", "size": NUM_RANKS, "role": "manual"}],
        "microbatches": 1,
        "inputs": [{"name": "x", "shape": [ROWS, COLUMNS], "dtype": dtype, "dim": 0}],
        "data_axes": ["dp"],
        "states": [],
        "buckets": [],
        "comms": [
            {"name": "dp", "axes": ["dp"], "coordinates": [0]},
            {"name": "alone", "axes": [], "coordinates": [0]},
        ],
        "programs": ["program_0.py"],
        "entry_points": ["train"],
        "losses": [{"name": "plain", "dtype": "float64"}],
        "optimizer": None,
        "clip": None,
    }
    text = TEXT.replace("SCATTER_DIM", str(scatter_dim))
    texts = {"kernels.py": "", "program_0.py": text, "manifest.json": json.dumps(manifest)}
    return Program(sealed(texts))


def make_input(dtype: torch.dtype) -> Tensor:
    """Return the input of all ranks, small integers so that every dtype adds exactly."""
    values = torch.arange(NUM_RANKS * ROWS * COLUMNS) * 7 % 11 - 3
    return values.view(NUM_RANKS * ROWS, COLUMNS).to(dtype)


def expected_outputs(x: Tensor) -> dict[str, float]:
    """Return what rank 0 reports."""
    parts = x.double().chunk(NUM_RANKS)
    total = torch.stack(parts).sum(0)
    return {
        "all_reduce": _weigh(total),
        "all_gather": _weigh(torch.cat(parts, 1)),
        "reduce_scatter": _weigh(total[: ROWS // NUM_RANKS]),
        "broadcast": _weigh(parts[2]),
        "alone": 2 * _weigh(parts[0]),
        "plain": 0.5,
    }


def _weigh(x: Tensor) -> float:
    return float((x.flatten() * torch.arange(1.0, x.numel() + 1).double()).sum())
