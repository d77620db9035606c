"""Check mode with scaled losses, and with values and gradients wider than chunks compute in."""

from __future__ import annotations

import copy
from dataclasses import replace
from functools import cache
from typing import Any

import piper
import pytest
import small_gpt
import torch
from oracle import adamw, sgd
from piper.strategy.update import Update
from piper_runtime import LocalTransport, Program
from piper_runtime.checking.gaps import Summary
from planted import planted, said_of
from sharded import Sharded
from small_gpt import TAGS, Batch, token_loss
from strategies import Captures
from torch import nn

CLIP = 0.5
CASE = Sharded("1F1B", 2, 1, 2)
STAGE_1 = "program_pp1.py"
F32, F64, BF16, F16 = torch.float32, torch.float64, torch.bfloat16, torch.float16


@cache
def model_in(dtype: torch.dtype) -> Captures:
    """The small GPT, tied, in a dtype."""
    return Captures(copy.deepcopy(small_gpt.captures(tied=True).model).to(dtype), token_loss)


@cache
def compiled(
    case: Sharded,
    dtype: torch.dtype,
    *,
    factory: Any = sgd,
    reduce_dtype: torch.dtype | None = None,
    **options: Any,
) -> tuple[Program, Batch, nn.Module]:
    """A program with options of its update, and what it is checked with."""
    captures = model_in(dtype)
    plain = case.strategy(TAGS, factory, clip=CLIP, stages=case.stages, reduce_dtype=reduce_dtype)
    directives = [
        replace(one, **options) if isinstance(one, Update) else one for one in plain.directives
    ]
    (batch,) = small_gpt.batches(case, steps=1)
    strategy = piper.Strategy(mesh=case.mesh, directives=directives)
    return captures.compile(strategy, batch), batch, captures.model


def check(*arguments: Any, **options: Any) -> Summary:
    """Two steps, of which the second starts from what the first has updated."""
    program, batch, model = compiled(*arguments, **options)
    return piper.check(program, token_loss, batch, model=model, steps=2)


def said(changes: list[tuple[str, str]], *arguments: Any, **options: Any) -> str:
    program, batch, model = compiled(*arguments, **options)
    return said_of(planted(program, STAGE_1, *changes), token_loss, batch, model)


# Loss scales.


def test_scaled_losses_and_gradients_are_those_of_the_single_process() -> None:
    plain, scaled = check(CASE, F64), check(CASE, F64, loss_scale=8.0)
    assert scaled.compared == plain.compared
    assert scaled.unknown == 0
    assert scaled.gap < 1e-13


def test_a_scale_that_changes_is_followed() -> None:
    """The first step overflows and is skipped: plain PyTorch is compared without the scale."""
    rule = piper.LossScale(initial=2.0**24, backoff=2.0**-12, interval=1)
    program, batch, model = compiled(CASE, F16, loss_scale=rule, reduce_dtype=F32)
    reference = piper.Reference(program, token_loss, batch, model=model)
    trainer = piper.Trainer(program, model=model, check=reference, transport=LocalTransport())
    results = [trainer.step(batch) for _ in range(3)]
    assert [result.skipped for result in results] == [True, False, False]
    assert [result.loss_scale for result in results] == [2.0**24, 2.0**12, 2.0**13]
    assert trainer.checked is not None
    assert trainer.checked.unknown == 0
    trainer.close()


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        pytest.param(
            r"(= r\.tangent\('loss', .*), scaled=True",
            r"\1",
            "`d_loss = r.tangent('loss', ",
            id="a tangent that is not scaled",
        ),
        pytest.param(
            r"(r\.output\('loss', .*), scaled=True",
            r"\1",
            "CheckError: output 'loss' differs from the single process by 7.0e+00",
            id="an output with the scale",
        ),
        pytest.param(
            r"(r\.update\('layers\.3\.norm1\.weight\$b', .*), scaled=True",
            r"\1",
            "layers.3.norm1.weight$b: CheckError: result 0 differs from the single process",
            id="an update with the scale",
        ),
    ],
)
def test_a_scale_that_is_forgotten(old: str, new: str, message: str) -> None:
    report = said([(old, new)], CASE, F64, loss_scale=8.0, clip=None)
    assert message in report
    assert "differs from the single process" in report


# Wider values.


@pytest.mark.parametrize(
    ("zero", "reduce", "dtype", "wide", "reduce_dtype"),
    [
        (1, None, BF16, F32, F32),
        *[
            pytest.param(*case, marks=pytest.mark.slow)
            for case in [
                (0, None, BF16, F32, F32),
                (2, None, BF16, F32, None),
                (3, "each", BF16, F32, F32),
                (3, "each", F32, F64, F64),
                (1, None, F16, F32, None),
            ]
        ],
    ],
)
def test_values_wider_than_chunks_compute_in(
    zero: int,
    reduce: Any,
    dtype: torch.dtype,
    wide: torch.dtype,
    reduce_dtype: torch.dtype | None,
) -> None:
    """They go on from one step to the next as the ranks keep them, not as the model has them."""
    case = replace(CASE, dp=2, zero=zero, reduce=reduce)
    options: dict[str, Any] = {"factory": adamw, "reduce_dtype": reduce_dtype, "master_dtype": wide}
    program, *_ = compiled(case, dtype, **options)
    assert {spec.dtype for spec in program.manifest.buckets} == {str(wide).removeprefix("torch.")}
    summary = check(case, dtype, **options)
    assert summary.compared > 500
    assert summary.unknown == 0
    assert summary.gap < (2e-2 if dtype.itemsize == 2 else 1e-4)


def test_scaled_gradients_reach_wider_values() -> None:
    options: dict[str, Any] = {"master_dtype": F32, "reduce_dtype": F32, "loss_scale": 2.0**10}
    summary = check(CASE, F16, **options)
    assert summary.unknown == 0


def test_a_wide_value_that_is_updated_by_what_was_not_clipped() -> None:
    old = r"(r\.update\('layers\.3\.norm1\.weight\$b', .*), norm=\w+, clip=0\.5"
    report = said([(old, r"\1")], CASE, BF16, master_dtype=F32, reduce_dtype=F32)
    assert "layers.3.norm1.weight$b: CheckError: result 0 differs from the single" in report
    assert "bound 1e-04" in report


def test_a_value_that_went_through_a_narrow_dtype_may_be_as_far_off() -> None:
    """Terms of a gradient are off by a bit or two of 16, and so is their sum, which is wider."""
    options: dict[str, Any] = {"master_dtype": F32, "reduce_dtype": F32}
    program, batch, model = compiled(CASE, BF16, **options)
    text = program.texts[STAGE_1]
    kernel = text[text.index("def layer_3_B(") :].split(" = k.")[1].split("(")[0]
    last = rf"(def {kernel}\((?:.*\n)*?    return (?:\w+, )*)(\w+)\n"
    wrong = planted(program, "kernels.py", (last, r"\1(\2 * 1.008)\n"))
    reference = piper.Reference(wrong, token_loss, batch, model=model)
    trainer = piper.Trainer(wrong, model=model, check=reference, transport=LocalTransport())
    trainer.step(batch)
    assert trainer.checked is not None
    assert 1e-3 < trainer.checked.gap < 2e-2
    trainer.close()
