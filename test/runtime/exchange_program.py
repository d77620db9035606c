"""A hand-written program of rows that go to other ranks, change there, and come back.

    rank      counts of rows for ep 0, 1      counts      host_wait      dispatch, experts, combine
    edp e     [[2, 1], [0, 4]]          -->   from all -->  sizes   -->  rows there and back

Two microbatches, on edp 2 x ep 2. How many rows go where depends on the batch: some ranks send
none, some receive none.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

import torch
from mlp_program import sealed
from piper_runtime import Program
from torch import Tensor

EDP, EP, NUM = 2, 2, 2
NUM_RANKS = EDP * EP
ROWS, COLUMNS = 8, 3

CHUNKS = """\
import torch
from piper_runtime.program import chunk
from . import kernels as k


@chunk(results=2)
def router(x, c):
    return x[: int(c.sum())].clone(), c.clone()


@chunk(results=1)
def experts(rows, received):
    assert len(rows) == int(received.sum())
    return rows * torch.arange(1, len(rows) + 1).to(rows.dtype).view(-1, 1)


@chunk(results=1)
def weigh(x):
    return (x.double().flatten() * torch.arange(1.0, x.numel() + 1).double()).sum().view(1)


@chunk(results=1)
def join(x):
    return weigh(x).view(())
"""

MICROBATCH = """\
    x_{m} = r.input("x", mb={m})
    c_{m} = r.input("c", mb={m})
    rows_{m}, sc_{m} = r.run(router, x_{m}, c_{m}, mb={m})
    e_{m} = r.record()
    rc_{m}, a_{m} = r.all_to_all(sc_{m}, {where}, mb={m}, label="layer.0 counts", after=[e_{m}])
    hs_{m}, hr_{m} = r.host_wait(sc_{m}, rc_{m}, mb={m}, after=[a_{m}])  # model.py:7 (moe) [host_sync]
    in_{m}, b_{m} = r.all_to_all(rows_{m}, {where}, sizes=({sizes}), bound={bound}, mb={m}, label="layer.0 dispatch", after=[e_{m}])
    out_{m} = r.run(experts, in_{m}, rc_{m}, mb={m}, after=[b_{m}])
    f_{m} = r.record()
    bk_{m}, d_{m} = r.all_to_all(out_{m}, {where}, sizes=(hr_{m}, hs_{m}), mb={m}, label="layer.0 combine", after=[f_{m}])
    w_{m} = r.run(weigh, bk_{m}, mb={m}, after=[d_{m}])
    g_{m} = r.record()
    all_{m}, h_{m} = r.all_gather(w_{m}, comm="all", stream="all", mb={m}, after=[g_{m}])
    r.output("back", r.run(join, all_{m}, mb={m}, after=[h_{m}]), mb={m})
    r.free(rows_{m}, sc_{m}, rc_{m}, in_{m}, out_{m}, bk_{m}, hs_{m}, hr_{m})
"""


def exchange_text(*, sizes: str = "hs_{m}, hr_{m}", bound: int = EP * ROWS) -> str:
    """Return the program, one microbatch behind the other; ``sizes`` are those of the dispatch."""
    where = 'comm="exchange.ep$0", stream="exchange.ep$0", dim=0'
    lines = "".join(
        MICROBATCH.format(m=m, where=where, sizes=sizes.format(m=m), bound=bound)
        for m in range(NUM)
    )
    plain = '    r.output("plain", r.tangent("plain", coeff=0.5))\n'
    return f"{CHUNKS}\n\ndef train(r):\n{lines}{plain}"


def exchange_program(dtype: str = "float64", *, text: str | None = None) -> Program:
    """Return the program of inputs ``x``, of which ranks send some rows, and ``c``, how many."""
    manifest = {
        "version": 1,
        "hash": "",
        "mesh": [
            {"name": "edp", "size": EDP, "role": "manual"},
            {"name": "ep", "size": EP, "role": "manual"},
        ],
        "microbatches": NUM,
        "inputs": [
            {"name": "x", "shape": [ROWS, COLUMNS], "dtype": dtype, "dim": 0},
            {"name": "c", "shape": [EP, 2], "dtype": "int64", "dim": 0},
        ],
        "data_axes": ["edp", "ep"],
        "states": [],
        "buckets": [],
        "comms": [
            {"name": "exchange.ep$0", "axes": ["ep"], "coordinates": [0]},
            {"name": "all", "axes": ["edp", "ep"], "coordinates": [0]},
        ],
        "programs": ["program_0.py"],
        "entry_points": ["train"],
        "losses": [{"name": "plain", "dtype": "float64"}],
        "optimizer": None,
        "clip": None,
    }
    texts = {
        "kernels.py": "",
        "program_0.py": exchange_text() if text is None else text,
        "manifest.json": json.dumps(manifest),
    }
    return Program(sealed(texts))


COUNTS = [
    # Of rank 0, of both microbatches; then those of ranks 1, 2 and 3.
    [[2, 1], [0, 4]], [[0, 0], [3, 5]],
    [[1, 1], [1, 1]], [[0, 0], [0, 0]],  # sends nothing
    [[4, 3], [0, 0]], [[0, 0], [0, 0]],
    [[0, 2], [0, 0]], [[0, 0], [0, 0]],  # nobody sends to the other rank, then nobody sends
]  # fmt: skip
"""Rows for the experts of each rank along ep, by rank and microbatch."""


def make_input(dtype: torch.dtype = torch.float64) -> dict[str, Tensor]:
    """Return the batch of all ranks, small integers that every dtype has."""
    values = torch.arange(NUM_RANKS * NUM * ROWS * COLUMNS) * 7 % 11 - 3
    x = values.view(NUM_RANKS * NUM * ROWS, COLUMNS).to(dtype)
    return {"x": x, "c": torch.tensor(COUNTS).view(-1, 2)}


def shard(batch: dict[str, Tensor], rank: int) -> dict[str, Tensor]:
    """Return what a rank feeds."""
    return {name: value.chunk(NUM_RANKS)[rank] for name, value in batch.items()}


def sent(rank: int, microbatch: int) -> list[int]:
    """Return how many rows a rank sends to each rank along ep."""
    return [sum(row) for row in COUNTS[rank * NUM + microbatch]]


def expected_output(batch: dict[str, Tensor]) -> float:
    """Return what all ranks make, weighed."""
    total = 0.0
    for microbatch in range(NUM):
        back = [_weigh(rows) for rows in _back(batch["x"], microbatch)]
        total += _weigh(torch.tensor(back))
    return total


def _back(x: Tensor, microbatch: int) -> Iterator[Tensor]:
    """Yield what comes back to each rank."""
    for first in range(0, NUM_RANKS, EP):
        members = range(first, first + EP)
        given = {rank: _rows(x, rank, microbatch) for rank in members}
        made = []
        for index in range(EP):
            rows = torch.cat([given[rank][index] for rank in members])
            rows = rows * torch.arange(1, len(rows) + 1).to(rows.dtype).view(-1, 1)
            sizes = [sent(rank, microbatch)[index] for rank in members]
            made.append(rows.split_with_sizes(sizes))
        for place in range(EP):
            yield torch.cat([made[index][place] for index in range(EP)])


def _rows(x: Tensor, rank: int, microbatch: int) -> Sequence[Tensor]:
    own = x.chunk(NUM_RANKS)[rank].chunk(NUM)[microbatch]
    sizes = sent(rank, microbatch)
    return own[: sum(sizes)].split_with_sizes(sizes)


def _weigh(x: Tensor) -> float:
    return float((x.double().flatten() * torch.arange(1.0, x.numel() + 1).double()).sum())
