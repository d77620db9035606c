"""The program that docs/observability.md looks at: a residual MLP on two stages times two copies.

python docs/observability.py DIR     # compile it to a folder, train two steps, compare memory
"""

from __future__ import annotations

import sys

import piper
import torch
from torch import Tensor, nn

WIDTH, MICROBATCHES, ROWS = 64, 4, 256


class Block(nn.Module):
    """``x + contract(relu(expand(x)))``."""

    def __init__(self) -> None:
        """Make both layers."""
        super().__init__()
        self.expand = nn.Linear(WIDTH, 4 * WIDTH)
        self.contract = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """Map rows of WIDTH features to as many."""
        added: Tensor = x + self.contract(self.expand(x).relu())
        return added


class Model(nn.Module):
    """Four blocks."""

    def __init__(self) -> None:
        """Make the blocks."""
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        """Map rows of WIDTH features to as many."""
        for block in self.blocks:
            x = block(x)
        return x


def loss_fn(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    """Mean square of all features."""
    loss: Tensor = model(batch["x"]).square().mean()
    return loss


def adamw(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    """AdamW."""
    return torch.optim.AdamW(parameters, lr=1e-3)


def main(folder: str) -> None:
    """Compile, train, and say what memory was measured and predicted."""
    strategy = piper.Strategy(
        mesh={"pp": 2, "dp": 2},
        directives=[
            piper.annotate({"blocks.*": "block"}),
            piper.split(microbatches=MICROBATCHES),
            piper.place(stages=2),
            piper.replicate(axis="dp"),
            piper.order("1F1B"),
            piper.update(adamw, clip=1.0),
        ],
    )
    torch.manual_seed(0)
    batch = {"x": torch.randn(2 * MICROBATCHES * ROWS, WIDTH)}
    program = piper.compile(Model(), loss_fn, strategy, batch)
    program.save(folder)
    trainer = piper.Trainer(program)
    for _ in range(2):
        result = trainer.step(batch)
    print(f"{result.memory_of}: {result.memory} bytes {result.memory_how}", end=", ")
    print(f"{result.memory_predicted} predicted")
    trainer.close()


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit((__doc__ or "").strip())
    main(sys.argv[1])
