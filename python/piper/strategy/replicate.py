"""replicate: data parallelism along manual axes, and ZeRO."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from piper.strategy.directive import Directive, check_count, check_dtype
from piper.strategy.mesh import Mesh
from piper.strategy.text import element_name, quoted

Reduce = Literal["last", "each"]
Gather = Literal["each", "group", "step"]


@dataclass(frozen=True, repr=False)
class Replicate(Directive):
    """Each rank along `axis`, a mesh axis or several, computes on its own part of the batch.

    `zero` is the ZeRO stage (Rajbhandari et al., 2020), what ranks share out instead of keeping it
    whole: 0 nothing, 1 what the optimizer keeps, 2 also gradients, 3 also the states. `shard` are
    the axes they share it out along: all of `axis` by default; fewer is HSDP.

    Gradients are summed in `reduce_dtype` (None: the gradient's own) and in buckets of at most
    `bucket_size` bytes; a larger state is a bucket of its own. `reduce="last"` sums them once,
    after the last microbatch, and keeps a whole gradient until then; `"each"` sums the contribution
    of every microbatch. The default is `"each"` from stage 2 on, where it is what keeps gradients
    small, else `"last"`.

    States of stage 3, frozen ones among them, are gathered for each use. `gather` says how long
    they are kept whole: for `"each"` use, for a `"group"` of uses of a rank's schedule in a row
    that are of the same bucket (the default), or for the `"step"`. Stages 1 and 2 gather what was
    updated at the end of a step, or with `gather="step"` in the next, beside its first chunks.
    States are gathered `prefetch` uses ahead (1 by default), as far as what is whole at once fits
    into `gather_limit` bytes of a rank; what is used next is gathered in any case.

    Raises:
        ValueError: an option outside its range, or one that the ZeRO stage has no use for.
    """

    axis: str | tuple[str, ...] = "dp"
    zero: int = 0
    shard: str | tuple[str, ...] | None = None
    bucket_size: int = 25_000_000
    reduce: Reduce | None = None
    gather: Gather | None = None
    prefetch: int | None = None
    gather_limit: int | None = None
    reduce_dtype: torch.dtype | None = None

    def __post_init__(self) -> None:
        """Check the fields."""
        check_count("replicate bucket_size", self.bucket_size)
        if self.zero not in (0, 1, 2, 3):
            raise ValueError(f"replicate zero must be 0, 1, 2 or 3, got {self.zero!r}")
        if self.reduce not in (None, "last", "each"):
            raise ValueError(f"replicate reduce must be 'last' or 'each', got {self.reduce!r}")
        self._check_axes()
        self._check_gather()
        check_dtype("replicate reduce_dtype", self.reduce_dtype)

    def _check_axes(self) -> None:
        axes = self.axes()
        if not axes or len(set(axes)) < len(axes):
            raise ValueError(f"replicate axis must be one or more distinct axes, got {self.axis!r}")
        if self.shard is None:
            return
        if self.zero == 0:
            raise ValueError(
                f"replicate shard={self.shard!r} has no effect with zero=0, which shards nothing"
            )
        shard = _names(self.shard)
        if not shard or len(set(shard)) < len(shard) or not set(shard) <= set(axes):
            raise ValueError(
                f"replicate shard must be one or more distinct axes of {axes}, got {self.shard!r}"
            )

    def _check_gather(self) -> None:
        if self.gather not in (None, "each", "group", "step"):
            raise ValueError(
                f"replicate gather must be 'each', 'group' or 'step', got {self.gather!r}"
            )
        prefetch: object = self.prefetch
        if prefetch is not None and (type(prefetch) is not int or prefetch < 0):
            raise ValueError(f"replicate prefetch must be an int of at least 0, got {prefetch!r}")
        if self.gather_limit is not None:
            check_count("replicate gather_limit", self.gather_limit)
        for option in ("gather", "prefetch", "gather_limit"):
            if getattr(self, option) is not None and not self._gathers:
                raise ValueError(
                    f"replicate {option}={getattr(self, option)!r} has no effect with "
                    f"zero={self.zero}, expected zero=3, which gathers states for each use, or "
                    "zero=1 or 2 with gather='step'"
                )

    @property
    def _gathers(self) -> bool:
        """Whether states are whole only while something uses them."""
        return self.zero == 3 or (self.zero > 0 and self.gather == "step")

    @property
    def policy(self) -> Reduce:
        """When gradients are summed: as said, else by the ZeRO stage."""
        return self.reduce or ("each" if self.zero > 1 else "last")

    def op(self) -> str:
        """See `Directive`."""
        axes = ", ".join(quoted(axis) for axis in self.axes())
        text = (
            f"piper.do.replicate <all> axes = [{axes}] zero = {self.zero} "
            f"bucket = {self.bucket_size} reduce = {quoted(self.policy)}"
        )
        if self.reduce_dtype is not None:
            text += f" dtype = {element_name(self.reduce_dtype)}"
        if self.shard is not None:
            text += f" shard = [{', '.join(quoted(axis) for axis in _names(self.shard))}]"
        if self._gathers:
            prefetch = 1 if self.prefetch is None else self.prefetch
            text += f" gather = {quoted(self.gather or 'group')} prefetch = {prefetch}"
        if self.gather_limit is not None:
            text += f" limit = {self.gather_limit}"
        return text

    def axes(self) -> tuple[str, ...]:
        """See `Directive`."""
        return _names(self.axis)

    def facts(self) -> Mapping[str, object]:
        """See `Directive`."""
        options = ("zero", "shard", "bucket_size", "reduce", "gather", "prefetch", "gather_limit")
        where = self.axis if isinstance(self.axis, str) else self.axes()
        return {
            f"{option} on {where!r}": getattr(self, option) for option in (*options, "reduce_dtype")
        }

    def check_mesh(self, mesh: Mesh) -> None:
        """See `Directive`."""
        for name in self.axes():
            axis = mesh[name]
            if axis.role != "manual":
                raise self.error(f"axis must be manual, got {axis.name!r}, which is {axis.role}")


def replicate(
    *,
    axis: str | Sequence[str] = "dp",
    zero: int = 0,
    shard: str | Sequence[str] | None = None,
    bucket_size: int = 25_000_000,
    reduce: Reduce | None = None,
    gather: Gather | None = None,
    prefetch: int | None = None,
    gather_limit: int | None = None,
    reduce_dtype: torch.dtype | None = None,
) -> Replicate:
    """Replicate the states along `axis` and sum their gradients over it; see `Replicate`."""
    return Replicate(
        _frozen(axis),
        zero,
        None if shard is None else _frozen(shard),
        bucket_size,
        reduce,
        gather,
        prefetch,
        gather_limit,
        reduce_dtype,
    )


def _frozen(axes: str | Sequence[str]) -> str | tuple[str, ...]:
    return axes if isinstance(axes, str) else tuple(axes)


def _names(axes: str | tuple[str, ...]) -> tuple[str, ...]:
    return (axes,) if isinstance(axes, str) else axes
