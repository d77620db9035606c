"""Whether the batch can be cut as a strategy says, in the words of its directives."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from piper_runtime.inputs.batch import leaves
from torch import Tensor

from piper.strategy.directive import Directive
from piper.strategy.replicate import Replicate
from piper.strategy.split import Split
from piper.strategy.strategy import Strategy

__all__ = ["check_batch"]


def check_batch(
    strategy: Strategy, batch: Any, *, held: int, data_shards: int | None = None
) -> None:
    """Check that every input has a dim to cut, or is declared to have none, and that the parts of
    the batch are equal.

    Args:
        strategy: says into how many microbatches, and along which axes ranks have their own.
        batch: an example of what is fed: a pytree of tensors.
        held: how many data-parallel shards it holds.
        data_shards: the same, where the user says so.

    Raises:
        ValueError: names the input, where the directive was written, and what would be right.
    """
    named = {name: leaf for name, leaf in leaves(batch).items() if isinstance(leaf, Tensor)}
    for name, leaf in named.items():
        if leaf.dim() == 0 and name not in strategy.dims:
            raise _error(
                strategy,
                f"has no dim of input {name!r} to cut, a scalar: expected "
                f"piper.{_split_with(strategy, name)!r}",
            )
    dims = {name: strategy.dims.get(name, 0) for name in named}
    cut = {name: dim for name, dim in dims.items() if dim is not None}
    if any(dim >= named[name].dim() for name, dim in cut.items()):
        return  # which capture says, as it does of sizes that differ
    sizes = {name: named[name].shape[dim] for name, dim in cut.items()}
    if len(set(sizes.values())) == 1:
        name, size = next(iter(sizes.items()))
        _check_size(strategy, size, f"input {name!r}, dim {cut[name]}", held, data_shards)


def _check_size(
    strategy: Strategy, size: int, where: str, held: int, data_shards: int | None
) -> None:
    parts = strategy.microbatches * held
    if size and size % parts == 0:
        return
    factors = [f"{strategy.microbatches} microbatches"] if strategy.first(Split) else []
    if data_shards is not None:
        factors.append(f"data_shards={data_shards}")
    elif held > 1:
        factors.append(f"{held} ranks along {' and '.join(map(repr, strategy.data_axes))}")
    told = " x ".join(factors) or "one part"
    raise _error(
        strategy,
        f"must cut the batch into equal parts: expected a positive multiple of {parts} ({told}), "
        f"got {size} ({where})",
    )


def _split_with(strategy: Strategy, name: str) -> Split:
    """The split that declares an input whole."""
    dims: Mapping[str, int | None] = {**strategy.dims, name: None}
    return Split(strategy.microbatches, dims)


def _error(strategy: Strategy, message: str) -> ValueError:
    """An error of the directive that cuts the batch; of the strategy, if none does."""
    found: Directive | None = strategy.first(Split) or strategy.first(Replicate)
    if found is not None:
        return found.error(message)
    return ValueError(f"{strategy.source}: strategy {message}")
