"""Factories that are given names, and what a bucket gives them."""

from __future__ import annotations

import functools
from typing import Any, cast

import pytest
import torch
from piper_runtime import takes_names
from piper_runtime.manifest import BucketSpec, StateSpec
from piper_runtime.states.optimizer import call_factory
from piper_runtime.states.sharding import Shard
from piper_runtime.states.state import Bucket
from torch import nn

Named = list[tuple[str, nn.Parameter]]


def test_what_cannot_be_called_is_refused() -> None:
    with pytest.raises(TypeError, match=r"takes_names expected factory\(named_parameters\) -> .*3"):
        takes_names(cast(Any, 3))


def test_the_mark_keeps_name_and_module() -> None:
    @takes_names
    def factory(named: Named) -> torch.optim.Optimizer:
        """Make it."""
        return torch.optim.SGD(named)

    assert factory.__module__ == __name__
    assert factory.__doc__ == "Make it."
    assert cast(Any, factory).__name__ == "factory"


def test_classes_and_partials_can_be_marked() -> None:
    """Which does not change them."""
    named = [("w", nn.Parameter(torch.ones(2)))]
    for kind in (torch.optim.SGD, functools.partial(torch.optim.SGD, lr=0.5)):
        optimizer = call_factory(takes_names(cast(Any, kind)), named)
        assert optimizer.param_groups[0]["param_names"] == ["w"]
        assert "param_names" not in call_factory(cast(Any, kind), named).param_groups[0]


def test_a_part_has_the_name_of_its_member() -> None:
    """Of two ranks, one has the end of one member and the beginning of the other."""
    members = [StateSpec(n, "parameter", (3,), "float32", True, ()) for n in ("a", "b")]
    spec = BucketSpec("a$b", ("a", "b"), (0,), "float32", 6, "float32", shard_axes=("dp",))
    seen = []

    @takes_names
    def factory(named: Named) -> torch.optim.Optimizer:
        seen.append([(name, tuple(parameter.shape)) for name, parameter in named])
        return torch.optim.SGD([parameter for _, parameter in named])

    for index, count in ((0, 2), (1, 2), (3, 4)):
        shard = Shard(6, index, count)
        Bucket(spec, members, torch.ones(shard.part), shard=shard).make_optimizer(factory)
    assert seen == [[("a", (3,))], [("b", (3,))], [("a", (0,))]]


def test_other_classes_are_refused_with_names_too() -> None:
    member = StateSpec("w", "parameter", (2,), "float32", True, ())
    held = Bucket(BucketSpec("w$b", ("w",), (0,), "float32", 2, "float32"), [member], torch.ones(2))
    with pytest.raises(TypeError, match=r"expected an elementwise class of torch\.optim"):
        held.make_optimizer(takes_names(lambda named: torch.optim.LBFGS(named)))
