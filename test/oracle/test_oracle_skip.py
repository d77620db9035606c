"""Steps that are not finite change nothing on any rank, and scaled losses train as unscaled ones.

The oracle is plain PyTorch with `torch.amp.GradScaler`, in fp64, where a power of two is exact.
"""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import piper
import pytest
import small_gpt
import torch
import torch.nn.functional as F  # noqa: N812
from oracle import Step, adamw, check_steps, gradients_of, piper_steps, plain_steps, sgd
from oracle_processes import train_processes
from piper_runtime import LocalTransport, Program, StepResult
from piper_runtime.states.optimizer import OptimizerFactory
from sharded import Sharded
from small_gpt import TAGS
from strategies import Captures, Case
from torch import Tensor, nn

CLIP = 0.5
BAD = 1  # the step, from 0, in which one row of one rank has an infinite weight
Batch = dict[str, Tensor]

CASES = [
    Sharded(name, 2, 2, 8, zero=zero)
    for name, zero in [
        ("1F1B", 0),
        ("1F1B", 1),
        ("1F1B", 3),
        ("DualPipeV", 0),
        ("DualPipeV", 1),
        ("DualPipeV", 3),
    ]
]


def weighted_loss(model: nn.Module, batch: Batch) -> Tensor:
    """Mean of the rows' losses times their weights."""
    logits = model(batch["ids"]).flatten(0, 1)
    each = F.cross_entropy(logits, batch["labels"].flatten(), reduction="none")
    return (each * batch["weights"].flatten()).mean()


@cache
def captures() -> Captures:
    return Captures(small_gpt.captures(tied=True, layers=6).model, weighted_loss)


def batches(case: Case, *, steps: int = 4, bad: Sequence[int] = (BAD,)) -> list[Batch]:
    """Batches of which some have a row, among those of the last rank, that overflows."""
    made = []
    for step, batch in enumerate(small_gpt.batches(case, steps=steps)):
        generator = torch.Generator().manual_seed(step)
        weights = torch.rand(batch["ids"].shape, generator=generator, dtype=torch.float64)
        if step in bad:
            weights[-1] = math.inf
        labels = batch["labels"].clamp(min=0)
        made.append({"ids": batch["ids"], "labels": labels, "weights": weights})
    return made


def compiled(case: Sharded, **options: Any) -> tuple[Program, nn.Module, list[Batch]]:
    """A program that clips, with options of its update, and what it is run on."""
    strategy = case.strategy(TAGS, adamw, clip=CLIP, stages=case.stages)
    directives = [
        replace(one, **options) if isinstance(one, piper.strategy.Update) else one
        for one in strategy.directives
    ]
    strategy = piper.Strategy(mesh=case.mesh, directives=directives)
    parts = batches(case)
    return captures().compile(strategy, parts[0]), captures().model, parts


def scaled_steps(
    model: nn.Module,
    parts: Sequence[Batch],
    factory: OptimizerFactory,
    scaler: torch.amp.GradScaler,
) -> tuple[list[Step], list[float]]:
    """Train a copy of `model` in plain PyTorch as GradScaler says; also each step's scale."""
    model = copy.deepcopy(model)
    optimizer, steps, scales = factory(list(model.parameters())), [], []
    for batch in parts:
        model.zero_grad()
        loss = weighted_loss(model, batch)
        scales.append(scaler.get_scale())
        scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
        scaler.unscale_(optimizer)
        gradients = gradients_of(model)
        norm = float(nn.utils.clip_grad_norm_(model.parameters(), CLIP))
        scaler.step(optimizer)
        scaler.update()
        named = model.named_parameters(remove_duplicate=False)
        states = {name: value.detach().clone() for name, value in named}
        steps.append(Step(float(loss.detach()), norm, gradients, states))
    return steps, scales


def run(
    program: Program, model: nn.Module, parts: Sequence[Batch], factory: OptimizerFactory
) -> tuple[list[Step], list[StepResult], piper.Trainer]:
    """What each step did and reports."""
    trainer = piper.Trainer(program, transport=LocalTransport(), model=model, optimizer=factory)
    steps, results = [], []
    for batch in parts:
        result = trainer.step(batch)
        results.append(result)
        states = trainer.full_state_dict()
        steps.append(Step(result.loss, result.grad_norm, trainer.gradients(), states))
    trainer.close()
    return steps, results, trainer


