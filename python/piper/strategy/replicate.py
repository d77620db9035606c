"""replicate: data parallelism along a manual axis."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch

from piper.strategy.directive import Directive, check_count
from piper.strategy.mesh import Mesh
from piper.strategy.text import element_name, quoted


@dataclass(frozen=True, repr=False)
class Replicate(Directive):
    """Each rank along `axis` computes on its own part of the batch, with the same states.

    Gradients are summed over the axis once, after the last microbatch (`reduce="last"`), in
    `reduce_dtype` (None: the gradient's own) and in buckets of at most `bucket_size` bytes; a larger
    state is a bucket of its own.

    Raises:
        ValueError: an option outside its range.
        NotImplementedError: `zero` or `reduce` that exists but has no effect yet.
    """

    axis: str = "dp"
    zero: int = 0
    bucket_size: int = 25_000_000
    reduce: Literal["last"] = "last"
    reduce_dtype: torch.dtype | None = None

    def __post_init__(self) -> None:
        """Check the fields."""
        check_count("replicate bucket_size", self.bucket_size)
        if self.zero not in (0, 1, 2, 3):
            raise ValueError(f"replicate zero must be 0, 1, 2 or 3, got {self.zero!r}")
        if self.zero != 0:
            raise NotImplementedError(f"replicate zero={self.zero} is not implemented yet, use 0")
        reduce: str = self.reduce
        if reduce == "each":
            raise NotImplementedError("replicate reduce='each' is not implemented yet, use 'last'")
        if reduce != "last":
            raise ValueError(f"replicate reduce must be 'last' or 'each', got {reduce!r}")
        dtype = self.reduce_dtype
        if dtype is not None and not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
            raise ValueError(
                f"replicate reduce_dtype must be a floating-point dtype or None, got {dtype!r}"
            )

    def op(self) -> str:
        """See `Directive`."""
        dtype = "" if self.reduce_dtype is None else f" dtype = {element_name(self.reduce_dtype)}"
        return (
            f"piper.do.replicate <all> axes = [{quoted(self.axis)}] zero = {self.zero} "
            f"bucket = {self.bucket_size} reduce = {quoted(self.reduce)}{dtype}"
        )

    def axes(self) -> tuple[str, ...]:
        """See `Directive`."""
        return (self.axis,)

    def facts(self) -> Mapping[str, object]:
        """See `Directive`."""
        options = ("zero", "bucket_size", "reduce", "reduce_dtype")
        return {f"{option} on {self.axis!r}": getattr(self, option) for option in options}

    def check_mesh(self, mesh: Mesh) -> None:
        """See `Directive`."""
        axis = mesh[self.axis]
        if axis.role != "manual":
            raise self.error(f"axis must be manual, got {axis.name!r}, which is {axis.role}")


def replicate(
    *,
    axis: str = "dp",
    zero: int = 0,
    bucket_size: int = 25_000_000,
    reduce: Literal["last"] = "last",
    reduce_dtype: torch.dtype | None = None,
) -> Replicate:
    """Replicate the states along `axis` and sum their gradients over it; see `Replicate`."""
    return Replicate(axis, zero, bucket_size, reduce, reduce_dtype)
