"""place: which part of the model each pipeline coordinate holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from piper.strategy.directive import Directive, check_count
from piper.strategy.mesh import Mesh
from piper.strategy.text import quoted


@dataclass(frozen=True, repr=False)
class Place(Directive):
    """Cut the model into stages and put one on each coordinate of an unrolled axis.

    `stages` is how many, cut so that their FLOPs are even, or how many chunks each has, in order.
    `coordinates` is "each", stage i on coordinate i, or the coordinate of each stage.

    Raises:
        ValueError: no stage, a stage of no chunk, or coordinates that are not a permutation.
    """

    stages: int | Sequence[int]
    axis: str = "pp"
    coordinates: Literal["each"] | Sequence[int] = "each"

    def __post_init__(self) -> None:
        """Check the fields."""
        if isinstance(self.stages, Sequence):
            object.__setattr__(self, "stages", tuple(self.stages))
            for stage, count in enumerate(self.stages):
                check_count(f"place stages: the number of chunks of stage {stage}", count)
        else:
            check_count("place stages", self.stages)
        check_count("place stages: their number", self.num_stages)
        if self.coordinates == "each":
            return
        given = self.coordinates
        if not isinstance(given, Sequence) or set(given) != set(range(len(given))):
            raise ValueError(
                f"place coordinates must be 'each' or a permutation of 0, 1, ..., got {given!r}"
            )
        if len(given) != self.num_stages:
            raise ValueError(
                f"place coordinates must have one coordinate for each of {self.num_stages} stages, "
                f"got {given!r}"
            )
        object.__setattr__(self, "coordinates", tuple(given))

    @property
    def num_stages(self) -> int:
        """How many stages there are."""
        return self.stages if isinstance(self.stages, int) else len(self.stages)

    @property
    def homes(self) -> tuple[int, ...]:
        """The coordinate of each stage."""
        if isinstance(self.coordinates, str):
            return tuple(range(self.num_stages))
        return tuple(self.coordinates)

    def op(self) -> str:
        """See `Directive`."""
        sizes = "" if isinstance(self.stages, int) else f" sizes {list(self.stages)}"
        placed = "" if self.coordinates == "each" else f" coordinates {list(self.homes)}"
        axis = quoted(self.axis)
        return f"piper.do.place <all> stages = {self.num_stages} axis = {axis}{sizes}{placed}"

    def axes(self) -> tuple[str, ...]:
        """See `Directive`."""
        return (self.axis,)

    def facts(self) -> Mapping[str, object]:
        """See `Directive`."""
        return {
            f"stages on {self.axis!r}": self.stages,
            f"coordinates of {self.axis!r}": self.homes,
        }

    def check_mesh(self, mesh: Mesh) -> None:
        """See `Directive`."""
        axis = mesh[self.axis]
        if axis.role != "unrolled":
            raise self.error(f"axis must be unrolled, got {axis.name!r}, which is {axis.role}")
        if self.num_stages != axis.size:
            raise self.error(
                f"stages must equal the size of axis {axis.name!r}, one stage per coordinate, "
                f"got {self.num_stages} stages and size {axis.size}"
            )


def place(
    *,
    stages: int | Sequence[int],
    axis: str = "pp",
    coordinates: Literal["each"] | Sequence[int] = "each",
) -> Place:
    """Cut the model into stages, one per coordinate of `axis`; see `Place`."""
    return Place(stages, axis, coordinates)
