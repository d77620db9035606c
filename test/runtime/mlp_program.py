"""A hand-written program: two layers and a tied embedding at pp 2 x dp 2, 1F1B, backward by hand.

The texts are what the compiler emits, so these tests need no compiler. Stage 0 is the embedding and
layer 0, stage 1 is layer 1 and the head, whose weight is the embedding's: both stages hold it, and
its gradient is summed over both.
"""

from __future__ import annotations

import json
from typing import Any

import torch
from piper_runtime import Program
from piper_runtime.program import seal
from torch import Tensor, nn
from torch.nn import functional

VOCABULARY, WIDTH, LENGTH, ROWS = 32, 16, 8, 4
IGNORED = -100
CLIP = 0.05

KERNELS = """\
import torch
from torch import device as _device
aten = torch.ops.aten
device = torch.device("cpu")


def embedding(ids, w):
    return aten.embedding.default(w, ids)


def embedding_backward(dy, ids):
    return aten.embedding_dense_backward.default(dy, ids, 32, -1, False)


def linear_relu(x, w, b):
    v0 = aten.view.default(x, [32, 16])
    v1 = aten.relu.default(aten.addmm.default(b, v0, aten.t.default(w)))
    v2 = aten.gt.Scalar(v1, 0)
    return aten.view.default(v1, [4, 8, 16]), v2


def linear_relu_backward(dy, x, r, w):
    v0 = aten.mul.Tensor(aten.view.default(dy, [32, 16]), r)
    v1 = aten.mm.default(v0, w)
    v2 = aten.mm.default(aten.t.default(v0), aten.view.default(x, [32, 16]))
    return aten.view.default(v1, [4, 8, 16]), v2, aten.sum.dim_IntList(v0, [0])


def head(x, labels, w):
    v0 = aten.mm.default(aten.view.default(x, [32, 16]), aten.t.default(w))
    v1 = aten._log_softmax.default(v0, 1, False)
    v2, _ = aten.nll_loss_forward.default(v1, aten.view.default(labels, [32]), None, 2, -100)
    return v2, v1


def head_backward(t, x, lp, labels, w):
    v0 = aten.view.default(labels, [32, 1])
    v1 = aten.ne.Scalar(v0, -100)
    v2 = aten.scatter_add.default(aten.exp.default(lp), 1, aten.clamp_min.default(v0, 0),
                                  torch.full([32, 1], -1.0, dtype=lp.dtype, device=device))
    v3 = aten.mul.Tensor(aten.mul.Tensor(v2, v1), t)
    v4 = aten.mm.default(v3, w)
    v5 = aten.mm.default(aten.t.default(v3), aten.view.default(x, [32, 16]))
    return aten.view.default(v4, [4, 8, 16]), v5


def count(labels):
    return aten.sum.default(aten.ne.Scalar(labels, -100))
"""

STAGE_0 = """\
from piper_runtime.program import chunk
from . import kernels as k


@chunk(results=1)
def embed_F(ids, pe):                              # chunk embed$F, mlp_program.py:1 (embed)
    return k.embedding(ids, pe.view(32, 16))


@chunk(results=1)
def embed_B(dy, ids):                              # chunk embed$B, mlp_program.py:1 (embed)
    return (k.embedding_backward(dy, ids),)


@chunk(results=2)
def layer_0_F(x, p):                               # chunk layer.0$F, mlp_program.py:2 (layers.0)
    w, b = p[0:256].view(16, 16), p[256:272].view(16)
    y, r = k.linear_relu(x, w, b)
    return y, r


@chunk(results=2)
def layer_0_B(dy, x, r, p):                        # chunk layer.0$B, mlp_program.py:2 (layers.0)
    w, b = p[0:256].view(16, 16), p[256:272].view(16)
    dx, dw, db = k.linear_relu_backward(dy, x, r, w)
    g = (dw, db)
    return dx, g


"""

