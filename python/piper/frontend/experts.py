"""Experts of transformers' models: in a capture they go through Piper's own ops.

Such a model looks up how to compute its experts, by a name in its config, in a public registry.
A capture traces a copy of the model; the configs of the copy name a function that is registered
while the capture lasts. Routers stay as they are.

    up      = hidden @ gate_up_proj[e].T      moe_linear
    hidden  = act(gate) * up                  as the model does it
    out     = hidden @ down_proj[e].T         moe_linear
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any, Final

from piper_runtime.ops import moe_experts, moe_linear
from torch import Tensor, nn

__all__ = ["own_experts"]

_NAME: Final = "piper"
_REGISTRY: Final = "transformers.integrations.moe"
# What transformers itself registers, or does without a registered function. All compute the same;
# a function that somebody else registered is left alone.
_KNOWN: Final = frozenset({"eager", "grouped_mm", "batched_mm", "deepgemm", "sonicmoe", None})
# How transformers' decorator of experts describes their weights.
_OPTIONS: Final = ("has_gate", "has_bias", "has_post_expert_norm", "is_transposed", "config")


@contextlib.contextmanager
def own_experts(model: nn.Module) -> Iterator[None]:
    """Let the experts of ``model``, a copy for the capture, use Piper's ops inside the block.

    Experts with biases are left as they are, as are those that transformers itself shares out.
    """
    registry = getattr(sys.modules.get(_REGISTRY), "ALL_EXPERTS_FUNCTIONS", None)
    configs: list[Any] = [
        vars(module)["config"] for module in model.modules() if _is_supported(module)
    ]
    if registry is None or not configs:
        yield
        return
    for config in configs:
        config._experts_implementation = _NAME
    before = registry.get(_NAME)
    registry[_NAME] = _experts_forward
    try:
        yield
    finally:
        del registry[_NAME]
        if before is not None:
            registry[_NAME] = before


def _is_supported(module: nn.Module) -> bool:
    """Return whether a module is transformers' experts, of a kind that the ops can compute."""
    found = vars(module)
    if not all(name in found for name in _OPTIONS) or found["has_bias"]:
        return False
    if found.get("_is_expert_parallel", False):
        return False
    return getattr(found["config"], "_experts_implementation", None) in _KNOWN


def _experts_forward(
    module: Any, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor
) -> Tensor:
    """Compute a layer of experts as transformers' own functions do: ``[T, D]`` to ``[T, D]``."""

    def compute(rows: Tensor, received: Tensor) -> Tensor:
        first = module.gate_up_proj if module.has_gate else module.up_proj
        hidden = moe_linear(rows, _outputs_first(module, first), received)
        hidden = module._apply_gate(hidden) if module.has_gate else module.act_fn(hidden)
        result = moe_linear(hidden, _outputs_first(module, module.down_proj), received)
        return module.post_expert_norm(result) if module.has_post_expert_norm else result

    tokens = hidden_states.to(module.down_proj.dtype)
    result = moe_experts(tokens, top_k_index, top_k_weights, compute, experts=module.num_experts)
    return result.to(hidden_states.dtype)


def _outputs_first(module: Any, weight: Tensor) -> Tensor:
    """Return a weight of experts as ``[experts, outputs, inputs]``."""
    return weight.transpose(1, 2) if module.is_transposed else weight