def check_finite_ones(found: Sequence[Step], expected: Sequence[Step], **bound: float) -> None:
    """Compare all but loss, norm and gradients of a step that is not finite: its states."""
    kept = [
        replace(ours, loss=0.0, grad_norm=None, gradients={}) if _is_bad(plain) else ours
        for ours, plain in zip(found, expected, strict=True)
    ]
    wanted = [
        replace(plain, loss=0.0, grad_norm=None, gradients={}) if _is_bad(plain) else plain
        for plain in expected
    ]
    check_steps(kept, wanted, **bound)


def _is_bad(step: Step) -> bool:
    return not math.isfinite(step.grad_norm or 0.0)


def held(trainer: piper.Trainer) -> dict[tuple[int, str, str], Tensor]:
    """Copies of everything that ranks keep: slots, and the optimizers' state with its counts."""
    found: dict[tuple[int, str, str], Tensor] = {}
    for rank, home in trainer._homes.items():
        for name, bucket in home.buckets.items():
            found[rank, name, "value"] = bucket.value.clone()
            if bucket.compute is not None:
                found[rank, name, "compute"] = bucket.compute.clone()
            optimizer = bucket._optimizer
            assert optimizer is not None
            for index, state in enumerate(optimizer.state.values()):
                for key, value in state.items():
                    found[rank, name, f"{index} {key}"] = torch.as_tensor(value).clone()
    return found


@pytest.mark.parametrize("case", CASES, ids=str)
def test_all_ranks_skip_what_is_not_finite_on_one(case: Sharded) -> None:
    """Everything that ranks keep has the same bits as before; the next steps equal plain PyTorch
    that skipped the same step.
    """
    program, model, parts = compiled(case, skip_nonfinite=True)
    trainer = piper.Trainer(program, transport=LocalTransport(), model=model)
    trainer.step(parts[0])
    before = held(trainer)
    assert {key[2].split()[-1] for key in before} >= {"value", "step", "exp_avg", "exp_avg_sq"}
    result = trainer.step(parts[1])
    after = held(trainer)
    assert result.skipped
    assert before.keys() == after.keys()
    assert [key for key, value in before.items() if not torch.equal(value, after[key])] == []
    trainer.step(parts[2])
    assert any(not torch.equal(value, after[key]) for key, value in held(trainer).items())
    trainer.close()

    expected, _ = scaled_steps(model, parts, adamw, torch.amp.GradScaler("cpu", init_scale=1.0))
    found, results, _ = run(program, model, parts, adamw)
    check_finite_ones(found, expected)
    assert [one.skipped for one in results] == [False, True, False, False]
    assert [one.num_skipped for one in results] == [0, 1, 1, 1]
    assert "skipped: 1" in str(results[BAD])
    assert results[2].metrics()["skipped"] == 1
    assert all(not tensor.isfinite().all() for tensor in found[BAD].gradients.values())


def test_nothing_is_skipped_without_the_option() -> None:
    """The same batches make every weight NaN: the tests above would see a step that is not
    skipped.
    """
    program, model, parts = compiled(CASES[2])
    found, results, trainer = run(program, model, parts, adamw)
    assert all(value.isnan().any() for value in found[BAD].states.values())
    assert [one.skipped for one in results] == [False] * len(parts)
    assert [one.num_skipped for one in results] == [None] * len(parts)
    assert trainer.loss_scale is None


def test_a_norm_is_computed_without_clipping() -> None:
    """Ranks agree by the norm, so there is one, and it is reported."""
    program, model, parts = compiled(CASES[1], skip_nonfinite=True, clip=None)
    found, results, _ = run(program, model, parts, sgd)
    finite = [batch for step, batch in enumerate(parts) if step != BAD]
    expected = plain_steps(model, weighted_loss, finite, sgd)
    taken = [step for index, step in enumerate(found) if index != BAD]
    check_steps([replace(step, grad_norm=None) for step in taken], expected)
    for step, plain in zip(taken, expected, strict=True):
        parts_of_norm = [plain.gradients[name].norm() for name, _ in model.named_parameters()]
        assert step.grad_norm == pytest.approx(float(torch.stack(parts_of_norm).norm()))
    assert results[BAD].skipped