STAGE_1 = """\
from piper_runtime.program import chunk
from . import kernels as k


@chunk(results=1)
def loss_P(labels):                                # chunk loss$P, mlp_program.py:4
    return k.count(labels)


@chunk(results=2)
def layer_1_F(x, p):                               # chunk layer.1$F, mlp_program.py:3 (layers.1)
    w, b = p[0:256].view(16, 16), p[256:272].view(16)
    y, r = k.linear_relu(x, w, b)
    return y, r


@chunk(results=2)
def head_F(x, labels, pe):                         # chunk head$F, mlp_program.py:4 (head)
    l, lp = k.head(x, labels, pe.view(32, 16))
    return l, lp


@chunk(results=2)
def head_B(t, x, lp, labels, pe):                  # chunk head$B, mlp_program.py:4 (head)
    dx, dw = k.head_backward(t, x, lp, labels, pe.view(32, 16))
    g = (dw,)
    return dx, g


@chunk(results=2)
def layer_1_B(dy, x, r, p):                        # chunk layer.1$B, mlp_program.py:3 (layers.1)
    w, b = p[0:256].view(16, 16), p[256:272].view(16)
    dx, dw, db = k.linear_relu_backward(dy, x, r, w)
    g = (dw, db)
    return dx, g


"""

F_0 = """\
    ids_{m} = r.input("ids", mb={m})                                         # 0F{m}
    x0_{m} = r.run(embed_F, ids_{m}, pe, mb={m})                             # 0F{m} (embed)
    x1_{m}, r0_{m} = r.run(layer_0_F, x0_{m}, p0, mb={m})                    # 0F{m} (layers.0)
    c_{m} = r.record()
    s_{m} = r.send(x1_{m}, comm="pp$0.1", peer=1, stream="pp$0.1", mb={m}, after=[c_{m}])
"""
B_0 = """\
    d1_{m}, v_{m} = r.recv(comm="pp$1.0", peer=1, shape=(4, 8, 16), dtype="{dtype}", stream="pp$1.0", mb={m}, after=[e])
    d0_{m}, g0_{m} = r.run(layer_0_B, d1_{m}, x0_{m}, r0_{m}, p0, mb={m}, after=[v_{m}])  # 0B{m}
    A_{m} = r.accumulate("layers.0.weight$b", g0_{m}{onto_a})
    ge_{m} = r.run(embed_B, d0_{m}, ids_{m}, mb={m})                         # 0B{m} (embed)
    E_{m} = r.accumulate("embed.weight$b", ge_{m}{onto_e})
    r.free(d1_{m}, x0_{m}, r0_{m}, d0_{m}, g0_{m}, ge_{m}, ids_{m})
    r.free(x1_{m}, after=[s_{m}])
"""
RECV_1 = """\
    x1_{m}, v_{m} = r.recv(comm="pp$0.1", peer=0, shape=(4, 8, 16), dtype="{dtype}", stream="pp$0.1", mb={m}, after=[e])
"""
F_1 = """\
    x2_{m}, r1_{m} = r.run(layer_1_F, x1_{m}, p1, mb={m}, after=[v_{m}])     # 1F{m} (layers.1)
    l_{m}, lp_{m} = r.run(head_F, x2_{m}, labels_{m}, pe, mb={m})            # 1F{m} (head)
"""
B_1 = """\
    d2_{m}, ge_{m} = r.run(head_B, t, x2_{m}, lp_{m}, labels_{m}, pe, mb={m})  # 1B{m} (head)
    E_{m} = r.accumulate("embed.weight$b", ge_{m}{onto_e})
    r.free(x2_{m}, lp_{m}, labels_{m}, ge_{m})
    d1_{m}, g1_{m} = r.run(layer_1_B, d2_{m}, x1_{m}, r1_{m}, p1, mb={m})    # 1B{m} (layers.1)
    A_{m} = r.accumulate("layers.1.weight$b", g1_{m}{onto_a})
    r.free(d2_{m}, x1_{m}, r1_{m}, g1_{m})
    c_{m} = r.record()
    s_{m} = r.send(d1_{m}, comm="pp$1.0", peer=0, stream="pp$1.0", mb={m}, after=[c_{m}])
"""
UPDATE = """\
    z = r.record()
    G, f0 = r.all_reduce(A_{last}, comm="dp${stage}", stream="dp", after=[z])
    T, f1 = r.all_reduce(E_{last}, comm="dp$0.1", stream="dp", after=[z])
    q = r.sumsq({counted}, after=[f0, f1])
    y = r.record()
    S, f2 = r.all_reduce(q, comm="pp$0.1.norm", stream="pp", after=[y])
    r.update("layers.{stage}.weight$b", G, norm=S, clip={clip}, after=[f2])
    r.update("embed.weight$b", T, norm=S, clip={clip}, after=[f1])
"""


