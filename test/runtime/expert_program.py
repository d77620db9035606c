"""Hand-written programs with experts that ranks share out along ep, and ZeRO along edp.

Four experts, one for each row of a rank's four: row i goes to the rank that has expert i, and back.
An expert scales its row by a weight per column, adds a bias, and scales all by a number. ``gain`` is
replicated everywhere. The texts are what the compiler emits.

    edp 3 x ep 2, bucket of experts    ep 0: weights, biases, scales of experts 0 and 1: 14 elements
                                       ep 1: those of experts 2 and 3
    ZeRO                               each cut along edp: 5, 5 and 4 elements

With ``dim`` 1 states have experts as columns, and those of a rank are no run of elements.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from mlp_program import sealed
from piper_runtime import Program
from torch import Tensor, nn

EXPERTS, COLUMNS, NUM = 4, 3, 2

MEMBERS = {
    "experts.weight": [EXPERTS, COLUMNS],
    "experts.bias": [EXPERTS, COLUMNS],
    "experts.scale": [EXPERTS],
}
TURNED = {
    "experts.weight": [COLUMNS, EXPERTS],
    "experts.bias": [COLUMNS, EXPERTS],
    "experts.scale": [1, EXPERTS],
}
SHAPES = (MEMBERS, TURNED)  # by dim
ELEMENTS = sum(map(prod, MEMBERS.values()))

CHUNKS = """\
import torch
from piper_runtime.program import chunk
from . import kernels as k


def members(p):
    w, b, s = p[:W].view(SHAPE), p[W:2 * W].view(SHAPE), p[2 * W:2 * W + LOCAL].view(LOCAL, 1)
    return w TURN, b TURN, s


@chunk(results=2)
def experts_F(rows, p):
    x = rows.view(EP, LOCAL, 3)
    w, b, s = members(p)
    y = (x * w + b) * s
    return y.view(-1, 3), x.clone()


@chunk(results=2)
def experts_B(dy, x, p):
    w, b, s = members(p)
    dy = dy.view(EP, LOCAL, 3)
    ds = (dy * (x * w + b)).sum((0, 2))
    da = dy * s
    return (da * w).view(-1, 3), ((da * x).sum(0) TURN, da.sum(0) TURN, ds.view(SCALE))


@chunk(results=3)
def loss_F(y, target, g):
    g = g[:3]
    d = y * g - target
    return (d * d).sum(), d, y.clone()


@chunk(results=2)
def loss_B(t, d, y, g):
    e = d * (2 * t)
    return e * g[:3], ((e * y).sum(0),)
