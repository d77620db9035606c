"""The model of the GPU tests, plain and compiled, and its programs for a machine without compiler.

python test/gpu/gpu_programs.py DIR         # where Piper is built: write what the tests run
PIPER_GPU_PROGRAMS=DIR make test-gpu        # where only piper_runtime is
"""

from __future__ import annotations

import copy
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
import torch.nn.functional as F  # noqa: N812
from piper_runtime import Program
from torch import Tensor, nn

FOLDER = "PIPER_GPU_PROGRAMS"
Batch = dict[str, Tensor]


@dataclass(frozen=True)
class Sizes:
    """What is trained; ``rows`` are those of a microbatch, ``remat`` a policy of ``piper.remat``."""

    layers: int
    width: int
    length: int
    rows: int
    microbatches: int
    vocabulary: int = 256
    remat: Literal["min_cut", "save"] = "min_cut"

    @property
    def name(self) -> str:
        numbers = (self.layers, self.width, self.length, self.rows, self.microbatches)
        return f"{'x'.join(map(str, numbers))}-{self.remat}"


SIZES = {"cpu": Sizes(2, 16, 8, 2, 2, vocabulary=32), "cuda": Sizes(4, 512, 256, 8, 4)}
TIMED = {  # keeps what autograd keeps
    "cpu": Sizes(2, 16, 8, 2, 2, vocabulary=32, remat="save"),
    "cuda": Sizes(8, 1024, 512, 8, 4, remat="save"),
}


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(F.gelu(self.up(self.norm(x))))  # type: ignore[no-any-return]


class Model(nn.Module):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.embed = nn.Embedding(sizes.vocabulary, sizes.width)
        self.layers = nn.ModuleList(Block(sizes.width) for _ in range(sizes.layers))
        self.head = nn.Linear(sizes.width, sizes.vocabulary)

    def forward(self, ids: Tensor) -> Tensor:
        x: Tensor = self.embed(ids)
        for layer in self.layers:
            x = layer(x)
        logits: Tensor = self.head(x)
        return logits


def make_model(sizes: Sizes) -> Model:
    torch.manual_seed(0)
    return Model(sizes)


def make_batch(sizes: Sizes, seed: int) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    shape = (2, sizes.rows * sizes.microbatches, sizes.length)
    ids, labels = torch.randint(sizes.vocabulary, shape, generator=generator)
    return {"ids": ids, "labels": labels}


def token_loss(model: nn.Module, batch: Batch) -> Tensor:
    return F.cross_entropy(model(batch["ids"]).flatten(0, 1), batch["labels"].flatten())


def adamw(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=1e-3)


def plain_steps(
    sizes: Sizes, device: torch.device, steps: int
) -> tuple[list[float], dict[str, Tensor]]:
    """The losses of plain PyTorch on a device, and the gradients of its last step."""
    model = copy.deepcopy(make_model(sizes)).to(device)
    optimizer, losses = adamw(list(model.parameters())), []
    for step in range(steps):
        optimizer.zero_grad(set_to_none=True)
        batch = {name: value.to(device) for name, value in make_batch(sizes, step).items()}
        loss = token_loss(model, batch)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(float(loss.detach()))
    found = {name: p.grad.cpu() for name, p in model.named_parameters() if p.grad is not None}
    return losses, found


def plain_stepper(sizes: Sizes, device: torch.device, *, compiled: bool) -> Callable[[], float]:
    """A step of plain PyTorch: gradients accumulate over the microbatches of a batch on the device.

    The function takes the step and returns its loss, when the device is done.
    """
    model = make_model(sizes).to(device)
    optimizer = adamw(list(model.parameters()))
    batch = {name: value.to(device) for name, value in make_batch(sizes, 0).items()}
    cut = {name: value.chunk(sizes.microbatches) for name, value in batch.items()}
    loss_of = torch.compile(token_loss) if compiled else token_loss

    def step() -> float:
        optimizer.zero_grad(set_to_none=True)
        total = torch.zeros((), device=device)
        for ids, labels in zip(cut["ids"], cut["labels"], strict=True):
            loss = loss_of(model, {"ids": ids, "labels": labels}) / sizes.microbatches
            loss.backward()  # type: ignore[no-untyped-call]
            total += loss.detach()
        optimizer.step()
        return float(total)

    return step


def program(sizes: Sizes) -> Program:
    """The program of one rank: out of the folder that the environment names, or compiled here."""
    if folder := os.environ.get(FOLDER):
        return Program.open(Path(folder) / sizes.name)
    import piper

    strategy = piper.Strategy(
        mesh={},
        directives=[
            piper.annotate({"embed": "first", "layers.*": "layer", "head": "last"}),
            piper.split(microbatches=sizes.microbatches),
            piper.remat(policy=sizes.remat),
            piper.update(adamw),
        ],
    )
    return piper.compile(make_model(sizes), token_loss, strategy, make_batch(sizes, 0))


if __name__ == "__main__":
    for one in (*SIZES.values(), *TIMED.values()):
        program(one).save(Path(sys.argv[1]) / one.name)
