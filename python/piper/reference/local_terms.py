"""Terms of a loss that are declared local, met where plain PyTorch computes a loss.

    loss = main(batch) + c * local_loss(value)

Of the whole batch only ``main`` is wanted, of a part of it only ``c * value``:

    with WithoutTerms() as terms:  # the loss is main(batch)
    with KeptTerms() as terms:     # the loss is made of terms.leaves, in place of terms.values
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

__all__ = ["KeptTerms", "WithoutTerms"]


class _Terms(TorchFunctionMode, ABC):
    """Lets the loss be made of other values than those that are declared, which are kept."""

    def __init__(self) -> None:
        """Have met none so far."""
        super().__init__()
        self.values: list[Tensor] = []

    def __torch_function__(
        self,
        function: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Replace what declaring a term returns."""
        if function is not torch.ops.piper.local_term.default:
            return function(*args, **(kwargs or {}))
        self.values.append(args[0])
        return self.replace(args[0])

    @abstractmethod
    def replace(self, value: Tensor) -> Tensor:
        """Return what the loss is made of instead of a term."""


class WithoutTerms(_Terms):
    """Every local term is zero, and has no gradient."""

    def replace(self, value: Tensor) -> Tensor:
        """Return zero."""
        return torch.zeros_like(value, requires_grad=False)


class KeptTerms(_Terms):
    """The loss is made of leaves, so that it can be derived by local terms alone."""

    def __init__(self) -> None:
        """Have met none so far."""
        super().__init__()
        self.leaves: list[Tensor] = []

    def replace(self, value: Tensor) -> Tensor:
        """Return a leaf of the same value."""
        self.leaves.append(value.detach().clone().requires_grad_())
        return self.leaves[-1]
