"""Optimizers: what makes them, which may run on a rank's part of the state, the clip factor."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

__all__ = [
    "OptimizerFactory", "TakesNames", "call_factory", "clip_factor", "load_factory",
    "make_optimizer", "takes_names",
]  # fmt: skip

OptimizerFactory = Callable[[list[nn.Parameter]], torch.optim.Optimizer]
NamedParameters = list[tuple[str, nn.Parameter]]

# Elementwise: the new value of an element depends on that element's gradient and history alone, so
# an optimizer of one bucket does what one optimizer of the whole model would do.
ELEMENTWISE = (
    "ASGD", "Adadelta", "Adagrad", "Adam", "AdamW", "Adamax", "NAdam", "RAdam", "RMSprop", "Rprop",
    "SGD",
)  # fmt: skip
CLIP_EPSILON = 1e-6


class TakesNames:
    """An optimizer factory that is given ``(name, parameter)`` pairs; see ``takes_names``."""

    def __init__(self, factory: Callable[[NamedParameters], torch.optim.Optimizer]) -> None:
        """Have the name and module of ``factory``, so that it is found where that was defined."""
        self._factory = factory
        functools.update_wrapper(self, factory)

    def __call__(self, parameters: list[Any]) -> torch.optim.Optimizer:
        """Call the factory with pairs."""
        return self._factory(parameters)


def takes_names(factory: Callable[[NamedParameters], torch.optim.Optimizer]) -> TakesNames:
    """Mark an optimizer factory that tells parameters apart by name, as a decorator does.

    It is called with a list of ``(name, parameter)``, as ``model.named_parameters()`` gives them,
    instead of a list of parameters; of a tied weight, with the first of its names. Raises TypeError
    for what cannot be called.
    """
    if not callable(factory):
        raise TypeError(
            "takes_names expected factory(named_parameters) -> torch.optim.Optimizer, "
            f"got {factory!r}"
        )
    return TakesNames(factory)


def call_factory(factory: OptimizerFactory, named: NamedParameters) -> torch.optim.Optimizer:
    """Call ``factory`` with parameters, or if it takes names with the pairs."""
    if isinstance(factory, TakesNames):
        return factory(named)
    return factory([parameter for _, parameter in named])


def make_optimizer(factory: OptimizerFactory, named: NamedParameters) -> torch.optim.Optimizer:
    """Call ``factory`` on views of a bucket's flat value; raises TypeError for other classes."""
    optimizer = call_factory(factory, named)
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
