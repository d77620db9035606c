"""Loss scales: how they change, what they refuse, and how they are undone."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from piper_runtime import LossScale
from piper_runtime.compute import Update, nonfinite
from piper_runtime.manifest import BucketSpec, StateSpec
from piper_runtime.states.loss_scale import LossScaler, unscaled
from piper_runtime.states.optimizer import clip_factor
from piper_runtime.states.state import Bucket


@given(
    st.lists(st.booleans(), max_size=12),
    st.integers(1, 3),
    st.sampled_from([1.0, 2.0**16, 2.0**126]),
)
def test_it_changes_as_that_of_torch(skips: list[bool], interval: int, initial: float) -> None:
    """Also where it would leave float32."""
    scaler = LossScaler(LossScale(initial, 2.0, 0.5, interval))
    theirs = torch.amp.GradScaler("cpu", init_scale=initial, growth_interval=interval)
    parameter = torch.zeros(1, requires_grad=True)
    optimizer = torch.optim.SGD([parameter])
    for skipped in skips:
        theirs.scale(parameter.sum())  # makes its tensors
        parameter.grad = torch.full((1,), torch.inf if skipped else 0.0)
        theirs.step(optimizer)
        theirs.update()
        scaler.update(skipped=skipped)
        assert scaler.value == theirs.get_scale()


def test_one_that_stays_does() -> None:
    scaler = LossScaler(12.0)
    for skipped in (True, False, True):
        scaler.update(skipped=skipped)
    assert scaler.value == 12.0
    assert LossScaler(None).value == 1.0


def test_it_never_reaches_zero() -> None:
    scaler = LossScaler(LossScale(1.0, 2.0, 1e-30))
    for _ in range(3):
        scaler.update(skipped=True)
    assert scaler.value == torch.finfo(torch.float32).tiny


def test_it_goes_on_from_its_state() -> None:
    rule = LossScale(4.0, interval=2)
    first, second = LossScaler(rule), LossScaler(rule)
    first.update(skipped=True)
    first.update(skipped=False)
    second.load_state_dict(first.state_dict())
    for scaler in (first, second):
        scaler.update(skipped=False)
        assert scaler.value == 4.0


REFUSED: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "zero": (lambda: LossScale(0.0), ValueError, "LossScale initial must be positive and finite"),
    "type": (lambda: LossScale("8"), TypeError, "initial must be a number, got '8'"),  # type: ignore[arg-type]
    "growth": (lambda: LossScale(growth=1.0), ValueError, "growth must be above 1, got 1.0"),
    "backoff": (lambda: LossScale(backoff=1.0), ValueError, "backoff must be below 1, got 1.0"),
    "interval": (lambda: LossScale(interval=0), ValueError, "interval must be at least 1, got 0"),
    "steps": (lambda: LossScale(interval=1.5), TypeError, "interval must be an int, got 1.5"),  # type: ignore[arg-type]
    "keys": (
        lambda: LossScaler(8.0).load_state_dict({"scale": 8.0}),
        ValueError,
        "loss scale expected keys scale and in_a_row, got ['scale']",
    ),
    "scale": (
        lambda: LossScaler(8.0).load_state_dict({"scale": -8.0, "in_a_row": 0}),
        ValueError,
        "loss scale must be positive and finite, got -8.0",
    ),
    "in a row": (
        lambda: LossScaler(8.0).load_state_dict({"scale": 8.0, "in_a_row": -1}),
        ValueError,
        "loss scale expected steps in a row, got -1",
    ),
}


@pytest.mark.parametrize(("make", "kind", "message"), REFUSED.values(), ids=REFUSED)
def test_refuses(make: Callable[[], Any], kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=re.escape(message)):
        make()


@pytest.mark.parametrize("value", [torch.inf, -torch.inf, torch.nan])
def test_what_is_not_finite(value: float) -> None:
    assert bool(nonfinite(torch.tensor(value)))
    assert not bool(nonfinite(torch.tensor(1e30)))


def test_gradients_are_unscaled_in_float32() -> None:
    tiny = 2.0**-20
    found = unscaled({"w": torch.full((2,), tiny * 1024, dtype=torch.float16)}, 2.0**24)
    assert found["w"].dtype == torch.float32
    assert bool((found["w"] == tiny * 1024 / 2**24).all())


def make_bucket(grad_dtype: str) -> Bucket:
    """A bucket of two float32 values, with SGD of rate 1."""
    spec = BucketSpec("w$b", ("w",), (0,), "float32", 2, grad_dtype)
    member = StateSpec("w", "parameter", (2,), "float32", True, ())
    bucket = Bucket(spec, (member,), torch.zeros(2))
    bucket.make_optimizer(lambda parameters: torch.optim.SGD(parameters, lr=1.0))
    return bucket


def test_an_update_unscales_a_narrow_gradient_in_the_dtype_of_the_value() -> None:
    scale = 2.0**30
    value = Update(make_bucket("float16"), None, scale=scale)(torch.ones(2, dtype=torch.float16))
    assert value.tolist() == [-1 / scale, -1 / scale]


def test_an_update_clips_the_unscaled_norm() -> None:
    gradient = torch.tensor([3.0, 4.0])
    plain = Update(make_bucket("float32"), 1.0)(gradient, torch.tensor(25.0))
    scaled = Update(make_bucket("float32"), 1.0, scale=8.0)(8 * gradient, torch.tensor(64 * 25.0))
    assert torch.equal(plain, scaled)
    assert torch.equal(plain, -gradient * clip_factor(torch.tensor(25.0), 1.0))


def test_a_skipped_update_keeps_the_gradient_only() -> None:
    bucket = make_bucket("float32")
    update, gradient = Update(bucket, None, may_skip=True), torch.tensor([1.0, torch.nan])
    value = update(gradient, torch.tensor(True))
    assert value.tolist() == [0.0, 0.0]
    assert bucket.own_grad[0] == 1.0
    assert bucket.own_grad[1].isnan()
    assert update(torch.ones(2), torch.tensor(False)).tolist() == [-1.0, -1.0]
