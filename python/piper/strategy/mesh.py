"""The devices of a run as named axes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Literal

from piper.strategy.text import quoted

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

Role = Literal["unrolled", "manual", "auto"]

ROLES: Final[Mapping[str, Role]] = MappingProxyType(
    {
        "pp": "unrolled",
        "dp": "manual",
        "dp_replicate": "manual",
        "dp_shard": "manual",
        "edp": "manual",
        "ep": "manual",
        "cp": "manual",
        "tp": "auto",
    }
)
"""The axes known so far: pp has one program per coordinate, the others one for all their ranks.

Ranks along data axes have batches of their own. Those along tp have the same, and compute parts of
what ops make of it. Those along cp have parts of the same sequences.

The names of a data axis of two factors are TorchTitan's: dp_replicate and dp_shard for HSDP; with
experts, those of ep share out the experts of which edp holds copies.
"""

_PLANNED = ("sp",)


@dataclass(frozen=True)
class Axis:
    """One mesh axis. Raises ValueError for a name without a role, or a size below 1."""

    name: str
    size: int

    def __post_init__(self) -> None:
        """Check the fields."""
        if self.name not in ROLES:
            known = ", ".join(f"{name} ({role})" for name, role in ROLES.items())
            what = "is not implemented yet" if self.name in _PLANNED else "is unknown"
            raise ValueError(f"mesh axis {self.name!r} {what}, expected one of {known}")
        if type(self.size) is not int or self.size < 1:
            raise ValueError(
                f"mesh axis {self.name!r} must have an int size of at least 1, got {self.size!r}"
            )

    @property
    def role(self) -> Role:
        """How programs treat the axis."""
        return ROLES[self.name]


@dataclass(frozen=True)
class Mesh:
    """Named axes, outermost first; the world rank of a device is its row-major index."""

    axes: tuple[Axis, ...]

    @classmethod
    def of(cls, mesh: Mesh | Mapping[str, int] | DeviceMesh) -> Mesh:
        """A mesh from sizes by name, outermost first, or from a torch DeviceMesh.

        Raises:
            ValueError: axis unknown, size below 1, a DeviceMesh without names or out of rank order.
        """
        if isinstance(mesh, Mesh):
            return mesh
        if isinstance(mesh, Mapping):
            return cls(tuple(Axis(name, size) for name, size in mesh.items()))
        return cls._of_device_mesh(mesh)

    @classmethod
    def _of_device_mesh(cls, mesh: DeviceMesh) -> Mesh:
        names = getattr(mesh, "mesh_dim_names", None)
        if names is None:
            raise ValueError(
                f"mesh must be sizes by name or a DeviceMesh with mesh_dim_names, got {mesh!r}"
            )
        ranks = mesh.mesh.flatten().tolist()
        if ranks != list(range(len(ranks))):
            raise ValueError(f"mesh must hold all ranks in row-major order, got {ranks}")
        return cls(tuple(map(Axis, names, mesh.mesh.shape)))

    def __getitem__(self, name: str) -> Axis:
        """The axis of that name; KeyError if there is none."""
        for axis in self.axes:
            if axis.name == name:
                return axis
        raise KeyError(name)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all axes, outermost first."""
        return tuple(axis.name for axis in self.axes)

    @property
    def unrolled(self) -> tuple[Axis, ...]:
        """The axes with one program per coordinate, outermost first."""
        return tuple(axis for axis in self.axes if axis.role == "unrolled")

    @property
    def manual(self) -> tuple[Axis, ...]:
        """The axes whose ranks share one program and have values of their own, outermost first."""
        return tuple(axis for axis in self.axes if axis.role == "manual")

    @property
    def auto(self) -> tuple[Axis, ...]:
        """The axes whose ranks compute parts of the same values, outermost first."""
        return tuple(axis for axis in self.axes if axis.role == "auto")

    @property
    def num_coordinates(self) -> int:
        """How many distinct programs there are: the product of the unrolled sizes."""
        return math.prod(axis.size for axis in self.unrolled)

    @property
    def num_ranks(self) -> int:
        """How many devices there are: the product of all sizes."""
        return math.prod(axis.size for axis in self.axes)

    def indices(self, rank: int) -> dict[str, int]:
        """The index of a world rank along each axis; the inverse of row-major order.

        Raises:
            ValueError: rank outside the mesh.
        """
        if not 0 <= rank < self.num_ranks:
            raise ValueError(f"rank must be in 0..{self.num_ranks - 1} on mesh {self}, got {rank}")
        indices: dict[str, int] = {}
        for axis in reversed(self.axes):
            rank, indices[axis.name] = divmod(rank, axis.size)
        return {name: indices[name] for name in self.names}

    def check_world_size(self, world_size: int) -> None:
        """Check that as many processes run as the mesh has ranks.

        Raises:
            ValueError: says both numbers and how to launch.
        """
        if world_size != self.num_ranks:
            raise ValueError(
                f"mesh {self} needs {self.num_ranks} ranks, got a world of {world_size}: "
                f"launch with torchrun --nproc-per-node {self.num_ranks}, or change the mesh"
            )

    def ir(self) -> str:
        """The op that declares it, as text without its location."""
        axes = ", ".join(f"{quoted(axis.name)} = {axis.size} {axis.role}" for axis in self.axes)
        return f"piper.mesh @mesh [{axes}]"

    def __str__(self) -> str:
        """As on a command line: pp=2,dp=2."""
        return ",".join(f"{axis.name}={axis.size}" for axis in self.axes) or "of one rank"
