"""What an optimizer keeps of a parameter, found out without touching it.

An optimizer makes its state in its first step, so one that is new has no tensors to load into.
Torch's own helpers take a step of the real one with zero gradients and a learning rate of 0. Here a
second optimizer of the same class and options does, on a parameter of two elements: names, dtypes
and devices are the same, and nothing has changed if the checkpoint turns out not to fit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

__all__ = ["Kept", "first_state", "kept_by"]

NUMEL = 2  # tells what has the parameter's shape from scalars


@dataclass(frozen=True, slots=True)
class Kept:
    """A tensor that is kept of a parameter: of its shape, or one without dims."""

    scalar: bool
    dtype: torch.dtype
    device: torch.device

    def empty(self, shape: tuple[int, ...]) -> Tensor:
        """Return one of a parameter of this shape, to be filled but for padding, which is zero."""
        size = () if self.scalar else shape
        return torch.zeros(size, dtype=self.dtype, device=self.device)


def kept_by(optimizer: torch.optim.Optimizer) -> dict[nn.Parameter, dict[str, Kept]]:
    """Return what an optimizer keeps of each parameter after its first step, by name."""
    groups = [group for group in optimizer.param_groups if group["params"]]
    if not groups:
        return {}
    probes = [_probe(group["params"][0]) for group in groups]
    trial = _again(optimizer, [g | {"params": [p]} for g, p in zip(groups, probes, strict=True)])
    trial.step()
    found: dict[nn.Parameter, dict[str, Kept]] = {}
    for group, probe in zip(groups, probes, strict=True):
        kept = {
            name: Kept(value.shape != probe.shape, value.dtype, value.device)
            for name, value in trial.state.get(probe, {}).items()
        }
        found |= dict.fromkeys(group["params"], kept)
    return found


def first_state(optimizer: torch.optim.Optimizer) -> dict[Tensor, dict[str, Any]]:
    """Return the state of an optimizer before its first step; most have none."""
    return dict(_again(optimizer, [dict(group) for group in optimizer.param_groups]).state)


def _probe(like: nn.Parameter) -> nn.Parameter:
    probe = nn.Parameter(torch.zeros(NUMEL, dtype=like.dtype, device=like.device))
    probe.grad = torch.zeros_like(probe)
    return probe


def _again(optimizer: torch.optim.Optimizer, groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
    """Return an optimizer of the same class; the options of the groups are all there are."""
    make = cast(Callable[..., torch.optim.Optimizer], type(optimizer))
    return make(groups)
