"""What sums of squares must be, once ranks have added up theirs."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from torch import Tensor

from piper_runtime import compute
from piper_runtime.checking.known import Known
from piper_runtime.checking.oracle import Expected
from piper_runtime.checking.places import Places
from piper_runtime.manifest import BucketSpec, Manifest
from piper_runtime.mesh import CommSpec

__all__ = ["expected_squares"]


def expected_squares(
    known: Known,
    comm: CommSpec,
    like: Tensor,
    *,
    expected: Expected,
    manifest: Manifest,
    places: Places,
    rank: int,
) -> Tensor | None:
    """Return the sum of squares that is ``known`` at a rank over the axes and coordinates of the
    reductions so far, of which ``comm`` is the last; None where nothing can be said.

    Ranks of one coordinate add up their own buckets. Over all coordinates those are all buckets of
    one layout: gradients that ranks share out otherwise are added up apart.
    """
    if not set(known.cut) <= known.axes or known.squares is None:
        return None
    place = places.of(rank)
    specs = [spec for spec in manifest.buckets if spec.name in known.squares]
    if known.coordinates == set(range(manifest.mesh.num_coordinates)):
        trained = [
            spec
            for spec in manifest.buckets
            if expected.gradient(spec.name, place=place) is not None
        ]
        layouts = {_layout(spec) for spec in specs} or _absent_layouts(
            trained, comm, manifest.mesh.coordinate(rank)
        )
        specs = [spec for spec in trained if _layout(spec) in layouts]
        if len(layouts) != 1:
            return None
    elif len(known.coordinates) > 1:
        return None
    if len(specs) < len(known.squares):  # one is not that of a bucket
        return None
    found = list(_squared(specs, known.axes, expected, places, place))
    return compute.sumsq(like.dtype, like.device, *found)


def _layout(spec: BucketSpec) -> tuple[tuple[str, ...], tuple[str, ...]]:
    return spec.shard_axes, spec.varying_axes


def _absent_layouts(
    trained: Iterable[BucketSpec], comm: CommSpec, coordinate: int
) -> set[tuple[tuple[str, ...], tuple[str, ...]]]:
    """Return the layouts that a coordinate means which adds nothing: its communicator's axes are
    theirs, and it has no bucket of them. A bucket counts at its first holder only.
    """
    here = {_layout(spec) for spec in trained if spec.holders[0] == coordinate}
    axes = set(comm.axes)
    return {
        _layout(spec) for spec in trained if {*spec.shard_axes, *spec.varying_axes} == axes
    } - here


def _squared(
    specs: Iterable[BucketSpec],
    axes: Collection[str],
    expected: Expected,
    places: Places,
    place: int,
) -> Iterable[Tensor]:
    """Yield each gradient once: the local ones of all places along its varying axes, if ranks
    there have been added up, else of this place.
    """
    for spec in specs:
        along = [axis for axis in spec.varying_axes if axis in axes]
        for other in places.group(place, along):
            gradient = expected.gradient(spec.name, place=other)
            if gradient is not None:
                yield gradient