"""


@dataclass(frozen=True)
class Experts:
    """A strategy: sizes of edp and ep, ZeRO stage (0, 1 or 3), clipping; the dim of experts."""

    edp: int = 3
    ep: int = 2
    zero: int = 0
    clip: float | None = None
    dim: int = 0

    @property
    def ranks(self) -> int:
        """Ranks of the mesh, each with data of its own."""
        return self.edp * self.ep

    @property
    def local(self) -> int:
        """Experts of a rank."""
        return EXPERTS // self.ep

    @property
    def slot(self) -> str:
        """What is read for chunks."""
        return "compute" if self.zero == 1 else "value"

    def __str__(self) -> str:
        """Return ``zero1-edp3xep2``."""
        columns = "-columns" if self.dim else ""
        return f"zero{self.zero}-edp{self.edp}xep{self.ep}{columns}"


def expert_program(strategy: Experts) -> Program:
    """Return the program of a strategy."""
    shape, scale, turn = (("LOCAL, 3", "LOCAL", ""), ("3, LOCAL", "1, LOCAL", ".t()"))[strategy.dim]
    chunks = CHUNKS.replace("SHAPE", shape).replace("SCALE", scale).replace(" TURN", turn)
    chunks = chunks.replace("EP", str(strategy.ep)).replace("LOCAL", str(strategy.local))
    chunks = chunks.replace("2 * W", str(6 * strategy.local)).replace("W", str(3 * strategy.local))
    texts = {
        "kernels.py": "",
        "program_0.py": chunks + "\n\n" + "\n".join(_train(strategy)) + "\n",
        "manifest.json": json.dumps(manifest_of(strategy)),
    }
    return Program(sealed(texts))


def _train(strategy: Experts) -> Iterator[str]:
    zero = strategy.zero
    yield "def train(r):"
    for name, axes in (("experts", "edp"), ("gain", "all")):
        yield f'    p_{name} = r.read("{name}$b", slot="{strategy.slot}")'
        if zero == 3:
            yield from _collective("all_gather", f"w_{name}", f"p_{name}", axes)
        else:
            yield f"    w_{name}, e_w_{name} = p_{name}, r.record()"
    coeff = 1 / (EXPERTS * COLUMNS * NUM * strategy.ranks)
    yield f'    t = r.tangent("loss", coeff={coeff!r}, after=[e_w_experts, e_w_gain])'
    for m in range(NUM):
        onto = {name: f", onto=A_{name}_{m - 1}" if m else "" for name in ("experts", "gain")}
        yield f'    x_{m} = r.input("x", mb={m})'
        yield f'    target_{m} = r.input("target", mb={m})'
        yield from _collective("all_to_all", f"in_{m}", f"x_{m}", "exchange")
        yield f"    out_{m}, k_{m} = r.run(experts_F, in_{m}, w_experts, mb={m}, after=[e_in_{m}])"
        yield from _collective("all_to_all", f"y_{m}", f"out_{m}", "exchange")
        yield (
            f"    l_{m}, d_{m}, s_{m} = r.run(loss_F, y_{m}, target_{m}, w_gain, mb={m}, "
            f"after=[e_y_{m}])"
        )
        yield f"    dy_{m}, g_gain_{m} = r.run(loss_B, t, d_{m}, s_{m}, w_gain, mb={m})"
        yield f'    A_gain_{m} = r.accumulate("gain$b", g_gain_{m}{onto["gain"]})'
        yield from _collective("all_to_all", f"dout_{m}", f"dy_{m}", "exchange")
        yield (
            f"    dx_{m}, g_experts_{m} = r.run(experts_B, dout_{m}, k_{m}, w_experts, mb={m}, "
            f"after=[e_dout_{m}])"
        )
        yield f'    A_experts_{m} = r.accumulate("experts$b", g_experts_{m}{onto["experts"]})'
    kind = "reduce_scatter" if zero else "all_reduce"
    for name, axes in (("experts", "edp"), ("gain", "all")):
        yield from _collective(kind, f"G_{name}", f"A_{name}_{NUM - 1}", axes)
    yield "    q_experts = r.sumsq(G_experts, after=[e_G_experts])"
    yield "    q_gain = r.sumsq(G_gain, after=[e_G_gain])"
    yield from _collective("all_reduce", "N_experts", "q_experts", "all" if zero else "exchange")
    if zero:
        yield from _collective("all_reduce", "N_gain", "q_gain", "all")
    else:
        yield "    N_gain, e_N_gain = q_gain, r.record()"
    yield "    N = r.sum(N_experts, N_gain, after=[e_N_experts, e_N_gain])"
    yield '    r.output("grad_norm", N)'
    for name, axes in (("experts", "edp"), ("gain", "all")):
        clip = f", norm=N, clip={strategy.clip}" if strategy.clip else ""
        yield f'    V_{name} = r.update("{name}$b", G_{name}{clip})'
        if zero == 1:
            yield from _collective("all_gather", f"X_{name}", f"V_{name}", axes)
            yield f'    r.write("{name}$b", X_{name}, slot="compute", after=[e_X_{name}])'
    yield f"    l = r.sum({', '.join(f'l_{m}' for m in range(NUM))})"
    yield from _collective("all_reduce", "L", "l", "all")
    yield '    r.output("loss", L, scale=t, after=[e_L])'


def _collective(kind: str, result: str, operand: str, comm: str) -> Iterator[str]:
    yield f"    c_{result} = r.record()"
    where = f'comm="{comm}", stream="{comm}"'
    yield f"    {result}, e_{result} = r.{kind}({operand}, {where}, after=[c_{result}])"


def manifest_of(strategy: Experts) -> dict[str, Any]:
    """Return the manifest of a strategy, not sealed."""
    shared = {"shard_axis": "ep", "shard_dim": strategy.dim} if strategy.ep > 1 else {}
    rest = {"kind": "parameter", "trainable": True, "aliases": [], "dtype": "float64"}
    shapes = SHAPES[strategy.dim]
    states = [{"name": name, "shape": shape, **rest, **shared} for name, shape in shapes.items()]
    states.append({"name": "gain", "shape": [COLUMNS], **rest})
    slots = {
        "dtype": "float64",
        "grad_dtype": "float64",
        "holders": [0],
        "compute_dtype": "float64" if strategy.zero == 1 else None,
    }
    zero = strategy.zero > 0
    return {
        "version": 1,
        "hash": "",
        "mesh": [
            {"name": "edp", "size": strategy.edp, "role": "manual"},
            {"name": "ep", "size": strategy.ep, "role": "manual"},
        ],
        "microbatches": NUM,
        "inputs": [
            {"name": name, "shape": [EXPERTS, COLUMNS], "dtype": "float64", "dim": 0}
            for name in ("x", "target")
        ],
        "data_axes": ["edp", "ep"],
        "states": states,
        "buckets": [
            {
                "name": "experts$b",
                "members": list(MEMBERS),
                "numel": ELEMENTS // strategy.ep,
                "shard_axes": ["edp"] if zero else [],
                **slots,
                **({"varying_axes": ["ep"], "varying_dim": strategy.dim} if shared else {}),
            },
            {
                "name": "gain$b",
                "members": ["gain"],
                "numel": COLUMNS,
                "shard_axes": ["edp", "ep"] if zero else [],
                **slots,
            },
        ],
        "comms": [
            {"name": "exchange", "axes": ["ep"], "coordinates": [0]},
            {"name": "edp", "axes": ["edp"], "coordinates": [0]},
            {"name": "all", "axes": ["edp", "ep"], "coordinates": [0]},
        ],
        "programs": ["program_0.py"],
        "entry_points": ["train"],
        "losses": ["loss"],
        "optimizer": None,
        "clip": strategy.clip,
    }


class ExpertModel(nn.Module):
    """The model of the programs, in plain PyTorch."""

    def __init__(self, seed: int = 0, *, dim: int = 0) -> None:
        super().__init__()
        self.dim = dim
        generator = torch.Generator().manual_seed(seed)
        self.experts = nn.Module()
        for name, shape in SHAPES[dim].items():
            value = torch.randn(shape, generator=generator, dtype=torch.float64)
            self.experts.register_parameter(name.removeprefix("experts."), nn.Parameter(value))
        self.gain = nn.Parameter(torch.randn(COLUMNS, generator=generator, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        weight, bias, scale = (self.get_parameter(name) for name in MEMBERS)
        w, b, s = (weight.t(), bias.t(), scale[0]) if self.dim else (weight, bias, scale)
        y = (x.view(-1, EXPERTS, COLUMNS) * w + b) * s[:, None]
        return y.view(x.shape) * self.gain


def make_batch(step: int, ranks: int) -> dict[str, Tensor]:
    """Return the batch of all ranks."""
    generator = torch.Generator().manual_seed(step)
    shape = (EXPERTS * NUM * ranks, COLUMNS)
    return {
        name: torch.randn(shape, generator=generator, dtype=torch.float64)
        for name in ("x", "target")
    }