def test_only_programs_with_an_option_name_it() -> None:
    """Evaluation has nothing to scale."""
    plain, skip, scaled = (
        _programs(compiled(CASES[1], **options)[0])
        for options in ({}, {"skip_nonfinite": True}, {"loss_scale": 8.0})
    )
    assert "skip" not in plain
    assert "scaled" not in plain
    assert "r.nonfinite(" in skip
    assert "skip=skip" in skip
    assert "scaled" not in skip
    assert "skip" not in scaled
    for call in ("r.tangent('loss'", "r.output('loss'", "r.update("):
        assert re.search(rf"{re.escape(call)}.*scaled=True", scaled)
    [evaluation] = re.findall(r"def eval\(.*(?:\n .*)+r.output\('loss'.*", scaled)
    assert "scaled" not in evaluation


def _programs(program: Program) -> str:
    """The rank programs without comments."""
    texts = [text for name, text in program.texts.items() if name.startswith("program_")]
    return re.sub("#.*", "", "\n".join(texts))


@pytest.mark.parametrize("case", [CASES[0], CASES[4], CASES[2]], ids=str)
def test_a_power_of_two_changes_no_bit(case: Sharded) -> None:
    """Of loss, norm, gradients and states."""
    plain, model, _ = compiled(case)
    scaled, _, _ = compiled(case, loss_scale=1024.0)
    good = batches(case, bad=())
    expected = piper_steps(plain, model, good, adamw)
    found, results, _ = run(scaled, model, good, adamw)
    check_steps(found, expected, bound=0.0)
    assert {one.loss_scale for one in results} == {1024.0}
    assert "loss_scale: 1024 " in str(results[0])


@pytest.mark.parametrize("clip", [None, CLIP])
def test_any_scale_equals_plain_pytorch(clip: float | None) -> None:
    program, model, _ = compiled(CASES[5], loss_scale=1000.0, clip=clip)
    good = batches(CASES[5], bad=())
    expected = plain_steps(model, weighted_loss, good, sgd, clip=clip)
    check_steps(piper_steps(program, model, good, sgd), expected)


@pytest.mark.parametrize("case", [CASES[1], CASES[5]], ids=str)
def test_a_dynamic_scale_is_that_of_grad_scaler(case: Sharded) -> None:
    """It backs off where a step is skipped and grows again; evaluation is not scaled."""
    rule = piper.LossScale(initial=2.0**10, growth=4.0, backoff=0.5, interval=2)
    program, model, _ = compiled(case, loss_scale=rule)
    parts = batches(case, steps=7, bad=(1, 4))
    scaler = torch.amp.GradScaler(
        "cpu", init_scale=2.0**10, growth_factor=4.0, backoff_factor=0.5, growth_interval=2
    )
    expected, scales = scaled_steps(model, parts, adamw, scaler)
    found, results, trainer = run(program, model, parts, adamw)
    check_finite_ones(found, expected)
    assert [one.loss_scale for one in results] == scales
    assert len(set(scales)) == 3
    assert trainer.loss_scale is not None
    assert trainer.loss_scale.value == scaler.get_scale()
    wanted = weighted_loss(model, parts[0]).detach()
    fresh = piper.Trainer(program, transport=LocalTransport(), model=model)
    assert fresh.evaluate(parts[0]) == pytest.approx(float(wanted), rel=1e-12)
    fresh.close()


def test_steps_taken_one_by_one_count() -> None:
    """A stepper skips and changes the scale as a step does."""
    program, model, parts = compiled(CASES[1], loss_scale=piper.LossScale(initial=8.0))
    trainer = piper.Trainer(program, transport=LocalTransport(), model=model)
    stepper = trainer.stepper(parts[BAD])
    outputs = stepper.finish()
    assert not math.isfinite(outputs["grad_norm"])
    assert trainer.num_skipped == 1
    assert trainer.loss_scale is not None
    assert trainer.loss_scale.value == 4.0
    trainer.close()


