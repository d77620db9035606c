"""Buckets and first values, apart from any program."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from mlp_program import TiedMlp, make_batch, program_texts, sealed
from piper_runtime import Program, ProgramError, Trainer
from piper_runtime.manifest import BucketSpec, StateSpec
from piper_runtime.program import seal
from piper_runtime.states.optimizer import clip_factor
from piper_runtime.states.state import Bucket, Weights
from torch import Tensor, nn

WEIGHT = StateSpec("w", "parameter", (2, 3), "bfloat16", True, ())
BIAS = StateSpec("b", "parameter", (2,), "bfloat16", True, ())
SPEC = BucketSpec("w$b", ("w", "b"), (0,), "bfloat16", 8, "float32")


def bucket() -> Bucket:
    return Bucket(SPEC, (WEIGHT, BIAS), torch.ones(8, dtype=torch.bfloat16))


def weights(*, model: nn.Module | None = None, **constants: Tensor) -> Weights:
    program = Program(seal(program_texts(), constants), constants=constants)
    return Weights(program, model=model, init=None, seed=0)


def test_accumulation_overwrites_then_adds_in_the_gradient_dtype() -> None:
    held = bucket()
    pack = (torch.full((2, 3), 0.5, dtype=torch.bfloat16), torch.ones(2, dtype=torch.bfloat16))
    held.accumulate((torch.full((2, 3), 9.0), torch.full((2,), 9.0)))
    first = held.accumulate(pack)
    second = held.accumulate(pack, first)
    third = held.accumulate(torch.full((8,), 2.0**-20), second)
    assert third.dtype == torch.float32
    assert torch.equal(third, torch.tensor([1.0] * 6 + [2.0] * 2) + 2.0**-20)


def test_a_pack_must_have_the_members_shapes() -> None:
    with pytest.raises(ValueError, match=r"'w\$b' expected shape \(2, 3\), got \(3, 2\)"):
        bucket().accumulate((torch.ones(3, 2), torch.ones(2)))
    with pytest.raises(ValueError, match=r"'w\$b' expected shape \(8,\), got \(7,\)"):
        bucket().accumulate(torch.ones(7))


def test_update_casts_scales_and_keeps_the_gradient() -> None:
    held = bucket()
    held.make_optimizer(lambda parameters: torch.optim.SGD(parameters, lr=1.0))
    value = held.update(torch.arange(8.0), torch.tensor(0.25))
    assert torch.equal(value, (1 - torch.arange(8.0) / 4).to(torch.bfloat16))
    assert value is held.value
    assert torch.equal(held.grad, torch.arange(8.0))
    assert torch.equal(held.views(held.value)["b"], value[6:8])


@pytest.mark.parametrize("flags", [{"foreach": True}, {"foreach": False}, {"fused": True}], ids=str)
@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.SGD], ids=["AdamW", "SGD"])
def test_optimizers_of_many_tensors_at_once_work_on_views(
    kind: type[torch.optim.Optimizer], flags: dict[str, bool]
) -> None:
    """Members that start at odd places give what tensors of their own give."""
    options: dict[str, Any] = {"lr": 0.1, "weight_decay": 0.1, **flags}
    options |= {"momentum": 0.9} if kind is torch.optim.SGD else {}
    shapes = {"a": (3,), "b": (4, 5), "c": (1, 7)}
    members = [StateSpec(n, "parameter", shape, "float64", True, ()) for n, shape in shapes.items()]
    spec = BucketSpec("a$b", tuple(shapes), (0,), "float64", 30, "float64")
    held = Bucket(spec, members, torch.linspace(-1, 1, 30, dtype=torch.float64))
    alone = [nn.Parameter(view.clone()) for view in held.views(held.value).values()]
    held.make_optimizer(lambda parameters: kind(parameters, **options))
    optimizer = kind(alone, **options)
    for step in range(3):
        gradient = torch.linspace(step, 2, 30, dtype=torch.float64).cos()
        held.update(gradient, None)
        for parameter, view in zip(alone, held.views(gradient).values(), strict=True):
            parameter.grad = view.clone()
        optimizer.step()
    flat = torch.cat([parameter.detach().reshape(-1) for parameter in alone])
    torch.testing.assert_close(held.value, flat, rtol=1e-14, atol=1e-14)


def test_an_update_needs_an_optimizer_and_a_slot_has_a_name() -> None:
    with pytest.raises(ProgramError, match="expected an optimizer, got none"):
        bucket().update(torch.ones(8), None)
    with pytest.raises(ProgramError, match="expected value or grad, got 'compute'"):
        bucket().slot("compute")


@pytest.mark.parametrize("clip", [0.1, 100.0])
def test_clip_factor_is_that_of_torch(clip: float) -> None:
    parameter = nn.Parameter(torch.zeros(5, dtype=torch.float64))
    gradient = torch.arange(5, dtype=torch.float64)
    parameter.grad = gradient.clone()
    nn.utils.clip_grad_norm_([parameter], clip)
    assert torch.equal(gradient * clip_factor(gradient.square().sum(), clip), parameter.grad)


def test_constants_come_with_the_program() -> None:
    table = StateSpec("table", "constant", (3,), "float32", False, ())
    assert torch.equal(weights(table=torch.arange(3.0)).value(table), torch.arange(3.0))
    with pytest.raises(ValueError, match=r"constant 'table' expected one of \['other'\], got none"):
        weights(other=torch.zeros(1)).value(table)


def test_buffers_come_with_the_model() -> None:
    model = TiedMlp()
    model.register_buffer("scale", torch.full((2,), 3.0), persistent=False)
    scale = StateSpec("scale", "buffer", (2,), "float32", False, ())
    assert torch.equal(weights(model=model).value(scale), torch.full((2,), 3.0))


def test_states_that_no_bucket_holds_are_kept() -> None:
    texts = program_texts()
    manifest = json.loads(texts["manifest.json"])
    unused = {"name": "unused", "kind": "buffer", "shape": [2], "dtype": "float32"}
    manifest["states"].append(unused | {"trainable": False, "aliases": ["alias"]})
    manifest["optimizer"] = "mlp_program:make_adamw"
    texts["manifest.json"] = json.dumps(manifest)
    model = TiedMlp()
    model.register_buffer("alias", torch.tensor([1.0, 2.0]))
    trainer = Trainer(Program(sealed(texts)), model=model)
    trainer.step(make_batch(0))
    state = trainer.full_state_dict()
    assert torch.equal(state["unused"], torch.tensor([1.0, 2.0]))
    assert torch.equal(state["alias"], torch.tensor([1.0, 2.0]))
