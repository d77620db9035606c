"""Where the ranks of a communicator are: how many in each node.

A world rank is the row-major index of its mesh coordinates, outermost axis first, and launchers give
a node consecutive ranks: with n ranks to a node, node i has ranks i * n up to (i + 1) * n.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from piper_runtime.mesh import CommSpec, Mesh

__all__ = ["message_crosses", "spreads"]

Ranks = NDArray[np.int64]


@lru_cache(maxsize=1024)
def spreads(mesh: Mesh, comm: CommSpec, node: int) -> tuple[tuple[int, ...], ...]:
    """How the groups of a communicator lie on nodes of `node` ranks, each way once.

    A way has the number of members in every node that has some, in ascending order: `(8, 8)` are
    sixteen members in two nodes.
    """
    groups = _ranks(mesh, comm.coordinates, comm.axes) // node
    ways: dict[tuple[int, ...], None] = {}
    for group in np.unique(np.sort(groups, axis=1), axis=0):
        counts = np.unique(group, return_counts=True)[1]
        ways[tuple(sorted(counts.tolist()))] = None
    return tuple(ways)


@lru_cache(maxsize=1024)
def message_crosses(mesh: Mesh, ends: tuple[int, int], node: int) -> bool:
    """Whether a message between two coordinates leaves its node, for any of the ranks there.

    A rank at one coordinate talks to that at the other which agrees with it on all other axes.
    """
    pairs = _ranks(mesh, ends, ()) // node
    return bool(np.any(pairs[:, 0] != pairs[:, -1]))


def _ranks(mesh: Mesh, coordinates: Iterable[int], axes: Iterable[str]) -> Ranks:
    """World ranks: a row per group, a column per member."""
    numbers = range(len(mesh.axes))
    unrolled = [i for i in numbers if mesh.axes[i].role == "unrolled"]
    spanned = [i for i in numbers if i not in unrolled and mesh.axes[i].name in set(axes)]
    outer = [i for i in numbers if i not in unrolled and i not in spanned]
    ranks = np.arange(mesh.world_size).reshape([axis.size for axis in mesh.axes])
    groups, members = (mesh.size(mesh.axes[i].name for i in part) for part in (outer, spanned))
    by_place = ranks.transpose([*outer, *unrolled, *spanned])
    by_place = by_place.reshape(groups, mesh.num_coordinates, members)
    return by_place[:, list(coordinates)].reshape(groups, -1)
