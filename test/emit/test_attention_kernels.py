"""Piper's attention in kernels: called by name, once per pass, with the input gradients, and right
by both backends.
"""

from __future__ import annotations

import copy
import re
from typing import Any

import piper
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from piper.ops import attention
from piper_runtime import Program, Trainer
from torch import Tensor, nn

BOUND = 1e-10
HEADS, GROUPS, SIZE, VALUE, WIDTH, VOCABULARY, T = 4, 2, 6, 4, 16, 32, 8
TAGS = {"embed": "embed", "layers.*": "layer", "head": "head"}
FORWARD, BACKWARD = "piper_attention_default", "piper_attention_backward_default"


class Layer(nn.Module):
    """Attention with grouped heads, whose values are smaller than their keys."""

    def __init__(self) -> None:
        super().__init__()
        self.q = nn.Linear(WIDTH, HEADS * SIZE)
        self.k = nn.Linear(WIDTH, GROUPS * SIZE)
        self.v = nn.Linear(WIDTH, GROUPS * VALUE)
        self.out = nn.Linear(HEADS * VALUE, WIDTH)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        heads = [layer(x).unflatten(-1, (count, -1)).transpose(1, 2) for layer, count in self.parts]
        q, k, v = heads
        mixed = attention(q, k, v, causal=True, mask=mask)
        y: Tensor = x + self.out(mixed.transpose(1, 2).flatten(2))
        return y

    @property
    def parts(self) -> tuple[tuple[nn.Linear, int], ...]:
        return (self.q, HEADS), (self.k, GROUPS), (self.v, GROUPS)


class Model(nn.Module):
    """Padding is the token 0; the mask hides it."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(2))
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, ids: Tensor) -> Tensor:
        mask = (ids != 0)[:, None, None]
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x, mask)
        y: Tensor = self.head(x)
        return y


def loss_fn(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    return F.cross_entropy(model(batch["ids"]).flatten(0, 1), batch["labels"].flatten())


def make_batch() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(1)
    ids, labels = torch.randint(0, VOCABULARY, (2, 8, T), generator=generator)
    ids[0, 5:] = 0
    ids[3, :2] = 0
    return {"ids": ids, "labels": labels}


def make_sgd(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1)


def compiled(order: str = "1F1B", *more: Any) -> tuple[Program, nn.Module]:
    torch.manual_seed(0)
    model = Model().double()
    strategy = piper.Strategy(
        mesh={"pp": 2},
        directives=[
            piper.annotate(TAGS),
            piper.split(microbatches=4),
            piper.place(stages=2, axis="pp"),
            piper.order(order),
            piper.update(make_sgd),
            *more,
        ],
    )
    return piper.compile(model, loss_fn, strategy, make_batch()), model


def calls(program: Program, chunk: str) -> set[str]:
    """The ops by name that the kernels of chunks with such a name call."""
    found = set()
    for module in program.load(torch.device("cpu")).modules:
        for function, value in vars(module).items():
            if re.fullmatch(chunk, function):
                kernels = [vars(module.k).get(name) for name in value.__code__.co_names]
                found |= {n for k in kernels if k is not None for n in k.__code__.co_names}
    return found & {FORWARD, BACKWARD}


def check(program: Program, model: nn.Module, kernels: str) -> None:
    """Compare a step with plain PyTorch."""
    plain = copy.deepcopy(model)
    loss = loss_fn(plain, make_batch())
    loss.backward()  # type: ignore[no-untyped-call]
    trainer = Trainer(program, transport="local", kernels=kernels)
    assert trainer.step(make_batch()).loss == pytest.approx(float(loss.detach()), abs=BOUND)
    found = trainer.gradients()
    for name, parameter in plain.named_parameters():
        assert parameter.grad is not None
        assert float((found[name] - parameter.grad).abs().max()) < BOUND, name


def test_kernels_call_the_op_by_name() -> None:
    program, model = compiled()
    assert f"{FORWARD} = torch.ops.piper.attention.default._op" in program.texts["kernels.py"]
    assert calls(program, r"layer_\d+_F") == {FORWARD}
    assert calls(program, r"layer_\d+_B") == {BACKWARD}
    check(program, model, "eager")


def test_all_its_gradients_are_input_gradients() -> None:
    program, model = compiled("ZBH1")
    assert calls(program, r"layer_\d+_I") == {BACKWARD}
    assert calls(program, r"layer_\d+_W") == set()
    check(program, model, "eager")


def test_it_is_computed_again_only_if_asked() -> None:
    program, model = compiled("1F1B", piper.remat("layer", policy="full"))
    assert calls(program, r"layer_\d+_B") == {FORWARD, BACKWARD}
    check(program, model, "eager")


@pytest.mark.slow
def test_inductor_calls_it_too(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setenv("PIPER_CACHE", str(tmp_path))
    check(*compiled(), "inductor")
