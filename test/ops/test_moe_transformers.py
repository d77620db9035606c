"""Experts of transformers' models through Piper's ops, against transformers' own loop."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch
from piper.frontend.experts import own_experts
from torch import Tensor, nn
from torch.nn import functional
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS, use_experts_implementation

EXPERTS, CHOICES, WIDTH, HIDDEN, TOKENS = 5, 2, 4, 3, 9


def config_of(**changes: Any) -> Any:
    known: dict[str, Any] = {
        "num_experts": EXPERTS,
        "num_local_experts": EXPERTS,
        "hidden_size": WIDTH,
    }
    known |= {"moe_intermediate_size": HIDDEN, "hidden_act": "silu"}
    return SimpleNamespace(**known, **{"_experts_implementation": "eager"} | changes)


def qwen3(config: Any) -> nn.Module:
    from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeExperts

    module: nn.Module = Qwen3MoeExperts(config)  # type: ignore[no-untyped-call]
    return module


def deepseek_v3(config: Any) -> nn.Module:
    from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3Experts

    module: nn.Module = DeepseekV3Experts(config)  # type: ignore[no-untyped-call]
    return module


class Plain(nn.Module):
    """Experts without a gate, with transposed weights and a norm behind them."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.num_experts = config.num_experts
        self.up_proj = nn.Parameter(torch.empty(EXPERTS, WIDTH, HIDDEN))
        self.down_proj = nn.Parameter(torch.empty(EXPERTS, HIDDEN, WIDTH))
        self.post_expert_norm = nn.LayerNorm(WIDTH)
        self.act_fn = nn.GELU()

    def forward(self, hidden: Tensor, index: Tensor, weights: Tensor) -> Tensor:
        rows = torch.einsum("td,edj->tej", hidden, self.up_proj)
        rows = torch.einsum("tej,ejd->ted", self.act_fn(rows), self.down_proj)
        chosen = functional.one_hot(index, EXPERTS).to(hidden.dtype) * weights[:, :, None]
        norm: Tensor = self.post_expert_norm(rows)
        return torch.einsum("tke,ted->td", chosen, norm)


DECORATE = use_experts_implementation(is_transposed=True, has_gate=False, has_post_expert_norm=True)
DECORATE(Plain)


class Biased(nn.Module):
    """Experts with biases, which the ops do not have."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(WIDTH))

    def forward(self, hidden: Tensor, index: Tensor, weights: Tensor) -> Tensor:
        return hidden * self.scale


use_experts_implementation(Biased, has_bias=True)


def make_inputs() -> tuple[Tensor, Tensor, Tensor]:
    """Tokens, of which most choose expert 1 and none expert 4, and weights of choices."""
    x = torch.randn(TOKENS, WIDTH, dtype=torch.float64, requires_grad=True)
    second = torch.tensor([0, 2, 3])[torch.randint(3, (TOKENS,))]
    weights = torch.rand(TOKENS, CHOICES, dtype=torch.float64, requires_grad=True)
    return x, torch.stack([torch.ones_like(second), second], 1), weights


@pytest.mark.parametrize("make", [qwen3, deepseek_v3, Plain])
def test_values_and_gradients_are_those_of_transformers(make: Any) -> None:
    torch.manual_seed(0)
    module = make(config_of()).double()
    for parameter in module.parameters():
        nn.init.normal_(parameter)
    x, index, weights = make_inputs()
    inputs = (x, weights, *module.parameters())

    def run() -> tuple[Tensor, ...]:
        y = module(x, index, weights)
        return (y, *torch.autograd.grad(y.pow(2).sum(), inputs))

    wanted = run()
    with own_experts(module):
        assert module.config._experts_implementation == "piper"
        found = run()
    torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)
    assert "piper" not in ALL_EXPERTS_FUNCTIONS


def test_weights_of_a_router_may_be_more_precise() -> None:
    """The result has the dtype of the tokens."""
    module = qwen3(config_of()).bfloat16()
    x, index, weights = make_inputs()
    with own_experts(module):
        assert module(x.bfloat16(), index, weights.float()).dtype == torch.bfloat16
        assert module(x, index, weights).dtype == torch.float64


def test_what_a_user_registered_is_left_alone() -> None:
    """Nor are experts with biases, or those that transformers shares out, changed."""
    module = qwen3(config_of(_experts_implementation="mine"))
    shared = qwen3(config_of())
    shared._is_expert_parallel = True  # type: ignore[assignment]
    biased = Biased(config_of())
    with own_experts(nn.ModuleList([module, shared, biased])):
        for left in (module, shared, biased):
            config: Any = left.config
            assert config._experts_implementation in ("mine", "eager")
        assert "piper" not in ALL_EXPERTS_FUNCTIONS


def test_the_registry_is_as_before_also_after_an_error() -> None:
    """Even where somebody else uses the name."""

    def mine(*_: Any) -> None: ...

    def fail() -> None:
        with own_experts(qwen3(config_of())):
            assert ALL_EXPERTS_FUNCTIONS["piper"] is not mine
            raise KeyError

    with mock.patch.dict(ALL_EXPERTS_FUNCTIONS._local_mapping, {"piper": mine}):
        with pytest.raises(KeyError):
            fail()
        assert ALL_EXPERTS_FUNCTIONS["piper"] is mine
    assert "piper" not in ALL_EXPERTS_FUNCTIONS


def test_experts_are_found_with_their_own_config() -> None:
    """Of a model, all of them; other modules have no say."""
    config = config_of()
    model = nn.Sequential(nn.Linear(2, 2), qwen3(config), Biased(config_of()))
    with own_experts(model):
        assert config._experts_implementation == "piper"
    with own_experts(nn.Linear(2, 2)):
        assert "piper" not in ALL_EXPERTS_FUNCTIONS
