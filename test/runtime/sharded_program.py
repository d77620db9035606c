"""Hand-written programs of one small model under every ZeRO stage, on one pipeline coordinate.

The texts are what the compiler emits, so these tests need no compiler. Four layers have a bucket
each, of odd sizes: 29, 24, 3 and 1 elements, among them a member without dims.
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

ROWS, NUM = 2, 2
"""Rows of a microbatch, microbatches."""

BUCKETS: dict[str, dict[str, list[int]]] = {
    "fc$b": {"fc.weight": [7, 3], "fc.bias": [7], "fc.scale": []},
    "out$b": {"out.weight": [3, 7], "out.bias": [3]},
    "gain$b": {"gain": [3]},
    "shift$b": {"shift": []},
}
SIZES = {name: sum(map(prod, members.values())) for name, members in BUCKETS.items()}

CHUNKS = """\
import torch
from piper_runtime.program import chunk, flatten
from . import kernels as k


def pack(*parts, numel):
    return PACK


@chunk(results=2)
def fc_F(x, p):
    w, b, s = p[:21].view(7, 3), p[21:28], p[28:29].view(())
    h = torch.tanh(x @ w.t() + b)
    return h * s, h


@chunk(results=1)
def fc_B(dy, x, h, p):
    da = dy * p[28:29].view(()) * (1 - h * h)
    return pack(da.t() @ x, da.sum(0), (dy * h).sum(), numel=PADDED_fc)


@chunk(results=1)
def out_F(x, p):
    return x @ p[:21].view(3, 7).t() + p[21:24]


@chunk(results=2)
def out_B(dy, x, p):
    return dy @ p[:21].view(3, 7), pack(dy.t() @ x, dy.sum(0), numel=PADDED_out)


@chunk(results=1)
def gain_F(x, p):
    return x * p[:3]


@chunk(results=2)
def gain_B(dy, x, p):
    return dy * p[:3], pack((dy * x).sum(0), numel=PADDED_gain)


@chunk(results=1)
def shift_F(x, p):
    return x + p[:1].view(())


@chunk(results=1)
def shift_B(dy):
    return pack(dy.sum(), numel=PADDED_shift)


@chunk(results=2)
def loss_F(y, target):
    d = y - target
    return (d * d).sum(), d


@chunk(results=1)
def loss_B(t, d):
    return d * (2 * t)
