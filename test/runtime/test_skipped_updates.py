"""Updates that may be skipped: a scalar that is not zero leaves the state as it is."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from mlp_program import TiedMlp, make_adamw, make_batch, program_texts, sealed
from piper_runtime import LocalTransport, Program, Trainer


def trainer_of(skip: str | None, **options: Any) -> Trainer:
    """A trainer of the hand-written program, whose updates all ask the scalar ``skip``."""
    texts = program_texts(**options)
    if skip is not None:
        for name in ("program_pp0.py", "program_pp1.py"):
            text = texts[name]
            scalar = f'    k = r.tangent("loss", coeff={skip}, dtype="float32")\n'
            text = text.replace("    z = r.record()\n", f"{scalar}    z = r.record()\n")
            changed = text.replace(", after=[f1])\n", ", skip=k, after=[f1])\n")
            changed = changed.replace(", after=[f2])\n", ", skip=k, after=[f2])\n")
            assert changed.count("skip=k") == 2
            texts[name] = changed
    program = Program(sealed(texts))
    return Trainer(program, model=TiedMlp(), optimizer=make_adamw, transport=LocalTransport(seed=3))


@pytest.mark.parametrize("clip", [None, 0.05])
@pytest.mark.parametrize("skip", ["1.0", "-0.5", 'float("nan")', 'float("inf")'])
def test_the_state_stays_if_the_scalar_is_not_zero(skip: str, clip: float | None) -> None:
    trainer = trainer_of(skip, clip=clip)
    before = trainer.full_state_dict()
    first = trainer.step(make_batch(0))
    assert trainer.step(make_batch(0)).loss == first.loss
    for name, value in trainer.full_state_dict().items():
        assert torch.equal(value, before[name])
    plain = trainer_of(None, clip=clip)
    assert plain.step(make_batch(0)).loss == first.loss
    for name, gradient in plain.gradients().items():
        assert torch.equal(trainer.gradients()[name], gradient)


@pytest.mark.parametrize("clip", [None, 0.05])
def test_zero_skips_nothing(clip: float | None) -> None:
    skips, plain = trainer_of("0.0", clip=clip), trainer_of(None, clip=clip)
    for step in range(3):
        assert skips.step(make_batch(step)).loss == plain.step(make_batch(step)).loss
    for name, value in plain.full_state_dict().items():
        assert torch.equal(skips.full_state_dict()[name], value)
