"""Sequences shared out by ranks train in bf16 as near to fp64 as plain PyTorch in bf16."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import replace

import hf_models
import piper
import pytest
import torch
from oracle import LossFunction, piper_steps, plain_steps, randomize, sgd
from rounding import check_as_near
from sequence_models import (
    CLIP,
    LENGTH,
    WIDTH,
    Config,
    Sequences,
    batches,
    captures,
    padded,
    token_loss,
)
from small_gpt import TAGS, Batch
from strategies import Captures
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

ODD = LENGTH - 3
CASES = [
    Sequences("1F1B", 0, 0, 1, cp=2),
    Sequences("1F1B", 2, 2, 4, zero=1, cp=2),
    Sequences("1F1B", 0, 0, 1, cp=4),
]


class WideNorm(nn.Module):
    """A norm whose weight is cast to float32, as what it multiplies is."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        scaled: Tensor = wide * (wide.pow(2).mean(-1, keepdim=True) + 1e-6).rsqrt()
        return (scaled * self.weight.float()).to(x.dtype)


def plain_model(*, rms: bool = True) -> nn.Module:
    """The model of the other tests, whose capture they share."""
    return copy.deepcopy(captures(Config(rms=rms)).model)


def wide_norms() -> nn.Module:
    """The model with norms of that kind."""
    model = plain_model()
    assert isinstance(model.layers, nn.ModuleList)
    for layer in model.layers:
        layer.norm2 = WideNorm(WIDTH)
    randomize(model, seed=1)
    return model


def llama() -> nn.Module:
    """An unmodified Llama."""
    torch.manual_seed(0)
    model = hf_models.FAMILIES["llama"].make(2)
    randomize(model)
    return model


def llama_loss(model: nn.Module, batch: Batch) -> Tensor:
    """Mean cross-entropy of labels that the user shifted."""
    logits = model(
        input_ids=batch["ids"],
        position_ids=batch["positions"],
        attention_mask=torch.ones(batch["ids"].shape),
        use_cache=False,
    ).logits
    return cross_entropy(logits.flatten(0, 1), batch["labels"].flatten())


MODELS: Mapping[str, tuple[Callable[[], nn.Module], LossFunction, Mapping[str, str]]] = {
    "layer-norm": (lambda: plain_model(rms=False), token_loss, TAGS),
    "rms-norm": (plain_model, token_loss, TAGS),
    "wide-norm": (wide_norms, token_loss, TAGS),
    "llama": (llama, llama_loss, hf_models.FAMILIES["llama"].tags),
}


@pytest.mark.parametrize(
    ("name", "case", "wide"),
    [
        pytest.param(name, case, wide, id=f"{name}-{case}{'-fp32' * wide}", marks=marks)
        for name in MODELS
        for case in CASES
        for wide in (False, True)
        for quick in [(case, wide) == (CASES[0], name == "llama")]
        for marks in [[] if quick else [pytest.mark.slow]]
    ],
)
def test_bf16_is_as_near_as_plain_bf16(name: str, case: Sequences, wide: bool) -> None:
    """Three steps of SGD in bf16, of sequences of odd length that Piper gets padded.

    The gradient of a norm's weight is a sum over positions in fp32, rounded: each rank rounds that
    of its positions. Ranks sum what they rounded in bf16, or in fp32.
    """
    make, loss_fn, tags = MODELS[name]
    model = make().bfloat16()
    short = batches(case, length=ODD)
    given = [padded(batch, LENGTH) for batch in short]
    dtype = torch.float32 if wide else None
    strategy = case.strategy(
        tags, sgd, clip=CLIP, stages=case.stages, reduce_dtype=dtype, more=case.directives()
    )
    program = Captures(model, loss_fn).compile(strategy, given[0])
    found = piper_steps(program, model, given, sgd)
    assert {value.dtype for value in found[0].gradients.values()} == {dtype or torch.bfloat16}
    plain = plain_steps(model, loss_fn, short, sgd, clip=CLIP)
    exact = plain_steps(copy.deepcopy(model).double(), loss_fn, short, sgd, clip=CLIP)
    check_as_near(found, plain, exact)


def test_a_gradient_that_lacks_a_term_would_be_seen() -> None:
    """What the comparison is worth: a gradient, unless it is 0, of which a rank of two has half."""
    make, loss_fn, _ = MODELS["rms-norm"]
    model, given = make().bfloat16(), batches(CASES[0], steps=1)
    [plain] = plain_steps(model, loss_fn, given, sgd, clip=CLIP)
    [exact] = plain_steps(copy.deepcopy(model).double(), loss_fn, given, sgd, clip=CLIP)
    check_as_near([plain], [plain], [exact])
    tried = [name for name in plain.gradients if not name.endswith("k.bias")]
    assert any("norm2" in name for name in tried)
    for name in tried:
        lacking = {**plain.gradients, name: plain.gradients[name] / 2}
        with pytest.raises(AssertionError, match=f"gradients farther .*{name}"):
            check_as_near([replace(plain, gradients=lacking)], [plain], [exact])


def cut_off_loss(model: nn.Module, batch: Batch) -> Tensor:
    """Logits times a sum over positions that is cut off to an integer."""
    logits: Tensor = model(batch["ids"], batch["positions"])
    scaled = logits * logits.detach().sum(1, keepdim=True).long()
    return cross_entropy(scaled.flatten(0, 1), batch["labels"].flatten())


def test_sums_cut_off_to_integers_are_refused() -> None:
    """Of the part of a rank another number is cut off than of the whole."""
    case = CASES[0]
    (batch,) = batches(case, steps=1)
    with pytest.raises(piper.CompileError, match=r"aten._to_copy.default goes on with a sum"):
        Captures(captures(Config()).model, cut_off_loss).compile(case.plan(), batch)