def _fill(text: str, m: int, **extra: Any) -> str:
    onto = {"onto_a": "", "onto_e": ""}
    if m:
        onto = {"onto_a": f", onto=A_{m - 1}", "onto_e": f", onto=E_{m - 1}"}
    return text.format(m=m, **onto, **extra)


def _stage_0(num: int, dtype: str, clip: float | None) -> str:
    lines = ["def train(r):\n", '    pe = r.read("embed.weight$b", slot="value")\n']
    lines += ['    p0 = r.read("layers.0.weight$b", slot="value")\n', "    e = r.record()\n"]
    lines.append(_fill(F_0, 0))
    for m in range(num):
        if m + 1 < num:
            lines.append(_fill(F_0, m + 1))
        lines.append(_fill(B_0, m, dtype=dtype))
    lines.append(UPDATE.format(last=num - 1, stage=0, counted="G, T", clip=clip))
    lines.append('    r.output("grad_norm", S, scale=None)\n')
    lines += ["\n\ndef eval(r):\n", '    pe = r.read("embed.weight$b", slot="value")\n']
    lines.append('    p0 = r.read("layers.0.weight$b", slot="value")\n')
    lines += [_fill(F_0, m) for m in range(num)]
    return STAGE_0 + "".join(lines)


def _stage_1_prologue(num: int) -> list[str]:
    lines = ['    pe = r.read("embed.weight$b", slot="value")\n']
    lines.append('    p1 = r.read("layers.1.weight$b", slot="value")\n')
    for m in range(num):
        lines.append(f'    labels_{m} = r.input("labels", mb={m})\n')
        lines.append(f"    n_{m} = r.run(loss_P, labels_{m}, mb={m})\n")
    lines.append(f"    n = r.sum({', '.join(f'n_{m}' for m in range(num))})\n")
    lines += ["    e = r.record()\n"]
    lines.append('    N, a = r.all_reduce(n, comm="dp$1", stream="dp", after=[e])\n')
    lines.append('    t = r.tangent("loss", count=N, coeff=1.0, after=[a])\n')
    return lines


def _stage_1_loss(num: int) -> list[str]:
    lines = [f"    l = r.sum({', '.join(f'l_{m}' for m in range(num))})\n", "    u = r.record()\n"]
    lines.append('    L, w = r.all_reduce(l, comm="dp$1", stream="dp", after=[u])\n')
    lines.append("    r.free(l, after=[w])\n")
    lines.append('    r.output("loss", L, scale=t, mb=None)\n')
    return lines


def _stage_1(num: int, dtype: str, clip: float | None) -> str:
    lines = ["def train(r):\n", *_stage_1_prologue(num)]
    lines.append(_fill(RECV_1, 0, dtype=dtype))
    for m in range(num):
        if m + 1 < num:  # received one ahead, or one queue for all communication would deadlock
            lines.append(_fill(RECV_1, m + 1, dtype=dtype))
        lines += [_fill(F_1, m), _fill(B_1, m)]
    lines += [f"    r.free(d1_{m}, after=[s_{m}])\n" for m in range(num)]
    lines.append(UPDATE.format(last=num - 1, stage=1, counted="G", clip=clip))
    lines += _stage_1_loss(num)
    lines += ["\n\ndef eval(r):\n", *_stage_1_prologue(num)]
    for m in range(num):
        lines += [_fill(RECV_1, m, dtype=dtype), _fill(F_1, m)]
    lines += _stage_1_loss(num)
    return STAGE_1 + "".join(lines)


