"""Terms of a loss that are declared local, met where plain PyTorch computes a loss.

    loss = main(batch) + c * local_loss(value)

Of the whole batch only ``main`` is wanted, of a part of it only ``c * value``:

    with Without():         # loss is main(batch)
    with Found() as found:  # found.values are those declared, found.leaves what the loss has of them
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

__all__ = ["Found", "Without"]


class Without(TorchFunctionMode):
    """Every local term is zero, and has no gradient."""

    def __torch_function__(
        self,
        function: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Replace what local terms return."""
        if function is torch.ops.piper.local_term.default:
            return torch.zeros_like(args[0], requires_grad=False)
        return function(*args, **(kwargs or {}))


class Found(TorchFunctionMode):
    """Every local term is kept, and a leaf in its place, for which the loss can be derived."""

    def __init__(self) -> None:
        """Find none so far."""
        super().__init__()
        self.values: list[Tensor] = []
        self.leaves: list[Tensor] = []

    def __torch_function__(
        self,
        function: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Take note of what local terms are given."""
        if function is torch.ops.piper.local_term.default:
            self.values.append(args[0])
            self.leaves.append(args[0].detach().clone().requires_grad_())
            return self.leaves[-1]
        return function(*args, **(kwargs or {}))
