"""Optimizers: which classes may run on a rank's part of the state, and the clip factor."""

from __future__ import annotations

import importlib
from collections.abc import Callable

import torch
from torch import Tensor, nn

__all__ = ["OptimizerFactory", "clip_factor", "load_factory", "make_optimizer"]

OptimizerFactory = Callable[[list[nn.Parameter]], torch.optim.Optimizer]

# Elementwise: the new value of an element depends on that element's gradient and history alone, so
# an optimizer of one bucket does what one optimizer of the whole model would do.
ELEMENTWISE = (
    "ASGD", "Adadelta", "Adagrad", "Adam", "AdamW", "Adamax", "NAdam", "RAdam", "RMSprop", "Rprop",
    "SGD",
)  # fmt: skip
CLIP_EPSILON = 1e-6


def make_optimizer(
    factory: OptimizerFactory, parameters: list[nn.Parameter]
) -> torch.optim.Optimizer:
    """Call ``factory`` on views of a bucket's flat value; raises TypeError for other classes."""
    optimizer = factory(parameters)
    kind = type(optimizer)
    if getattr(torch.optim, kind.__name__, None) is kind and kind.__name__ in ELEMENTWISE:
        return optimizer
    raise TypeError(
        f"optimizer expected an elementwise class of torch.optim ({', '.join(ELEMENTWISE)}), "
        f"got {kind.__module__}.{kind.__qualname__}"
    )


def load_factory(path: str) -> OptimizerFactory:
    """Import an optimizer factory ``package.module:name``; raises an error if there is none."""
    module, _, name = path.partition(":")
    if not name:
        raise ValueError(f"optimizer expected an import path 'module:name', got {path!r}")
    factory = getattr(importlib.import_module(module), name, None)
    if not callable(factory):
        raise TypeError(f"optimizer expected a function {name!r} in {module}, got {factory!r}")
    return factory  # type: ignore[no-any-return]


def clip_factor(sumsq: Tensor, clip: float, *, scale: float = 1.0) -> Tensor:
    """Return ``min(1, clip / (norm + 1e-6))`` as torch's ``clip_grad_norm_`` computes it.

    The norm is ``sqrt(sumsq) / scale``.
    """
    return torch.clamp(clip / (sumsq.sqrt() / scale + CLIP_EPSILON), max=1.0)
