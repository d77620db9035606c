"""Unmodified models of transformers, annotated by module path, against themselves."""

from __future__ import annotations

import hf_models
import pytest
from hf_models import FAMILIES, next_token_loss
from ir_facts import count_transfers
from oracle import BOUND, check_steps, piper_steps, plain_steps
from strategies import Case

SLOW = (Case("1F1B", 4, 1, 8), Case("GPipe", 4, 2, 2))
CASES = [pytest.param(name, 2, Case("1F1B", 2, 2, 2), id=f"{name}-quick") for name in FAMILIES]
CASES += [
    pytest.param(name, 4, case, id=f"{name}-{case}", marks=pytest.mark.slow)
    for name in FAMILIES
    for case in SLOW
]


@pytest.mark.parametrize(("name", "layers", "case"), CASES)
def test_training_equals_plain_pytorch(name: str, layers: int, case: Case) -> None:
    """Loss and gradients are as near to plain PyTorch as that is to itself in microbatches."""
    captures = hf_models.captures(name, layers=layers)
    model, batch = captures.model, hf_models.make_batch(case)
    bound = max(BOUND, 10 * hf_models.floor(model, batch))
    program = captures.compile(case.strategy(FAMILIES[name].tags), batch)
    found = piper_steps(program, model, [batch])
    check_steps(found, plain_steps(model, next_token_loss, [batch]), bound=bound)


@pytest.mark.parametrize(
    ("layers", "case"),
    [
        pytest.param(2, Case("1F1B", 2, 2, 2), id="pp2"),
        pytest.param(4, Case("1F1B", 4, 1, 8), id="pp4", marks=pytest.mark.slow),
    ],
)
def test_llama_sends_only_its_hidden_state(layers: int, case: Case) -> None:
    """One value forward and one gradient back per stage boundary and microbatch: rotary tables and
    masks are made where they are used.
    """
    batch = hf_models.make_batch(case)
    captures = hf_models.captures("llama", layers=layers)
    program = captures.compile(case.strategy(FAMILIES["llama"].tags), batch)
    assert count_transfers(program, "train") == 2 * (case.pp - 1) * case.microbatches
    assert count_transfers(program, "eval") == (case.pp - 1) * case.microbatches
