"""What ``piper.compile`` is given: arguments of other types, and a model or a batch that the
strategy does not fit, as far as this is seen before anything is captured.
"""

from __future__ import annotations

from typing import Any

from torch import nn

from piper.frontend import CaptureError
from piper.limits import Limits
from piper.strategy import Annotate, Strategy
from piper.strategy.batch import check_batch
from piper.strategy.directive import check_count

__all__ = ["check_arguments", "check_fit"]


def check_arguments(
    model: object, loss_fn: object, strategy: object, *, limits: object, data_shards: object
) -> None:
    """Refuse arguments of other types, which are mostly in another order.

    Raises:
        TypeError: says what stands in which place, and what would be right there.
        ValueError: data_shards that are no count.
    """
    if not isinstance(model, nn.Module):
        swapped = ", which stands in the place of loss_fn" if isinstance(loss_fn, nn.Module) else ""
        raise TypeError(
            "compile(model, loss_fn, strategy, batch) expected a torch.nn.Module as model"
            f"{swapped}, got {_text(model)}"
        )
    if not callable(loss_fn):
        raise TypeError(
            f"compile expected a loss_fn to call as loss_fn(model, batch), got {_text(loss_fn)}"
        )
    if not isinstance(strategy, Strategy):
        raise TypeError(
            "compile expected a piper.Strategy(mesh=..., directives=[...]) as strategy, got "
            f"{_text(strategy)}"
        )
    if not isinstance(limits, Limits):
        raise TypeError(f"compile expected a piper.Limits(...) as limits, got {_text(limits)}")
    if data_shards is not None:
        check_count("compile data_shards", data_shards)


def check_fit(
    strategy: Strategy, model: nn.Module, batch: Any, *, held: int, data_shards: int | None
) -> None:
    """Check that modules that are annotated can be called, and that the batch can be cut.

    Args:
        strategy: says what is annotated and cut.
        model: what is compiled.
        batch: an example of what is fed.
        held: how many data-parallel shards the batch holds.
        data_shards: the same, where the user says so.

    Raises:
        CaptureError: names the directive, where it was written, and what would be right.
    """
    try:
        for annotate in strategy.all(Annotate):
            annotate.check_calls(model)
        check_batch(strategy, batch, held=held, data_shards=data_shards)
    except CaptureError:
        raise
    except ValueError as error:
        raise CaptureError(str(error)) from None


def _text(value: object) -> str:
    text = repr(value)
    return f"{type(value).__name__} {text if len(text) <= 60 else f'{text[:60]}...'}"
