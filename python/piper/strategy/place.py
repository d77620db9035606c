"""place: which part of the model each pipeline coordinate holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, get_args

from piper.schedules import Homes, Placement
from piper.strategy.directive import Directive, check_count
from piper.strategy.layout import check_chunks, parse_layout
from piper.strategy.mesh import Mesh
from piper.strategy.text import quoted

_RIGHT: Final = (
    f"{', '.join(map(repr, get_args(Placement)))}, the coordinate of each stage or a Homes"
)


@dataclass(frozen=True, repr=False)
class Place(Directive):
    """Cut the model into stages and put them on the coordinates of an unrolled axis.

    `stages` is how many, cut so that their FLOPs are even, or how many chunks each has, in order.
    Instead of it, `layout` spells out the stages, in Megatron's notation with the user's own
    `letters`, which stand for the tags of `annotate`:
    `layout="Et*3|(tt|)*2tL", letters={"E": "embed", "t": "layer", "L": "head"}` makes four stages
    of 4, 2, 2 and 2 chunks. `|` ends a stage, `x*n` and `(...)*n` repeat, commas have no meaning.

    `coordinates` says where each stage runs:

    - "each": stage i on coordinate i; as many stages as coordinates
    - "loop": stage i on coordinate i mod size; a multiple of the size
    - "v": there and back, 0 1 1 0; a multiple of the size
    - "bidirectional": as "each" for the first half of the microbatches, in the opposite direction
      for the second (DualPipe); as many stages as coordinates, both even
    - the coordinate of each stage; all coordinates of the axis must occur
    - a `Homes`, which may differ by microbatch

    Left out, it is the placement of the schedule that `order` names, and "each" otherwise: a table
    or function of the user's own says what runs on each coordinate but not which stages belong
    there, so that a slip in it is found instead of followed.

    Raises:
        ValueError: no stage, a stage of no chunk, a layout that is not one, or coordinates that
            cannot be those of any axis.
        TypeError: both or neither of stages and layout, or one of layout and letters.
    """

    stages: int | Sequence[int] | None = None
    axis: str = "pp"
    coordinates: Placement | Sequence[int] | Homes | None = None
    layout: str | None = None
    letters: Mapping[str, str] | None = None

    def __post_init__(self) -> None:
        """Check the fields."""
        if (self.stages is None) == (self.layout is None):
            raise TypeError("place must have either stages or layout, got both or neither")
        if (self.layout is None) != (self.letters is None):
            raise TypeError("place must have layout and letters together, got one of them")
        if self.letters is not None:
            object.__setattr__(self, "letters", dict(self.letters))
            _ = self.tags
        self._check_stages()
        self._check_coordinates()

    def _check_stages(self) -> None:
        if isinstance(self.stages, Sequence):
            object.__setattr__(self, "stages", tuple(self.stages))
            for stage, count in enumerate(self.stages):
                check_count(f"place stages: the number of chunks of stage {stage}", count)
        elif self.stages is not None:
            check_count("place stages", self.stages)
        check_count("place stages: their number", self.num_stages)

    def _check_coordinates(self) -> None:
        given = self.coordinates
        if given is None:
            return
        if isinstance(given, str):
            _check_word(given)
            return
        homes = given if isinstance(given, Homes) else _listed(given)
        if homes.stages != self.num_stages:
            raise ValueError(
                f"place coordinates must have one coordinate for each of {self.num_stages} stages, "
                f"got {given!r}"
            )
        if not isinstance(given, Homes):
            object.__setattr__(self, "coordinates", tuple(given))

    @property
    def tags(self) -> tuple[tuple[str, ...], ...] | None:
        """The tags of the chunks of each stage, where there is a layout."""
        if self.layout is None:
            return None
        try:
            return parse_layout(self.layout, self.letters or {})
        except ValueError as fault:
            raise ValueError(f"place {fault}") from None

    @property
    def sizes(self) -> tuple[int, ...] | None:
        """How many chunks each stage has, where that is said."""
        if self.tags is not None:
            return tuple(map(len, self.tags))
        return None if self.stages is None or isinstance(self.stages, int) else tuple(self.stages)

    @property
    def num_stages(self) -> int:
        """How many stages there are."""
        return self.stages if isinstance(self.stages, int) else len(self.sizes or ())

    def homes(self, size: int, microbatches: int) -> Homes:
        """Where each stage runs; where that is left out, one stage on each coordinate.

        Args:
            size: that of the axis.
            microbatches: how many there are.

        Raises:
            ValueError: coordinates that do not fit these numbers.
        """
        if self.coordinates is None and self.num_stages != size:
            raise self.error(
                f"stages must equal the size of axis {self.axis!r}, one stage per coordinate, where "
                f"coordinates are left out, got {self.num_stages} stages and size {size}: "
                "coordinates may be 'loop', 'v' or a list"
            )
        homes = self._homes(size, microbatches)
        if homes.ranks != size:
            raise self.error(
                f"coordinates must be all those below {size}, the size of axis {self.axis!r}, "
                f"got {homes}"
            )
        if homes.microbatches not in (None, microbatches):
            raise self.error(
                f"coordinates must be for {microbatches} microbatches, got {homes.microbatches}"
            )
        return homes

    def _homes(self, size: int, microbatches: int) -> Homes:
        given = self.coordinates or "each"
        if isinstance(given, Homes):
            return given
        if not isinstance(given, str):
            return Homes.listed(given)
        try:
            return Homes.named(given, ranks=size, stages=self.num_stages, microbatches=microbatches)
        except ValueError as fault:
            raise self.error(f"on axis {self.axis!r}: {fault}") from None

    def check_chunks(self, chunks: Sequence[str]) -> None:
        """Check that a layout places each chunk of the model, so that none is lost.

        Args:
            chunks: the names of all chunks in forward order, such as `layer.0`.

        Raises:
            ValueError: a tag of which there are more or fewer chunks, or one in another order.
        """
        if self.tags is None:
            return
        try:
            check_chunks(self.tags, chunks)
        except ValueError as fault:
            raise self.error(str(fault)) from None

    def op(self) -> str:
        """See `Directive`; a strategy has put what it knows of sizes and coordinates."""
        assert self.coordinates in (None, "each") or not isinstance(self.coordinates, str)
        sizes = "" if self.sizes is None else f" sizes {list(self.sizes)}"
        axis = quoted(self.axis)
        stages = f"stages = {self.num_stages} axis = {axis}"
        return f"piper.do.place <all> {stages}{sizes}{_placed(self.coordinates)}"

    def axes(self) -> tuple[str, ...]:
        """See `Directive`."""
        return (self.axis,)

    def facts(self) -> Mapping[str, object]:
        """See `Directive`; coordinates are compared by the strategy, which knows the axis."""
        said = {
            "number of stages": self.num_stages,
            "sizes of stages": self.sizes,
            "layout": self.tags,
        }
        return {f"{what} on {self.axis!r}": v for what, v in said.items() if v is not None}

    def check_mesh(self, mesh: Mesh) -> None:
        """See `Directive`."""
        axis = mesh[self.axis]
        if axis.role != "unrolled":
            raise self.error(f"axis must be unrolled, got {axis.name!r}, which is {axis.role}")


def _check_word(word: str) -> None:
    if word not in get_args(Placement):
        raise ValueError(f"place coordinates must be {_RIGHT}, got {word!r}")


def _listed(coordinates: Sequence[int]) -> Homes:
    if not isinstance(coordinates, Sequence):
        raise TypeError(f"place coordinates must be {_RIGHT}, got {coordinates!r}")
    try:
        return Homes.listed(coordinates)
    except ValueError as fault:
        raise ValueError(f"place coordinates: {fault}") from None


def _placed(coordinates: Placement | Sequence[int] | Homes | None) -> str:
    """The clause of the op that says where stages are; none for one on each coordinate."""
    if coordinates is None or isinstance(coordinates, str):
        return ""
    homes = coordinates if isinstance(coordinates, Homes) else Homes.listed(coordinates)
    rows = [list(row) for row in homes.rows]
    if len(rows) > 1:
        return f" homes {rows}"
    return "" if homes == Homes.each(homes.stages) else f" coordinates {rows[0]}"


def place(
    *,
    stages: int | Sequence[int] | None = None,
    axis: str = "pp",
    coordinates: Placement | Sequence[int] | Homes | None = None,
    layout: str | None = None,
    letters: Mapping[str, str] | None = None,
) -> Place:
    """Cut the model into stages and put them on the coordinates of `axis`; see `Place`."""
    return Place(stages, axis, coordinates, layout, letters)
