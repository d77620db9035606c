"""What a manifest says of the batch and of the model that no IR has."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import piper
import pytest
import torch
from piper.emit.outside import add_outside, fix_leaves
from piper.frontend.data import CaptureError
from piper_runtime import Program, Trainer
from piper_runtime.inputs.fixed import FixedLeaf
from piper_runtime.manifest import Manifest
from torch import Tensor, nn

X = torch.arange(32.0, dtype=torch.float64).view(8, 4) / 32


class Scaled(nn.Module):
    """A product, of which a buffer that is not persistent is a factor, and one that is."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("passing", torch.full((4,), 2.0), persistent=False)
        self.register_buffer("lasting", torch.full((4,), 3.0))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.linear(x) * self.passing * self.lasting
        return out


def loss(model: nn.Module, batch: dict[str, Any]) -> Tensor:
    mean: Tensor = (model(batch["x"]) * batch["options"][0]).square().mean()
    return mean


def batch(scale: Any = 1.0) -> dict[str, Any]:
    return {"x": X, "options": [scale, None, "mean"]}


def compiled(model: nn.Module) -> Program:
    strategy = piper.Strategy(mesh={"dp": 2}, directives=[piper.replicate()])
    return piper.compile(model, loss, strategy, batch())


def test_leaves_are_known_by_name() -> None:
    assert fix_leaves(batch()) == {
        "options.0": FixedLeaf("float", "1.0"),
        "options.1": FixedLeaf("NoneType", "None"),
        "options.2": FixedLeaf("str", "'mean'"),
    }


def test_a_leaf_that_cannot_be_compared_is_refused_before_anything_is_captured() -> None:
    def never(model: nn.Module, batch: Any) -> Tensor:
        raise AssertionError("captured")

    message = (
        r"leaf 'options\.0' of the batch expected a tensor, or a value that can be compiled in and "
        r"compared at each step \(None, a bool, .*\), got a Linear: give what changes as tensors, in "
        "dicts, lists or tuples, and let the loss function know the rest by itself$"
    )
    strategy = piper.Strategy(mesh={"dp": 2}, directives=[piper.replicate()])
    with pytest.raises(CaptureError, match=message):
        piper.compile(Scaled(), never, strategy, batch(nn.Linear(1, 1)))


def test_a_program_steps_with_the_values_that_it_has(tmp_path: Path) -> None:
    """The one that was compiled, and the one that was read from a folder."""
    model = Scaled().double()
    program = compiled(model)
    program.save(tmp_path / "it")
    for one in (program, Program.open(tmp_path / "it")):
        trainer = Trainer(one, model=model)
        plain = float(loss(model, batch()).detach())
        assert trainer.step(batch()).loss == pytest.approx(plain, abs=1e-12)
        with pytest.raises(
            ValueError, match=r"leaf 'options\.0' .* 1\.0 .* got 3\.0 of type float"
        ):
            trainer.step(batch(3.0))
    with pytest.raises(ValueError, match=r"leaf 'options\.0' .* 1\.0 .* got 3\.0 of type float"):
        piper.Reference(program, loss, batch(3.0))


def test_buffers_that_are_not_persistent_are_known(tmp_path: Path) -> None:
    """A trainer has them; a state dict, as that of the model, does not."""
    model = Scaled().double()
    program = compiled(model)
    found = {state.name: state.saved_names for state in program.manifest.states}
    assert found == {
        "linear.weight": ("linear.weight",),
        "linear.bias": ("linear.bias",),
        "passing": (),
        "lasting": ("lasting",),
    }
    state = Trainer(program).full_state_dict()
    assert state.keys() == model.state_dict().keys()
    model.load_state_dict(state)


def test_one_name_of_a_buffer_may_be_saved_and_another_not() -> None:
    """The first under which a state dict has it is its key."""
    model, inner, shared = nn.Module(), nn.Module(), torch.ones(2)
    model.register_buffer("first", shared, persistent=False)
    inner.register_buffer("second", shared)
    model.inner = inner
    entry = {"name": "first", "aliases": ["inner.second"], "kind": "buffer"}
    raw = json.loads(add_outside(json.dumps({"states": [entry]}), fixed={}, model=model))
    assert raw == {"states": [{**entry, "unsaved": ["first"]}], "leaves": {}}


def test_a_manifest_without_them_knows_nothing_of_leaves_and_saves_all() -> None:
    """As it was written before they were in it."""
    program = compiled(Scaled().double())
    raw = json.loads(program.texts["manifest.json"])
    del raw["leaves"]
    for state in raw["states"]:
        state.pop("unsaved", None)
    old = Manifest.parse(json.dumps(raw))
    assert old.leaves is None
    assert all(state.saved_names == state.names for state in old.states)
