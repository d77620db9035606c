"""What Piper's ops mean in plain PyTorch, so that a model that calls them is a reference."""

# ruff: noqa: N812  (plain PyTorch style)

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import piper
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

__all__ = ["plain_ops"]


@contextmanager
def plain_ops() -> Iterator[None]:
    """Replace what models call as `piper.ops.NAME`; another op of Piper is an error."""
    with (
        mock.patch.object(piper.ops, "attention", _attention),
        mock.patch.object(piper.ops, "moe_experts", _moe_experts),
        mock.patch.object(piper.ops, "moe_linear", _moe_linear),
        mock.patch.object(piper, "local_loss", _local_loss),
        _NoneOfPiper(),  # type: ignore[no-untyped-call]
    ):
        yield


def _attention(q: Tensor, k: Tensor, v: Tensor, *, causal: bool) -> Tensor:
    """Each head of queries by torch's own attention, with the keys and values of its group."""
    return F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True)


def _moe_experts(
    x: Tensor,
    index: Tensor,
    weights: Tensor,
    compute: Callable[[Tensor, Any], Tensor],
    *,
    experts: int,
) -> Tensor:
    """One expert after another, on the tokens that chose it; `compute` gets its number."""
    y = torch.zeros_like(x)
    for expert in range(experts):
        token, choice = (index == expert).nonzero(as_tuple=True)
        rows = compute(x[token], expert)
        y = y.index_add(0, token, weights[token, choice, None] * rows)
    return y


def _moe_linear(rows: Tensor, weight: Tensor, expert: int) -> Tensor:
    """The product of one expert."""
    return F.linear(rows, weight[expert])


def _local_loss(value: Tensor, *, name: str = "local") -> Tensor:
    """In one batch a term is what it is."""
    return value


class _NoneOfPiper(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Lets ops run that are not Piper's."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert func.namespace != "piper", f"expected an op of torch, got {func}"
        return func(*args, **kwargs or {})
