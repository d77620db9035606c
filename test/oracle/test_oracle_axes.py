"""States shared out along some data axes, or along a product of them, with every schedule."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import piper
import pytest
import torch
from piper.strategy import Directive
from sharded import Sharded
from sharded_gpt import NAMES, check_training, compile_case

MICROBATCHES = {"1F1B": 2}  # of other schedules, twice as many: DualPipe brings two in at a time
THREE = ("dp", "dp_replicate", "dp_shard")


@dataclass(frozen=True)
class Shared(Sharded):
    """Data axes of two ranks each, some of which share out states."""

    names: tuple[str, ...] = ("dp_replicate", "dp_shard")
    shard: tuple[str, ...] | None = None

    def __str__(self) -> str:
        """As a test id."""
        return f"{super().__str__()}-{'x'.join(self.shard or self.names)}"

    @property
    def parts(self) -> int:
        """See `Case`."""
        count: int = 2 ** len(self.names)
        return self.microbatches * count

    @property
    def mesh(self) -> dict[str, int]:
        """See `Case`."""
        return {"pp": self.pp, **dict.fromkeys(self.names, 2)}

    def replicate(self, reduce_dtype: torch.dtype | None) -> Directive:
        """See `Case`."""
        return piper.replicate(
            axis=self.names,
            zero=self.zero,
            shard=self.shard,
            reduce=self.reduce,
            reduce_dtype=reduce_dtype,
        )


def _case(kind: type[Any], name: str, zero: int, reduce: str, **more: object) -> Any:
    return kind(name, 2, 2, MICROBATCHES.get(name, 4), zero=zero, reduce=reduce, **more)


def _params(cases: list[Any]) -> list[Any]:
    """The cases; all are slow but stage 3 of each schedule, and one more policy of 1F1B."""
    quick = [("1F1B", 1, "last"), *((name, 3, "each") for name in NAMES)]
    return [
        pytest.param(
            case,
            id=str(case),
            marks=[] if (case.schedule, case.zero, case.reduce) in quick else pytest.mark.slow,
        )
        for case in cases
    ]


HYBRID = [
    _case(Sharded, name, zero, reduce, rep=2)
    for name, zero, reduce in itertools.product(NAMES, (1, 2, 3), ("last", "each"))
]
PRODUCT = [
    _case(Shared, name, zero, reduce)
    for name, zero, reduce in itertools.product(NAMES, range(4), ("last", "each"))
]


@pytest.mark.parametrize("case", _params(HYBRID))
def test_hsdp_equals_plain_pytorch(case: Sharded) -> None:
    """States sharded along one data axis and whole along another, 2 x 2 on each stage."""
    check_training(case)


@pytest.mark.parametrize("case", _params(PRODUCT))
def test_a_product_of_axes_equals_plain_pytorch(case: Sharded) -> None:
    """A product of axes shares out states as one axis of its size does."""
    check_training(case)


@pytest.mark.parametrize(
    "zero", [pytest.param(1, marks=pytest.mark.slow), pytest.param(2, marks=pytest.mark.slow), 3]
)
@pytest.mark.parametrize("shard", [THREE[:1], THREE[1:2], THREE[::2], THREE[:0:-1]])
def test_any_of_three_axes(shard: tuple[str, ...], zero: int) -> None:
    """The outermost axis, one in the middle, two that are not neighbours, two in another order."""
    check_training(Shared("1F1B", 1, 1, 2, zero=zero, names=THREE, shard=shard))


@pytest.mark.parametrize(
    ("shard", "count"), [(None, 4), (("dp_replicate",), 2), (("dp_shard",), 2)]
)
def test_states_are_cut_by_the_shard_axes(shard: tuple[str, ...] | None, count: int) -> None:
    """What is compared above is shared out as it says: over as many ranks as these axes have."""
    program, _, _ = compile_case(Shared("1F1B", 1, 1, 2, zero=3, shard=shard))
    mesh = program.manifest.mesh
    trained = [spec for spec in program.manifest.buckets if spec.grad_dtype is not None]
    assert trained
    for spec in trained:
        assert spec.shard_axes == (shard or ("dp_replicate", "dp_shard"))
        assert spec.slot_numel("value", mesh) == -(-spec.numel // count)