def test_check_mode_skips_as_the_ranks_do() -> None:
    """A step that is not finite on any side: neither values nor their bound are in the way."""
    program, model, parts = compiled(CASES[1], loss_scale=piper.LossScale(initial=8.0))
    reference = piper.Reference(program, weighted_loss, parts[0], model=model)
    trainer = piper.Trainer(program, transport=LocalTransport(), model=model, check=reference)
    assert [trainer.step(batch).skipped for batch in parts[: BAD + 2]] == [False, True, False]
    assert trainer.checked is not None
    assert trainer.checked.unknown == 0
    trainer.close()


def test_check_mode_knows_whether_a_step_is_skipped() -> None:
    """It is one more value per rank that equals that of the single process."""
    torch.manual_seed(0)
    model = nn.Linear(3, 2).double()
    batch = {"x": torch.randn(4, 3, dtype=torch.float64)}
    plain, skips = (
        piper.check(
            piper.compile(model, mean, _data_parallel(skip_nonfinite=skip), batch),
            mean,
            batch,
            transport="local",
        )
        for skip in (False, True)
    )
    assert plain.unknown == skips.unknown == 0
    assert skips.compared == plain.compared + 2


def _data_parallel(**options: Any) -> piper.Strategy:
    update = piper.update(adamw, clip=CLIP, **options)
    return piper.Strategy(mesh={"dp": 2}, directives=[piper.replicate(zero=1), update])


class Product(nn.Module):
    """A weight times the input, in fp16."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(64, dtype=torch.float16))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight


def mean(model: nn.Module, batch: Batch) -> Tensor:
    """The mean of the outputs."""
    loss: Tensor = model(batch["x"]).mean()
    return loss


@pytest.mark.parametrize("scale", [None, 2.0**12])
def test_narrow_gradients_survive(scale: float | None) -> None:
    """Gradients of 2^-26 are zero in fp16; scaled they reach fp32 values exactly."""
    strategy = piper.Strategy(
        mesh={"dp": 2},
        directives=[
            piper.split(microbatches=1),
            piper.replicate(axis="dp", zero=1),
            piper.update(_plain_sgd, master_dtype=torch.float32, loss_scale=scale),
        ],
    )
    batch = {"x": torch.full((4, 64), 2.0**-20, dtype=torch.float16)}
    program = piper.compile(Product(), mean, strategy, batch)
    trainer = piper.Trainer(program, transport=LocalTransport(), model=Product())
    trainer.step(batch)
    [gradient] = trainer.gradients().values()
    exact = 2.0**-20 / 64
    assert gradient.dtype == (torch.float16 if scale is None else torch.float32)
    assert bool((gradient == (0.0 if scale is None else exact)).all())
    values = torch.cat([home.buckets["weight$b"].value for home in trainer._homes.values()])
    moved = 0.0 if scale is None else 2.0**20 * exact
    assert bool((values == 1.0 - moved).all())
    trainer.close()


def _plain_sgd(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=2.0**20)


@pytest.mark.slow
def test_processes_skip_as_one_process_does(tmp_path: Path) -> None:
    """Four processes over gloo, one of which feeds what is not finite: same states, same scale."""
    case = CASES[2]
    rule = piper.LossScale(initial=16.0, interval=2)
    program, model, parts = compiled(case, loss_scale=rule)
    expected, results, _ = run(program, model, parts, adamw)
    for seen in train_processes(program, model, parts, tmp_path):
        assert seen["skipped"] == [one.skipped for one in results]
        assert seen["scales"] == [one.loss_scale for one in results]
        for states, step in zip(seen["states"], expected, strict=True):
            for name, value in step.states.items():
                assert torch.equal(states[name], value), name
        first, second = seen["states"][:2]
        assert all(torch.equal(first[name], second[name]) for name in first)
