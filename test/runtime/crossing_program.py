"""A program whose host must go on while compute waits: a later send lets an earlier receive end."""

from __future__ import annotations

import json

import torch
from mlp_program import sealed
from piper_runtime import Program
from torch import Tensor

ROWS, COLUMNS = 4, 3

FIRST = """\
def train(r):
    x = r.input("x", mb=0)
    e = r.record()
    a, e0 = r.recv(comm="up", peer=1, shape=(4, 3), dtype="float64", stream="up", mb=0, after=[e])
    y = r.sum(a, x, after=[e0])
    e1 = r.send(x, comm="down", peer=1, stream="down", mb=0, after=[e])
    r.output("y", r.sumsq(y))
    r.free(x, a, y, after=[e1])
"""
SECOND = """\
def train(r):
    x = r.input("x", mb=0)
    e = r.record()
    b, e0 = r.recv(comm="down", peer=0, shape=(4, 3), dtype="float64", stream="down", mb=0, after=[e])
    z = r.sum(b, x, after=[e0])
    f = r.record()
    e1 = r.send(z, comm="up", peer=0, stream="up", mb=0, after=[f])
    r.free(x, b, z, after=[e1])
"""


def crossing_program() -> Program:
    """Return the program for pp 2 x dp 2."""
    manifest = {
        "version": 1,
        "hash": "",
        "mesh": [
            {"name": "pp", "size": 2, "role": "unrolled"},
            {"name": "dp", "size": 2, "role": "manual"},
        ],
        "microbatches": 1,
        "inputs": [{"name": "x", "shape": [ROWS, COLUMNS], "dtype": "float64", "dim": 0}],
        "data_axes": ["dp"],
        "states": [],
        "buckets": [],
        "comms": [
            {"name": "up", "axes": [], "coordinates": [1, 0]},
            {"name": "down", "axes": [], "coordinates": [0, 1]},
        ],
        "programs": ["program_pp0.py", "program_pp1.py"],
        "entry_points": ["train"],
        "losses": [],
        "optimizer": None,
        "clip": None,
    }
    texts = {
        "kernels.py": "",
        "program_pp0.py": FIRST,
        "program_pp1.py": SECOND,
        "manifest.json": json.dumps(manifest),
    }
    return Program(sealed(texts))


def make_rows() -> Tensor:
    """Return the input of both shards."""
    return torch.arange(2 * ROWS * COLUMNS, dtype=torch.float64).view(2 * ROWS, COLUMNS)


def expected_output() -> float:
    """Return what the first rank reports."""
    return float((3 * make_rows()[:ROWS]).square().sum())
