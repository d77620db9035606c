"""A strategy: a mesh and the directives that say how to use it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import TYPE_CHECKING, TypeVar

from piper_runtime.inputs.batch import SequenceSpec

from piper.schedules import Homes, Table, halve_pairs
from piper.strategy.annotate import Annotate
from piper.strategy.directive import Directive
from piper.strategy.location import SourceLocation
from piper.strategy.mesh import Axis, Mesh
from piper.strategy.order import Order
from piper.strategy.overlap import Overlap
from piper.strategy.place import Place
from piper.strategy.replicate import Replicate
from piper.strategy.sequence import Sequence as SharedSequence
from piper.strategy.shard import Shard
from piper.strategy.split import Split
from piper.strategy.text import quoted
from piper.strategy.update import Update

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

D = TypeVar("D", bound=Directive)


@dataclass(frozen=True, init=False, repr=False)
class Strategy:
    """How to run a training step on a mesh. Everything wrong with it is found when it is made.

    The order of directives has no meaning, but for user passes at one point, which run in it. Two
    directives may repeat a fact, but not contradict it.

    Args:
        mesh: axis sizes by name, outermost first, or a torch DeviceMesh; ranks are row-major.
        directives: what `annotate`, `split`, `place`, `replicate`, `sequence`, `shard`, `remat`,
            `order`, `overlap`, `update`, `stream` and `user_pass` return.

    Raises:
        ValueError: names the directive, where it was written, and what would be right.
        TypeError: an entry of `directives` that is not one.
    """

    mesh: Mesh
    directives: tuple[Directive, ...]
    source: SourceLocation

    def __init__(
        self, mesh: Mesh | Mapping[str, int] | DeviceMesh, directives: Iterable[Directive]
    ) -> None:
        """Check everything; see the class."""
        object.__setattr__(self, "source", SourceLocation.of_caller())
        object.__setattr__(self, "mesh", Mesh.of(mesh))
        object.__setattr__(self, "directives", tuple(directives))
        self._check_directives()
        self._check_conflicts()
        self._check_placements()
        self._check_shards()
        self._check_sequences()
        self._check_axes_are_used()
        self._check_order()

    def all(self, kind: type[D]) -> tuple[D, ...]:
        """The directives of one kind, in the order given."""
        return tuple(d for d in self.directives if isinstance(d, kind))

    def first(self, kind: type[D]) -> D | None:
        """The first directive of one kind, which others of that kind do not contradict."""
        return next(iter(self.all(kind)), None)

    @property
    def tags(self) -> dict[str, str]:
        """Module path pattern -> tag, of all annotate directives."""
        return {k: v for directive in self.all(Annotate) for k, v in directive.tags.items()}

    @property
    def microbatches(self) -> int:
        """How many microbatches a step has; 1 without a split."""
        split = self.first(Split)
        return 1 if split is None else split.microbatches

    @property
    def dims(self) -> dict[str, int | None]:
        """Declared batch dim by input name, None for an input that is not split."""
        return {k: v for directive in self.all(Split) for k, v in (directive.dims or {}).items()}

    @cached_property
    def homes(self) -> Homes:
        """Where each stage runs: as a place says, else as a named order does, else one on each
        coordinate; one stage, on coordinate 0, without a place.
        """
        place = self.first(Place)
        if place is None:
            return Homes.each(1)
        size = self.mesh[place.axis].size
        place = next((p for p in self.all(Place) if p.coordinates is not None), place)
        order = self.first(Order)
        if place.coordinates is None and order is not None and order.named is not None:
            return order.homes(size, self.num_stages, self.microbatches)
        return place.homes(size, self.microbatches)

    @property
    def num_stages(self) -> int:
        """How many stages there are."""
        place = self.first(Place)
        return 1 if place is None else place.num_stages

    @property
    def _stages(self) -> int | tuple[int, ...]:
        """The chunks of each stage where any place says them, else how many stages there are."""
        sizes = (place.sizes for place in self.all(Place) if place.sizes is not None)
        return next(sizes, self.num_stages)

    @property
    def num_data_shards(self) -> int:
        """How many parts the batch has: the product of the sizes of all replicate axes, but for
        those along which ranks have parts of the same sequences.
        """
        return prod(self.mesh[name].size for name in self.data_axes)

    @property
    def data_axes(self) -> tuple[str, ...]:
        """The axes along which ranks have batches of their own, outermost first."""
        names = {axis for directive in self.all(Replicate) for axis in directive.axes()}
        names -= {directive.axis for directive in self.all(SharedSequence)}
        return tuple(name for name in self.mesh.names if name in names)

    @property
    def sequence(self) -> SequenceSpec | None:
        """How ranks get parts of the sequences of batch inputs, or None."""
        found = (d for d in self.all(SharedSequence) if self.mesh[d.axis].role == "manual")
        first = next(found, None)
        if first is None:
            return None
        return SequenceSpec(first.axis, first.dims, self.mesh[first.axis].size)

    @cached_property
    def table(self) -> Table:
        """The schedule without idle cells: row c is for coordinate c; 1F1B where none is given.

        Backwards of pairs are in halves if an overlap has the pieces of halves.
        """
        order = self.first(Order) or Order("1F1B", source=self.source)
        table = order.table(self.homes, self.microbatches)
        return halve_pairs(table) if any(map(Overlap.halves, self.all(Overlap))) else table

    @property
    def update(self) -> Update | None:
        """The update, or None for steps that only compute gradients."""
        return self.first(Update)

    def ir(self, dims: Mapping[str, int | None] | None = None) -> str:
        """The strategy as MLIR: mesh, schedule and ``piper.strategy``, with source locations.

        `dims` completes the batch dims that the split leaves to the batch.
        """
        lines = [
            f"  {self._resolved(directive, dims).op()} {directive.source.ir()}"
            for directive in self.directives
        ]
        table = self._schedule_ir() if self.first(Order) else []
        return "\n".join(
            [
                f"{self.mesh.ir()} {self.source.ir()}",
                *table,
                "piper.strategy @strategy mesh = @mesh {",
                *lines,
                f"}} {self.source.ir()}",
            ]
        )

    def check_chunks(self, chunks: Sequence[str]) -> None:
        """Check that the layout of a place has each chunk of the model, so that none is lost.

        Args:
            chunks: the names of all chunks in forward order, such as `layer.0`.

        Raises:
            ValueError: a tag of which there are more or fewer chunks, or one in another order.
        """
        for place in self.all(Place):
            place.check_chunks(chunks)

    def _resolved(self, directive: Directive, dims: Mapping[str, int | None] | None) -> Directive:
        """The directive with what others, the mesh and the batch say of it."""
        if isinstance(directive, Place):
            stages = directive.stages if directive.stages is None else self._stages
            return replace(directive, stages=stages, coordinates=self.homes)
        if dims is None or not isinstance(directive, Split):
            return directive
        return replace(directive, dims=dims)

    def _schedule_ir(self) -> list[str]:
        order = self.first(Order)
        assert order is not None
        axis = next((axis.name for axis in self.mesh.unrolled), "")
        rows = ", ".join(quoted(line) for line in self.table.lines())
        shape = f"stages = {self.num_stages} microbatches = {self.microbatches}"
        return [
            f"piper.schedule @order axis = {quoted(axis)} {shape} [{rows}] {order.source.ir()}",
        ]

    def __str__(self) -> str:
        """The strategy as MLIR."""
        return self.ir()

    def _check_directives(self) -> None:
        for index, directive in enumerate(self.directives):
            if not isinstance(directive, Directive):
                raise TypeError(
                    f"{self.source}: directives[{index}] must be made by annotate, split, place, "
                    "replicate, sequence, shard, remat, order, overlap, update, stream or user_pass, "
                    f"got {directive!r}"
                )
            for axis in directive.axes():
                if axis not in self.mesh.names:
                    known = ", ".join(self.mesh.names) or "no axis"
                    raise directive.error(f"axis {axis!r} is not in the mesh, which has {known}")
            directive.check_mesh(self.mesh)

    def _check_conflicts(self) -> None:
        """Two directives of one kind that set the same fact must agree on it."""
        known: dict[tuple[str, str], tuple[object, Directive]] = {}
        for directive in self.directives:
            for fact, value in directive.facts().items():
                other, setter = known.setdefault((directive.keyword(), fact), (value, directive))
                if other != value:
                    raise directive.error(
                        f"sets the {fact} to {value!r}, but {setter.source} sets it to {other!r}"
                    )

    def _check_placements(self) -> None:
        """Places that say where stages run must agree, however they say it."""
        first: tuple[Homes, Place] | None = None
        for place in self.all(Place):
            if place.coordinates is None:
                continue
            homes = place.homes(self.mesh[place.axis].size, self.microbatches)
            known, setter = first = first or (homes, place)
            if known != homes:
                raise place.error(
                    f"sets the coordinates of {place.axis!r} to {homes}, but {setter.source} sets "
                    f"it to {known}"
                )

    def _check_shards(self) -> None:
        """Ranks that share out states have batches of their own: the axis is a data axis."""
        data = {axis for replicate in self.all(Replicate) for axis in replicate.axes()}
        for shard in self.all(Shard):
            if shard.axis not in data and self.mesh[shard.axis].role == "manual":
                axes = tuple(axis.name for axis in self.mesh.manual if axis.name in data)
                wanted = tuple(dict.fromkeys((*axes, shard.axis)))
                raise shard.error(
                    f"axis {shard.axis!r} must be one along which ranks have batches of their own, "
                    f"expected replicate(axis={wanted if len(wanted) > 1 else shard.axis!r})"
                )

    def _check_sequences(self) -> None:
        """Ranks that have parts of sequences sum gradients; along tp they share out products."""
        data = {axis for replicate in self.all(Replicate) for axis in replicate.axes()}
        shared = {shard.axis for shard in self.all(Shard)}
        manual: dict[str, SharedSequence] = {}
        for sequence in self.all(SharedSequence):
            axis = self.mesh[sequence.axis]
            if axis.role == "auto" and axis.name not in shared:
                raise sequence.error(
                    f"axis {axis.name!r} must be one along which ranks share out states, expected "
                    f"{_remedy(axis)} beside it"
                )
            if axis.role != "manual":
                continue
            if axis.name not in data:
                raise sequence.error(
                    f"axis {axis.name!r} must be one over which gradients are summed, expected "
                    f"replicate to name it, too, as in {_remedy(axis)}"
                )
            first = next(iter(manual), axis.name)
            if first != axis.name:
                raise sequence.error(
                    f"axis must be the one along which ranks have parts of sequences, {first!r} "
                    f"by {manual[first].source}, got {axis.name!r}"
                )
            manual[axis.name] = sequence

    def _check_axes_are_used(self) -> None:
        used = {axis for directive in self.directives for axis in directive.axes()}
        for axis in self.mesh.axes:
            if axis.size > 1 and axis.name not in used:
                raise ValueError(
                    f"{self.source}: mesh axis {axis.name!r} of size {axis.size} is used by no "
                    f"directive, expected {_remedy(axis)}"
                )

    def _check_order(self) -> None:
        if self.num_stages > 1 and self.first(Order) is None:
            raise ValueError(
                f"{self.source}: {self.num_stages} stages have no order, expected one such as "
                "order('1F1B')"
            )
        _ = self.table

    def __repr__(self) -> str:
        """The call that makes it."""
        mesh = {axis.name: axis.size for axis in self.mesh.axes}
        lines = "".join(f"    {directive!r},\n" for directive in self.directives)
        return f"Strategy(mesh={mesh!r}, directives=[\n{lines}])"


def _remedy(axis: Axis) -> str:
    if axis.role == "unrolled":
        return f"place(stages={axis.size}, axis={axis.name!r})"
    if axis.role == "auto":
        return f"shard('layers.*.weight', axis={axis.name!r})"
    return f"replicate(axis={axis.name!r})"
