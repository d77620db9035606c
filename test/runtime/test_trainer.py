"""Training with a hand-written program equals plain PyTorch in double precision."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import partial

import pytest
import torch
from mlp_program import (
    CLIP,
    TiedMlp,
    make_adamw,
    make_batch,
    make_sgd,
    mean_loss,
    program_texts,
    sealed,
)
from op_log import OpLog
from piper_runtime import LocalTransport, Program, ProgramError, StepResult, Trainer
from torch import Tensor, nn

Factory = Callable[[list[nn.Parameter]], torch.optim.Optimizer]
TOLERANCE = 1e-10


def difference(got: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> float:
    """Return the largest difference, relative to the largest value if that is above one."""
    assert got.keys() == expected.keys()
    return max(
        float((got[name] - value).abs().max() / max(1.0, float(value.abs().max())))
        for name, value in expected.items()
    )


def named_gradients(model: nn.Module) -> dict[str, Tensor]:
    named = model.named_parameters(remove_duplicate=False)
    return {name: parameter.grad.clone() for name, parameter in named if parameter.grad is not None}


def run(transport: LocalTransport, *, steps: int = 2) -> tuple[list[float], dict[str, Tensor]]:
    trainer = Trainer(
        Program(program_texts()), model=TiedMlp(), optimizer=make_sgd, transport=transport
    )
    losses = [trainer.step(make_batch(step)).loss for step in range(steps)]
    return losses, trainer.full_state_dict()


FACTORIES: dict[str, tuple[Factory, set[str]]] = {
    "sgd": (make_sgd, set()),
    "adamw": (make_adamw, set()),
    "sgd foreach": (partial(make_sgd, foreach=True), {"_foreach_mul_"}),
    "adamw foreach": (partial(make_adamw, foreach=True), {"_foreach_mul_", "_foreach_addcdiv_"}),
    "sgd fused": (partial(make_sgd, fused=True), {"_fused_sgd_"}),
    "adamw fused": (partial(make_adamw, fused=True), {"_fused_adamw_"}),
}
"""How optimizers are made, and the ops on several tensors that they call."""
SEVERAL = {"_foreach_mul_", "_foreach_addcdiv_", "_fused_sgd_", "_fused_adamw_"}


@pytest.mark.parametrize("clip", [CLIP, None])
def test_what_outlives_a_step_can_be_changed_outside(clip: float | None) -> None:
    program = Program(program_texts(clip=clip))
    trainer = Trainer(program, model=TiedMlp(), optimizer=make_adamw)
    trainer.step(make_batch(0))
    for home in trainer._homes.values():
        for bucket in home.buckets.values():
            assert bucket.optimizer is not None
            moments = [value for kept in bucket.optimizer.state.values() for value in kept.values()]
            lasting = [bucket.value, bucket.grad, *bucket.parameters, *moments]
            assert not any(tensor.is_inference() for tensor in lasting)


@pytest.mark.parametrize("kind", FACTORIES)
@pytest.mark.parametrize("clip", [CLIP, None])
def test_three_steps_equal_pytorch(kind: str, clip: float | None) -> None:
    factory, expected = FACTORIES[kind]
    ops = OpLog()
    model = TiedMlp()
    program = Program(program_texts(clip=clip))
    trainer = Trainer(program, model=model, optimizer=factory)
    optimizer = factory(list(model.parameters()))
    for step in range(3):
        batch = make_batch(step)
        with ops:
            result = trainer.step(batch)
        optimizer.zero_grad()
        loss = mean_loss(model, batch)
        loss.backward()  # type: ignore[no-untyped-call]
        assert result.loss == pytest.approx(loss.item(), abs=TOLERANCE)
        assert difference(trainer.gradients(), named_gradients(model)) < TOLERANCE
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), clip or float("inf"))
        assert clip is None or norm > clip
        assert result.grad_norm == pytest.approx(float(norm), abs=TOLERANCE)
        optimizer.step()
        assert difference(trainer.full_state_dict(), model.state_dict()) < TOLERANCE
    assert ops.names & SEVERAL == expected


@pytest.mark.parametrize(("num", "dp"), [(1, 1), (1, 2), (3, 1), (2, 4)])
def test_other_sizes_equal_pytorch(num: int, dp: int) -> None:
    model = TiedMlp()
    program = Program(program_texts(num=num, dp=dp))
    trainer = Trainer(program, model=model, optimizer=make_sgd)
    batch = make_batch(0, shards=dp, num=num)
    loss = mean_loss(model, batch)
    loss.backward()  # type: ignore[no-untyped-call]
    assert trainer.step(batch).loss == pytest.approx(loss.item(), abs=TOLERANCE)
    assert difference(trainer.gradients(), named_gradients(model)) < TOLERANCE


def test_evaluate_equals_pytorch_and_changes_nothing() -> None:
    model = TiedMlp()
    trainer = Trainer(Program(program_texts()), model=model, optimizer=make_sgd)
    batch = make_batch(7)
    assert trainer.evaluate(batch) == pytest.approx(mean_loss(model, batch).item(), abs=TOLERANCE)
    assert difference(trainer.full_state_dict(), model.state_dict()) == 0.0


def test_a_batch_without_counted_labels_has_no_loss() -> None:
    trainer = Trainer(Program(program_texts()), model=TiedMlp(), optimizer=make_sgd)
    batch = make_batch(0)
    batch["labels"].fill_(-100)
    assert trainer.step(batch).loss == 0.0
    assert all(bool((gradient == 0).all()) for gradient in trainer.gradients().values())


def test_every_order_gives_the_same_bits() -> None:
    losses, state = run(LocalTransport())
    transports = [LocalTransport(single_queue=True)]
    transports += [LocalTransport(seed=seed) for seed in range(4)]
    transports += [LocalTransport(seed=9, single_queue=True)]
    for transport in transports:
        other_losses, other = run(transport)
        assert other_losses == losses
        assert all(torch.equal(other[name], value) for name, value in state.items())


def test_weights_are_made_by_name_and_seed() -> None:
    def init(
        name: str, shape: tuple[int, ...], dtype: torch.dtype, generator: torch.Generator
    ) -> Tensor:
        return torch.randn(shape, dtype=dtype, generator=generator)

    def state(seed: int) -> dict[str, Tensor]:
        program = Program(program_texts())
        return Trainer(program, init=init, optimizer=make_sgd, seed=seed).full_state_dict()

    first, again, other = state(0), state(0), state(1)
    assert difference(first, again) == 0.0
    assert not torch.equal(first["layers.0.weight"], other["layers.0.weight"])
    assert not torch.equal(first["layers.0.weight"], first["layers.1.weight"])
    assert torch.equal(first["embed.weight"], first["head.weight"])


def test_a_meta_model_uses_init() -> None:
    with torch.device("meta"):
        model = TiedMlp()
    program = Program(program_texts())
    with pytest.raises(ValueError, match=r"'embed.weight' expected a value, got one without data"):
        Trainer(program, model=model, optimizer=make_sgd)
    trainer = Trainer(
        program,
        model=model,
        optimizer=make_sgd,
        init=lambda name, shape, dtype, generator: torch.ones(shape, dtype=dtype),
    )
    assert bool((trainer.full_state_dict()["layers.1.bias"] == 1).all())


def test_missing_and_odd_weights_are_named() -> None:
    program = Program(program_texts())
    with pytest.raises(ValueError, match=r"parameter 'embed.weight' expected a value"):
        Trainer(program, optimizer=make_sgd)
    model = TiedMlp()
    model.layers[0] = nn.Linear(16, 8).double()
    with pytest.raises(ValueError, match=r"'layers.0.weight' expected shape \(16, 16\), got"):
        Trainer(program, model=model, optimizer=make_sgd)
    with pytest.raises(ValueError, match="expected float64, got float32"):
        Trainer(program, model=TiedMlp().float(), optimizer=make_sgd)
    model = TiedMlp()
    model.head.weight = nn.Parameter(model.head.weight + 1)
    with pytest.raises(
        ValueError, match=r"tied weight expected one value under embed.weight, head"
    ):
        Trainer(program, model=model, optimizer=make_sgd)


def test_optimizers_that_are_not_elementwise_are_refused() -> None:
    program = Program(program_texts())
    with pytest.raises(TypeError, match=r"elementwise class .*, got torch.optim.lbfgs.LBFGS"):
        Trainer(program, model=TiedMlp(), optimizer=torch.optim.LBFGS)
    with pytest.raises(ValueError, match="expected an optimizer, got none"):
        Trainer(program, model=TiedMlp())


def test_updates_of_what_is_not_trained_are_refused() -> None:
    texts = program_texts()
    manifest = json.loads(texts["manifest.json"])
    frozen = next(state for state in manifest["states"] if state["name"] == "layers.0.bias")
    frozen["trainable"] = False
    program = Program(sealed(texts | {"manifest.json": json.dumps(manifest)}))
    message = r"update expected trained parameters, got 'layers\.0\.weight\$b'"
    with pytest.raises(ProgramError, match=message):
        Trainer(program, model=TiedMlp(), optimizer=make_sgd)


def test_the_batch_signature_is_checked_at_every_step() -> None:
    trainer = Trainer(Program(program_texts()), model=TiedMlp(), optimizer=make_sgd)
    trainer.step(make_batch(0))
    with pytest.raises(ValueError, match=r"'ids' expected shape \(32, 8\) .*, got \(16, 8\)"):
        trainer.step(make_batch(0, shards=1))
    trainer.step(make_batch(1))


def test_gradients_need_a_step() -> None:
    trainer = Trainer(Program(program_texts()), model=TiedMlp(), optimizer=make_sgd)
    with pytest.raises(RuntimeError, match="gradients expected a step before"):
        trainer.gradients()


def test_progress_line() -> None:
    result = StepResult(
        step=3,
        loss=8.0412345,
        losses={"loss": 8.0412345},
        grad_norm=1.333333,
        seconds=0.5,
        memory=1_095_216_660,
        memory_of="rank 0",
        memory_how="allocated",
        tokens=54_966,
        devices=4,
    )
    expected = "step: 3 loss: 8.041234 grad_norm: 1.333 memory: 1.02GiB (rank 0) tps: 27,483"
    assert str(result) == expected


def test_the_transport_says_which(capsys: pytest.CaptureFixture[str]) -> None:
    program = Program(program_texts())
    trainer = Trainer(program, model=TiedMlp(), optimizer=make_sgd)
    expected = "transport local on cpu, mesh pp=2 x dp=2, 4 of 4 ranks here"
    assert capsys.readouterr().err == f"piper: {expected}\n"
    trainer.transport.device = torch.device("cuda", 1)
    expected = "transport local on cuda:1, mesh pp=2 x dp=2, 4 of 4 ranks here"
    assert trainer.transport.describe(program.manifest.mesh) == expected


def test_gloo_refuses_another_world_size() -> None:
    program = Program(program_texts())
    with pytest.raises(ValueError, match="world size expected 4, the ranks of mesh pp=2 x dp=2"):
        Trainer(program, model=TiedMlp(), optimizer=make_sgd, transport="gloo")
    with pytest.raises(ValueError, match="transport expected 'local', 'gloo' or 'nccl', got 'mpi'"):
        Trainer(program, model=TiedMlp(), optimizer=make_sgd, transport="mpi")
