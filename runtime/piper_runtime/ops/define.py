"""Registering ops of Piper's own with torch, under ``torch.ops.piper``.

An op is one function for all devices, in plain torch; rows are moved by what ``movement`` has for
the device. Its results are new, contiguous tensors: they share no memory with its arguments. A
second function gives the shapes and dtypes of the results, so that models are captured without
data.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import torch
from torch._ops import OpOverload

__all__ = ["NAMESPACE", "differentiate", "op"]

NAMESPACE = "piper"
P = ParamSpec("P")
R = TypeVar("R")


def op(*, fake: Callable[..., R]) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Register a function as the op of its name; what is left is a function that calls the op.

    ``fake`` returns empty results for the same arguments. The schema follows from the annotations.
    No argument has a default: graphs show what is left out, and a program must be able to change
    it.
    """

    def register(kernel: Callable[P, R]) -> Callable[P, R]:
        name = f"{NAMESPACE}::{kernel.__name__}"
        schema = torch.library.infer_schema(kernel, mutates_args=())
        torch.library.define(name, schema, tags=(torch.Tag.pt2_compliant_tag,))
        torch.library.impl(name, "default", kernel)
        torch.library.register_fake(name, fake)
        overload: OpOverload = getattr(torch.ops.piper, kernel.__name__).default

        @functools.wraps(kernel)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            result: R = overload(*args, **kwargs)
            return result

        return call

    return register


def differentiate(
    function: Callable[..., Any],
    *,
    save: Callable[..., None],
    backward: Callable[..., Any],
) -> None:
    """Give an op its gradient: ``save(ctx, inputs, output)``, then ``backward(ctx, *gradients)``.

    ``backward`` calls one op per gradient, so that those of inputs and of weights can be computed
    at different times.
    """
    name = f"{NAMESPACE}::{function.__name__}"
    torch.library.register_autograd(name, backward, setup_context=save)
