"""shard: ranks share out states by themselves along an axis, such as experts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from piper.strategy.directive import Directive
from piper.strategy.mesh import Mesh
from piper.strategy.text import number, quoted


@dataclass(frozen=True, repr=False)
class Shard(Directive):
    """Each rank along `axis` holds an equal part, along `dim`, of the states that `states` matches.

    `states` is a glob over names, such as `"*.experts.*"`. Of experts (expert parallelism: Lepikhin
    et al., 2021, "GShard") these are the weights, with an expert per index of dim 0: rows go to the
    rank that has their expert, and back, by an all_to_all each. The axis is a factor of the data
    axes: its ranks have different batches, so `replicate` names it, too. There, states that no
    shard matches are replicated along it. ZeRO shares the parts out further along the other axes.

    How many rows a rank gets depends on data. None is ever dropped: with `capacity=None` memory is
    planned for the worst case, in which all rows of all ranks along the axis come to one. Else it
    is planned for `capacity` times the rows that a rank sends, which is what it gets if all experts
    are used alike, and more rows are an error that ends the step.

    Along an auto axis (tensor parallelism) ranks compute with parts of any weights. They need not
    divide the dim: the last parts then have padding, which is seen by no one.

    Raises:
        ValueError: an empty pattern, a negative dim, or a capacity below 1.
    """

    states: str
    axis: str
    dim: int = 0
    capacity: float | None = None

    def __post_init__(self) -> None:
        """Check the fields."""
        for what in ("states", "axis"):
            value: object = getattr(self, what)
            if not isinstance(value, str) or not value:
                kind = "a glob over names of states" if what == "states" else "a mesh axis"
                raise ValueError(f"shard {what} must be {kind}, got {value!r}")
        if type(self.dim) is not int or self.dim < 0:
            raise ValueError(f"shard dim must be an int of at least 0, got {self.dim!r}")
        self._check_capacity(self.capacity)

    @staticmethod
    def _check_capacity(capacity: object) -> None:
        if capacity is None:
            return
        is_number = isinstance(capacity, int | float) and not isinstance(capacity, bool)
        if not is_number or not 1 <= capacity < math.inf:  # type: ignore[operator]
            raise ValueError(
                "shard capacity must be a finite number of at least 1, how often a rank has room "
                f"for the rows that it sends, or None for all there are, got {capacity!r}"
            )

    def op(self) -> str:
        """See `Directive`."""
        text = (
            f"piper.do.shard <state = {quoted(self.states)}> axis = {quoted(self.axis)} "
            f"dim = {self.dim}"
        )
        if self.capacity is not None:
            text += f" capacity = {number(self.capacity)}"
        return text

    def axes(self) -> tuple[str, ...]:
        """See `Directive`."""
        return (self.axis,)

    def facts(self) -> Mapping[str, object]:
        """See `Directive`; of patterns that overlap the compiler finds conflicts by state."""
        return {
            f"axis and dim of {self.states!r}": (self.axis, self.dim),
            f"capacity of {self.states!r}": self.capacity,
        }

    def check_mesh(self, mesh: Mesh) -> None:
        """See `Directive`."""
        axis = mesh[self.axis]
        if axis.role == "unrolled":
            raise self.error(
                f"axis must be manual or auto, got {axis.name!r}, which is {axis.role}"
            )


def shard(states: str, *, axis: str, dim: int = 0, capacity: float | None = None) -> Shard:
    """Let ranks along `axis` share out states by themselves; see `Shard`."""
    return Shard(states, axis, dim, capacity)
