"""Check mode where ranks do not divide what they share out: padding is no part of the model."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache

import piper
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from oracle import BOUND, adamw, randomize
from piper.reference.expectation import local_flats, whole_gradients
from piper.reference.interpret import Results
from piper_runtime import CheckError, Program
from piper_runtime.checking.places import Places
from piper_runtime.program import seal
from planted import planted, said_of
from torch import Tensor, nn

TP, WORDS, WIDTH, HIDDEN = 3, 23, 4, 10
ROWS, LENGTH = 8, 3


class Model(nn.Module):
    """Words to words, with a nonlinearity of which zero is not a zero."""

    def __init__(self, *, tied: bool) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, HIDDEN), nn.Linear(HIDDEN, WIDTH)
        self.head = nn.Linear(WIDTH, WORDS, bias=False)
        if tied:
            self.head.weight = self.embed.weight

    def forward(self, ids: Tensor) -> Tensor:
        logits: Tensor = self.head(self.down(torch.sigmoid(self.up(self.embed(ids)))))
        return logits


def token_loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    return F.cross_entropy(model(batch["ids"]).flatten(0, 1), batch["labels"].flatten())


def make_batch() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    ids, labels = torch.randint(WORDS, (2, ROWS, LENGTH), generator=generator)
    return {"ids": ids, "labels": labels}


@dataclass(frozen=True)
class Padded:
    """Which states three ranks share out, beside two copies with a stage of ZeRO."""

    zero: int = 0
    tied: bool = False

    def __str__(self) -> str:
        """As a test id."""
        return f"zero{self.zero}{'-tied' if self.tied else ''}"


@cache
def compiled(case: Padded) -> tuple[Program, nn.Module]:
    torch.manual_seed(0)
    model = Model(tied=case.tied).double()
    randomize(model)
    words = ["embed.weight", *([] if case.tied else ["head.weight"])]
    directives = [
        *[piper.shard(name, axis="tp") for name in ["up.*", *words]],
        piper.shard("down.weight", axis="tp", dim=1),
        piper.replicate(axis="dp", zero=case.zero),
        piper.update(adamw, clip=0.5),
    ]
    strategy = piper.Strategy(mesh={"dp": 2, "tp": TP}, directives=directives)
    return piper.compile(model, token_loss, strategy, make_batch()), model


@pytest.mark.parametrize("case", [Padded(), Padded(zero=2, tied=True), Padded(zero=3)], ids=str)
def test_every_value_is_compared(case: Padded) -> None:
    """Over three steps, in which nothing that optimizers keep of padding is anything but zero."""
    program, model = compiled(case)
    padded = {s.name for s in program.manifest.states if s.shard_axis and s.shape[s.shard_dim] % TP}
    assert padded >= {"embed.weight", "up.weight", "up.bias", "down.weight"}
    summary = piper.check(program, token_loss, make_batch(), model=model, bound=BOUND, steps=3)
    assert summary.compared > 1000
    assert summary.unknown == 0


def test_gradients_of_parts_are_put_together_without_padding() -> None:
    """Whatever is in it."""
    program, model = compiled(Padded())
    manifest = program.manifest
    places = Places(manifest.mesh, manifest.data_axes)
    whole = {name: torch.randn_like(value) for name, value in model.named_parameters()}
    states = {state.name: torch.zeros(state.shape) for state in manifest.states}
    flats = local_flats(states | whole, manifest, places)
    filled = local_flats({n: torch.ones_like(v) for n, v in states.items()}, manifest, places)
    results, padding = Results(), 0
    for place in range(len(places)):
        for spec in (spec for spec in manifest.buckets if spec.grad_dtype is not None):
            is_padding = filled[place][spec.name] == 0
            padding += int(is_padding.sum())
            flat = flats[place][spec.name].masked_fill(is_padding, torch.nan)
            results.gradients[spec.name, place] = flat
    assert padding > 0
    found = whole_gradients(results, manifest, places)
    assert found.keys() == whole.keys()
    assert all(torch.equal(found[name], value) for name, value in whole.items())


# What is wrong is found, also in states that have padding.


@pytest.mark.parametrize(
    ("chunk", "gradient", "result"),
    [
        ("model_0_B1", r"    g = \(y_4,\)", "result 3"),
        ("model_0_B2", r"    g = \(y_2, y_3,\)", "result 1"),
        ("model_0_B2", r"    g_2 = \(y_4,\)", "result 2"),
        ("model_0_B3", r"    g = \(y,\)", "result 0"),
    ],
    ids=["head", "up", "down", "embed"],
)
def test_a_wrong_gradient_of_a_program(chunk: str, gradient: str, result: str) -> None:
    """On the rank that has padding alone, which ranks before it have not."""
    program, model = compiled(Padded())
    first = re.findall(r"y\w*", gradient)[0]
    wrong = gradient.replace("\\", "").replace(first, f"{first} * (1 + 1e-3 * (tp_index == 2))", 1)
    change = (rf"(def {chunk}\(.*\n(?:    .*\n)*?){gradient}", rf"\1{wrong}")
    report = said_of(planted(program, "program_0.py", change), token_loss, make_batch(), model)
    assert re.match(
        rf"rank \d \(dp \d, tp 2\), .*, chunk {chunk}, microbatch 0: CheckError: ", report
    )
    assert f"CheckError: {result}, part 0 differs from the single process by 1.0e-03" in report
    assert report.splitlines()[0].endswith("; its operands are right")


def test_a_wrong_gradient_of_the_step() -> None:
    """It is that of a state, and no chunk's, since the IR has it, too."""
    program, model = compiled(Padded())
    name = "ir/cluster.mlir"
    text = program.texts[name].replace(
        "aten.sigmoid_backward.default", "aten.tanh_backward.default"
    )
    assert text != program.texts[name]
    texts = seal({**program.texts, name: text}, program.constants)
    wrong = Program(texts, constants=program.constants, optimizer=program.optimizer)
    message = (
        r"^train: the gradient of 'embed\.weight' differs from plain PyTorch by .*; the difference "
        "comes from a pass on the captured step$"
    )
    with pytest.raises(CheckError, match=message):
        piper.check(wrong, token_loss, make_batch(), model=model)