"""

FORWARD = (("fc", "y_{m}, h_{m}", "x_{m}"), ("out", "o_{m}", "y_{m}"), ("gain", "u_{m}", "o_{m}"),
           ("shift", "v_{m}", "u_{m}"))  # fmt: skip
BACKWARD = (("shift", "g_shift_{m}", "dv_{m}"), ("gain", "do_{m}, g_gain_{m}", "dv_{m}, o_{m}"),
            ("out", "dy_{m}, g_out_{m}", "do_{m}, y_{m}"),
            ("fc", "g_fc_{m}", "dy_{m}, x_{m}, h_{m}"))  # fmt: skip


@dataclass(frozen=True)
class Sharding:
    """A strategy: ZeRO stage, when gradients are reduced, the mesh, axes of the shards."""

    zero: int
    reduce: str = "last"
    mesh: tuple[tuple[str, int], ...] = (("dp", 2),)
    axes: tuple[str, ...] = ("dp",)
    dtype: str = "float64"
    compute: str | None = None
    """The dtype in which chunks compute, if it is not that of the value."""
    clip: float | None = None

    @property
    def data_axes(self) -> tuple[str, ...]:
        """All axes."""
        return tuple(name for name, _ in self.mesh)

    @property
    def ranks(self) -> int:
        """Ranks of the mesh, each with data of its own."""
        return prod(size for _, size in self.mesh)

    @property
    def shards(self) -> int:
        """Parts of a bucket."""
        return prod(size for name, size in self.mesh if name in self.axes) if self.zero else 1

    @property
    def rest(self) -> tuple[str, ...]:
        """Axes over which parts are replicated."""
        return tuple(axis for axis in self.data_axes if axis not in self.axes)

    def padded(self, bucket: str) -> int:
        """Elements of a whole slot."""
        return -(-SIZES[bucket] // self.shards) * self.shards

    @property
    def flat(self) -> bool:
        """Whether a collective takes what chunks pack."""
        return self.reduce == "each"

    @property
    def slot(self) -> str:
        """What is read for chunks."""
        return "compute" if self.compute or self.zero in (1, 2) else "value"

    def __str__(self) -> str:
        """Return ``zero2-each-dp4``."""
        mesh = "x".join(f"{name}{size}" for name, size in self.mesh)
        return f"zero{self.zero}-{self.reduce}-{mesh}-over-{'.'.join(self.axes)}"


def sharded_program(sharding: Sharding) -> Program:
    """Return the program of a strategy."""
    texts = {
        "kernels.py": "",
        "program_0.py": _chunks(sharding) + "\n\n" + "\n".join(_train(sharding)) + "\n",
        "manifest.json": json.dumps(_manifest(sharding)),
    }
    return Program(sealed(texts))


def _chunks(sharding: Sharding) -> str:
    text = CHUNKS.replace("PACK", "flatten(*parts, numel=numel)" if sharding.flat else "parts", 1)
    for bucket in BUCKETS:
        name = bucket.removesuffix("$b")
        text = text.replace(f"PADDED_{name}", str(sharding.padded(bucket)))
    return text


def _train(sharding: Sharding) -> Iterator[str]:
    yield "def train(r):"
    for name in map(_short, BUCKETS):
        yield f'    p_{name} = r.read("{name}$b", slot="{sharding.slot}")'
    yield f'    t = r.tangent("loss", coeff={1 / (3 * ROWS * NUM * sharding.ranks)!r})'
    for m in range(NUM):
        yield f'    x_{m} = r.input("x", mb={m})'
        yield f'    target_{m} = r.input("target", mb={m})'
        for name, results, operands in FORWARD:
            yield from _run(sharding, f"{name}_F", results, operands, m)
        yield f"    l_{m}, d_{m} = r.run(loss_F, v_{m}, target_{m}, mb={m})"
        yield f"    dv_{m} = r.run(loss_B, t, d_{m}, mb={m})"
        for name, results, operands in BACKWARD:
            yield from _run(sharding, f"{name}_B", results, operands, m)
            yield from _contribute(sharding, name, m)
    for name in map(_short, BUCKETS):
        yield from _finish(sharding, name)
    yield from _norm(sharding)
    for name in map(_short, BUCKETS):
        yield from _update(sharding, name)
    yield f"    l = r.sum({', '.join(f'l_{m}' for m in range(NUM))})"
    yield from _collective("all_reduce", "L", "l", "all")
    yield '    r.output("loss", L, scale=t, after=[e_L])'


def _short(bucket: str) -> str:
    return bucket.removesuffix("$b")


def _run(sharding: Sharding, chunk: str, results: str, operands: str, m: int) -> Iterator[str]:
    """Yield a run of a chunk, with its bucket gathered before and freed behind under ZeRO-3."""
    name, results, operands = chunk[:-2], results.format(m=m), operands.format(m=m)
    takes_parameter = chunk != "shift_B"
    if sharding.zero == 3 and takes_parameter:
        whole = f"w_{chunk}_{m}"
        call = f"r.run({chunk}, {operands}, {whole}, mb={m}, after=[e_{whole}])"
        yield from _collective("all_gather", whole, f"p_{name}", "gather")
        yield f"    {results} = {call}"
        yield f"    r.free({whole})"
    else:
        parameter = f", p_{name}" if takes_parameter else ""
        yield f"    {results} = r.run({chunk}, {operands}{parameter}, mb={m})"


def _collective(
    kind: str, result: str, operand: str, comm: str, *, after: str = ""
) -> Iterator[str]:
    """Yield a collective of a value that compute, or else event ``after``, has made."""
    where = f'comm="{comm}", stream="{comm}"'
    if not after:
        yield f"    c_{result} = r.record()"
    event = after or f"c_{result}"
    yield f"    {result}, e_{result} = r.{kind}({operand}, {where}, after=[{event}])"


def _contribute(sharding: Sharding, name: str, m: int) -> Iterator[str]:
    """Yield what becomes of one gradient."""
    value, after = f"g_{name}_{m}", ""
    if sharding.reduce == "each":
        if sharding.compute:
            yield f'    {value} = r.convert({value}, dtype="{sharding.dtype}")'
        yield from _reduce(sharding, value, f"h_{name}_{m}", scatter=sharding.zero >= 2)
        value, after = f"h_{name}_{m}", f", after=[e_h_{name}_{m}]"
    onto = f", onto=A_{name}_{m - 1}" if m else ""
    yield f'    A_{name}_{m} = r.accumulate("{name}$b", {value}{onto}{after})'


def _reduce(sharding: Sharding, value: str, result: str, *, scatter: bool) -> Iterator[str]:
    """Yield the sum of a gradient over all ranks, or a rank's part of it."""
    if not scatter:
        yield from _collective("all_reduce", result, value, "all")
    elif sharding.rest:
        yield from _collective("reduce_scatter", f"part_{result}", value, "gather")
        after = f"e_part_{result}"
        yield from _collective("all_reduce", result, f"part_{result}", "rest", after=after)
    else:
        yield from _collective("reduce_scatter", result, value, "gather")


