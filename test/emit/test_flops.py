"""FLOPs of the manifest: those of torch's counter, and what is computed again on top."""

from __future__ import annotations

import json
from typing import Any

import piper
import pytest
import torch
from piper.emit import emit_manifest
from piper.emit.symbols import Symbols
from piper.mlir import ir
from piper_runtime import Program
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

ROWS, WIDTH, MICROBATCHES, COPIES = 8, 16, 2, 2
BATCH = {"x": torch.randn(ROWS * MICROBATCHES * COPIES, WIDTH)}


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x).relu()
        return x


def loss_fn(model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    loss: torch.Tensor = model(batch["x"]).square().sum()
    return loss


def compiled(policy: Any, order: str = "1F1B") -> Program:
    strategy = piper.Strategy(
        mesh={"pp": 2, "dp": COPIES},
        directives=[
            piper.annotate({"layers.*": "layer"}),
            piper.split(microbatches=MICROBATCHES),
            piper.place(stages=2),
            piper.replicate(axis="dp"),
            piper.order(order),
            piper.remat(policy=policy),
            piper.update(lambda parameters: torch.optim.SGD(parameters, lr=0.1)),
        ],
    )
    return piper.compile(Mlp(), loss_fn, strategy, BATCH)


def flops_of(program: Program) -> tuple[int, int]:
    """The model's, and what all ranks execute together."""
    texts = {name: text for name, text in program.texts.items() if name.endswith(".py")}
    with ir.Context():
        symbols = Symbols(ir.Module.parse(program.texts["ir/programs.mlir"]))
        text = emit_manifest(symbols, texts, captured=program.texts["ir/step.mlir"])
    flops = json.loads(text)["flops"]["train"]
    return flops["model"], sum(flops["executed"]) * COPIES


@pytest.mark.parametrize("order", ["1F1B", "ZBH1"])
def test_what_is_kept_is_computed_once(order: str) -> None:
    model, executed = flops_of(compiled("save", order))
    with FlopCounterMode(display=False) as counter:
        loss_fn(Mlp(), BATCH).backward()  # type: ignore[no-untyped-call]
    products = counter.get_total_flops()
    assert products == 2 * WIDTH**2 * len(BATCH["x"]) * (3 * 4 - 1)
    # Beside products there are relus, a square and sums, an operation per element each.
    assert products < model < 1.2 * products
    assert executed == pytest.approx(model, rel=0.01)


def test_what_is_computed_again_counts_as_executed_only() -> None:
    kept, _ = flops_of(compiled("save"))
    model, executed = flops_of(compiled("full"))
    assert model == kept
    assert executed > 1.1 * model


def test_a_manifest_without_a_captured_step_has_no_flops() -> None:
    program = compiled("save")
    texts = {name: text for name, text in program.texts.items() if name.endswith(".py")}
    with ir.Context():
        symbols = Symbols(ir.Module.parse(program.texts["ir/programs.mlir"]))
        assert "flops" not in json.loads(emit_manifest(symbols, texts))


def test_a_compiled_program_says_how_many_flops_it_has(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PIPER_PROGRESS", "1")
    program = compiled("save")
    assert program.manifest.model_flops("train") == flops_of(program)[0]
    assert program.manifest.executed_flops("train") == flops_of(program)[1]
    said = capsys.readouterr().err.splitlines()
    names = [line.rpartition(" ")[0] for line in said]
    assert names == ["piper: capture 2 of 2", "piper: compile 4 of 4"]
