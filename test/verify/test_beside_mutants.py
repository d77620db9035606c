"""No slip with what ranks exchange changes a step unseen where two axes exchange in one microbatch:
parts of sequences beside parts of products, and beside experts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from compiled import compiled
from piper_runtime import Program
from sequence_models import Config, Sequences, batches, captures
from torch import nn
from verdicts import LEVELS, judge, mutants_at, sample

MANY = 60


@dataclass(frozen=True)
class Beside:
    """A case, of two steps."""

    case: Sequences
    config: Config

    def compile(self) -> tuple[Program, nn.Module, Sequence[Any]]:
        """See `Source`."""
        shared, made = captures(self.config), batches(self.case, steps=2)
        return shared.compile(self.case.plan(), made[0]), shared.model, made


FAMILIES = {
    "tensors": Beside(Sequences("1F1B", 2, 0, 2, zero=1, cp=2, tp=2, between=False), Config()),
    "experts": Beside(Sequences("1F1B", 2, 0, 2, zero=1, cp=2, ep=2), Config(experts=True)),
}


@pytest.mark.slow
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_slip_with_one_of_two_exchanges_is_seen_or_harmless(family: str, level: str) -> None:
    base = compiled(FAMILIES[family])
    some = sample(mutants_at(base, level, exchanges=True), MANY)
    verdicts = list(judge(base, level, some))
    assert not [verdict for verdict in verdicts if verdict.outcome == "survived"]
    assert any(verdict.outcome == "refused" for verdict in verdicts)