def _manifest(num: int, dp: int, dtype: str, clip: float | None) -> dict[str, Any]:
    weights = {"embed.weight": [VOCABULARY, WIDTH]}
    for layer in range(2):
        weights |= {f"layers.{layer}.weight": [WIDTH, WIDTH], f"layers.{layer}.bias": [WIDTH]}
    states = [
        {"name": name, "kind": "parameter", "shape": shape, "dtype": dtype, "trainable": True,
         "aliases": ["head.weight"] if name == "embed.weight" else []}
        for name, shape in weights.items()
    ]  # fmt: skip
    layers = [
        {"name": f"layers.{i}.weight$b", "members": [f"layers.{i}.weight", f"layers.{i}.bias"],
         "holders": [i], "dtype": dtype, "numel": 272, "grad_dtype": dtype}
        for i in range(2)
    ]  # fmt: skip
    tied = {"name": "embed.weight$b", "members": ["embed.weight"], "holders": [0, 1],
            "dtype": dtype, "numel": 512, "grad_dtype": dtype}  # fmt: skip
    comms = [("pp$0.1", [], [0, 1]), ("pp$1.0", [], [0, 1]), ("dp$0", ["dp"], [0]),
             ("dp$1", ["dp"], [1]), ("dp$0.1", ["dp"], [0, 1]), ("pp$0.1.norm", [], [0, 1])]  # fmt: skip
    return {
        "version": 1,
        "hash": "",
        "mesh": [{"name": "pp", "size": 2, "role": "unrolled"},
                 {"name": "dp", "size": dp, "role": "manual"}],
        "microbatches": num,
        "inputs": [{"name": name, "shape": [ROWS, LENGTH], "dtype": "int64", "dim": 0}
                   for name in ("ids", "labels")],
        "data_axes": ["dp"],
        "states": states,
        "buckets": [tied, *layers],
        "comms": [{"name": name, "axes": axes, "coordinates": at} for name, axes, at in comms],
        "programs": ["program_pp0.py", "program_pp1.py"],
        "entry_points": ["train", "eval"],
        "losses": ["loss"],
        "optimizer": None,
        "clip": clip,
    }  # fmt: skip


def sealed(texts: dict[str, str]) -> dict[str, str]:
    """Return the texts with the hash of what they are now."""
    return seal(texts, {})


def program_texts(
    *, num: int = 4, dp: int = 2, dtype: str = "float64", clip: float | None = CLIP
) -> dict[str, str]:
    """Return the artifact for ``num`` microbatches and ``dp`` replicas."""
    return sealed(
        {
            "kernels.py": KERNELS,
            "program_pp0.py": _stage_0(num, dtype, clip),
            "program_pp1.py": _stage_1(num, dtype, clip),
            "manifest.json": json.dumps(_manifest(num, dp, dtype, clip)),
        }
    )


def edited(file: str, *pairs: tuple[str, str]) -> Program:
    """Return the program with replaced pieces of one file, each of which occurs once."""
    texts = program_texts()
    for old, new in pairs:
        assert texts[file].count(old) == 1, old
        texts[file] = texts[file].replace(old, new)
    return Program(sealed(texts))


class TiedMlp(nn.Module):
    """The model of the program, in plain PyTorch."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2))
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.head.weight = self.embed.weight
        self.double()

    def forward(self, ids: Tensor) -> Tensor:
        x: Tensor = self.embed(ids)
        for layer in self.layers:
            x = functional.relu(layer(x))
        logits: Tensor = self.head(x)
        return logits


def mean_loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    """Return the mean cross entropy over labels that count."""
    logits = model(batch["ids"]).view(-1, VOCABULARY)
    return functional.cross_entropy(logits, batch["labels"].view(-1), ignore_index=IGNORED)


def make_batch(seed: int, *, shards: int = 2, num: int = 4) -> dict[str, Tensor]:
    """Return ids and labels of the whole batch; a third of the labels, unevenly, do not count."""
    generator = torch.Generator().manual_seed(seed)
    shape = (shards * num * ROWS, LENGTH)
    ids = torch.randint(VOCABULARY, shape, generator=generator)
    labels = torch.randint(VOCABULARY, shape, generator=generator)
    ignored = torch.rand(shape, generator=generator) < torch.linspace(0, 0.7, shape[0])[:, None]
    return {"ids": ids, "labels": labels.masked_fill(ignored, IGNORED)}


def make_sgd(
    parameters: list[nn.Parameter], *, foreach: bool | None = None, fused: bool | None = None
) -> torch.optim.Optimizer:
    """Return SGD with momentum."""
    return torch.optim.SGD(parameters, lr=0.5, momentum=0.9, foreach=foreach, fused=fused)


def make_adamw(
    parameters: list[nn.Parameter], *, foreach: bool | None = None, fused: bool | None = None
) -> torch.optim.Optimizer:
    """Return AdamW."""
    return torch.optim.AdamW(parameters, lr=0.01, weight_decay=0.1, foreach=foreach, fused=fused)