def _finish(sharding: Sharding, name: str) -> Iterator[str]:
    """Yield how G, the gradient that updates the value, comes from what is accumulated."""
    value, result = f"A_{name}_{NUM - 1}", f"G_{name}"
    if sharding.reduce == "last":
        yield from _reduce(sharding, value, result, scatter=sharding.zero > 0)
        return
    if sharding.zero == 1:
        for axis in sharding.axes:
            yield f'    part_{name}_{axis} = r.slice({value}, dim=0, axis="{axis}")'
            value = f"part_{name}_{axis}"
    yield f"    {result} = {value}"
    yield f"    e_{result} = r.record()"


def _norm(sharding: Sharding) -> Iterator[str]:
    """Yield N, the sum of squares of the whole gradient."""
    names = [_short(bucket) for bucket in BUCKETS]
    events = ", ".join(f"e_G_{name}" for name in names)
    yield f"    q = r.sumsq({', '.join(f'G_{name}' for name in names)}, after=[{events}])"
    if sharding.zero:
        yield from _collective("all_reduce", "N", "q", "gather")
    else:
        yield "    N = q"
        yield "    e_N = r.record()"
    yield '    r.output("grad_norm", N, after=[e_N])'


def _update(sharding: Sharding, name: str) -> Iterator[str]:
    """Yield the update, and what makes the compute slot from it."""
    clip = f", norm=N, clip={sharding.clip}" if sharding.clip else ""
    yield f'    V_{name} = r.update("{name}$b", G_{name}{clip}, after=[e_G_{name}, e_N])'
    if sharding.slot == "value":
        return
    value, after = f"V_{name}", ""
    if sharding.compute:
        yield f'    W_{name} = r.convert({value}, dtype="{sharding.compute}")'
        value = f"W_{name}"
    if sharding.zero in (1, 2):
        yield from _collective("all_gather", f"X_{name}", value, "gather")
        value, after = f"X_{name}", f", after=[e_X_{name}]"
    yield f'    r.write("{name}$b", {value}, slot="compute"{after})'


def _manifest(sharding: Sharding) -> dict[str, Any]:
    shards = sharding.axes if sharding.zero else ()
    states = [
        {"name": name, "kind": "parameter", "shape": shape, "trainable": True, "aliases": [],
         "dtype": sharding.compute or sharding.dtype}
        for members in BUCKETS.values() for name, shape in members.items()
    ]  # fmt: skip
    has_compute = sharding.slot == "compute"
    buckets = [
        {"name": name, "members": list(members), "holders": [0], "dtype": sharding.dtype,
         "numel": SIZES[name], "grad_dtype": sharding.dtype, "shard_axes": list(shards),
         "compute_dtype": (sharding.compute or sharding.dtype) if has_compute else None,
         "compute_sharded": has_compute and sharding.zero == 3,
         "grad_sharded": sharding.zero >= 2 and sharding.reduce == "each"}
        for name, members in BUCKETS.items()
    ]  # fmt: skip
    comms = {"all": sharding.data_axes, "gather": sharding.axes, "rest": sharding.rest}
    return {
        "version": 1,
        "hash": "",
        "mesh": [{"name": name, "size": size, "role": "manual"} for name, size in sharding.mesh],
        "microbatches": NUM,
        "inputs": [{"name": name, "shape": [ROWS, 3], "dtype": sharding.compute or sharding.dtype,
                    "dim": 0} for name in ("x", "target")],
        "data_axes": list(sharding.data_axes),
        "states": states,
        "buckets": buckets,
        "comms": [{"name": name, "axes": list(axes), "coordinates": [0]}
                  for name, axes in comms.items()],
        "programs": ["program_0.py"],
        "entry_points": ["train"],
        "losses": ["loss"],
        "optimizer": None,
        "clip": sharding.clip,
    }  # fmt: skip


class Odd(nn.Module):
    """The model of the programs, in plain PyTorch."""

    def __init__(self, seed: int = 0, dtype: torch.dtype = torch.float64) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.fc = nn.Linear(3, 7)
        self.fc.scale = nn.Parameter(torch.tensor(1.5))
        self.out = nn.Linear(7, 3)
        self.gain = nn.Parameter(torch.rand(3))
        self.shift = nn.Parameter(torch.tensor(0.25))
        self.to(dtype)

    def forward(self, x: Tensor) -> Tensor:
        hidden: Tensor = torch.tanh(self.fc(x)) * self.get_parameter("fc.scale")
        found: Tensor = self.out(hidden) * self.gain + self.shift
        return found


def make_batch(seed: int, ranks: int, dtype: torch.dtype = torch.float64) -> dict[str, Tensor]:
    """Return the batch of all ranks."""
    generator = torch.Generator().manual_seed(seed)
    shape = (ROWS * NUM * ranks, 3)
    return {
        name: torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)
        for name in ("x", "target")
    }
