"""Leaves of a batch that are no tensors: what is known of them, and every message of the check."""

from __future__ import annotations

import enum
import json
from typing import Any

import pytest
import torch
from mlp_program import TiedMlp, make_batch, make_sgd, program_texts
from piper_runtime import Program, Trainer
from piper_runtime.inputs.batch import InputSpec, shards
from piper_runtime.inputs.fixed import FixedLeaf, check_fixed
from piper_runtime.program import seal

X = InputSpec("x", (2,), "float32", 0)


class Color(enum.Enum):
    RED = 1
    BLUE = 2


class Bits(enum.Flag):
    LOW = 1
    HIGH = 2


VALUES = [
    (None, "None"),
    (True, "True of type bool"),
    (1, "1 of type int"),
    (1.0, "1.0 of type float"),
    (-0.0, "-0.0 of type float"),
    (float("nan"), "nan of type float"),
    (1j, "1j of type complex"),
    ("1", "'1' of type str"),
    (b"1", "b'1' of type bytes"),
    (Color.RED, "RED 1 of type Color"),
    (Color.BLUE, "BLUE 2 of type Color"),
    (torch.float32, "torch.float32 of type dtype"),
    (torch.device("meta"), "device(type='meta') of type device"),
    (torch.Size([2, 3]), "torch.Size([2, 3]) of type Size"),
]


def test_values_of_one_type_have_texts_of_their_own() -> None:
    leaves = [FixedLeaf.of(value) for value, _ in VALUES]
    assert [str(leaf) for leaf in leaves] == [text for _, text in VALUES]
    assert len(set(leaves)) == len(leaves)
    assert FixedLeaf.of(Bits.LOW | Bits.HIGH) != FixedLeaf.of(Bits.HIGH)


def test_long_text_is_known_by_a_digest() -> None:
    one, other = FixedLeaf.of("a" * 999 + "b"), FixedLeaf.of("a" * 999 + "c")
    assert one is not None
    assert one == FixedLeaf.of("a" * 999 + "b")
    assert one != other
    assert len(one.text) < 90
    assert "... (1002 characters, sha256 " in one.text


@pytest.mark.parametrize("value", [object(), print, torch.nn.Identity(), {1}, torch.ones(1)])
def test_the_text_of_other_types_may_not_tell_all(value: Any) -> None:
    assert FixedLeaf.of(value) is None


def known(**values: Any) -> dict[str, FixedLeaf]:
    found = {name: FixedLeaf.of(value) for name, value in values.items()}
    return {name: leaf for name, leaf in found.items() if leaf is not None}


CHANGES = [
    (3.0, r"3\.0 of type float"),
    (1, "1 of type int"),
    (True, "True of type bool"),
    (None, "None"),
    (torch.ones(()), r"a tensor of shape \(\)"),
    (Color, "a EnumType|a EnumMeta"),
]


@pytest.mark.parametrize(("value", "got"), CHANGES)
def test_another_value_is_refused(value: Any, got: str) -> None:
    message = (
        r"^leaf 'a\.scale' of the batch expected 1\.0 of type float, which was compiled in since "
        rf"it is no tensor, got ({got}): compile with a tensor for what changes, declared as "
        r"piper\.split\(dims=\{'a\.scale': None\}\) if it has no batch dim; or compile again for "
        "another value; or leave it out if the loss does not use it$"
    )
    with pytest.raises(ValueError, match=message):
        check_fixed({"a.scale": value}, known(**{"a.scale": 1.0}))


def test_a_value_that_is_not_there_is_refused() -> None:
    message = (
        r"batch expected leaf 'scale', 1\.0 of type float, which the program was compiled with, got "
        r"only \['x'\]: put it into the batch, or compile again without it$"
    )
    with pytest.raises(ValueError, match=message):
        check_fixed({"x": torch.ones(2)}, known(scale=1.0))


def cut(batch: dict[str, Any], fixed: dict[str, FixedLeaf] | None) -> list[Any]:
    return shards(batch, [X], num_shards=1, num_microbatches=1, fixed=fixed)


def test_a_leaf_that_was_not_compiled_with_is_refused() -> None:
    batch = {"x": torch.ones(2), "note": "text"}
    message = (
        r"batch expected only leaves \['x'\], which the program was compiled with, got also "
        "'note': leave it out, or compile with it$"
    )
    with pytest.raises(ValueError, match=message):
        cut(batch, {})
    assert cut(batch, known(note="text"))[0].keys() == {"x"}
    assert cut(batch, None)[0].keys() == {"x"}


def test_an_input_that_is_no_tensor_is_not_taken_for_such_a_leaf() -> None:
    with pytest.raises(TypeError, match="input 'x' expected a tensor, got float"):
        cut({"x": 1.0}, {})


def test_a_trainer_compares_before_anything_runs() -> None:
    """In every entry point; what the manifest does not know it ignores, as before it was known."""
    texts = program_texts()
    raw = json.loads(texts["manifest.json"])
    raw["leaves"] = {"scale": {"type": "float", "text": "1.0"}}
    knows = seal({**texts, "manifest.json": json.dumps(raw)}, {})
    trainer = Trainer(Program(knows), model=TiedMlp(), optimizer=make_sgd)
    batch = make_batch(0)
    expected = trainer.evaluate({**batch, "scale": 1.0})
    for call in (trainer.step, trainer.evaluate, trainer.stepper):
        with pytest.raises(ValueError, match=r"leaf 'scale' .* got 3\.0 of type float"):
            call({**batch, "scale": 3.0})
    assert trainer.evaluate({**batch, "scale": 1.0}) == expected
    ignores = Trainer(Program(texts), model=TiedMlp(), optimizer=make_sgd)
    assert ignores.evaluate({**batch, "scale": 3.0}) == expected
