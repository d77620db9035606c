"""``Home``: what a rank is and has, the same in every step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from piper_runtime.errors import ProgramError
from piper_runtime.lines import Lines
from piper_runtime.manifest import Manifest
from piper_runtime.mesh import Comm, CommSpec, Mesh
from piper_runtime.names import dtype_of
from piper_runtime.program import LoadedProgram
from piper_runtime.states.state import Bucket

__all__ = ["Home", "make_home"]


@dataclass(frozen=True, slots=True)
class Home:
    """One rank: its place in the mesh, the file of its program, its communicators and buckets.

    ``peers`` are the world ranks that agree with this one on all manual axes, by coordinate;
    ``loss_dtypes`` the dtypes of tangents by loss; ``places`` its index along each axis of the mesh
    and the size of that axis; ``lines`` those of its entry points. With ``poison``, ``free``
    overwrites values.
    """

    index: int
    name: str
    file: str
    peers: tuple[int, ...]
    comms: Mapping[str, Comm]
    buckets: Mapping[str, Bucket]
    loss_dtypes: Mapping[str, torch.dtype]
    device: torch.device
    poison: bool = False
    places: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    lines: Lines = field(default_factory=Lines)

    def bucket(self, name: str) -> Bucket:
        """Return a bucket that this rank holds; raises ProgramError."""
        bucket = self.buckets.get(name)
        if bucket is None:
            raise ProgramError(
                f"{self.name} expected a bucket of {list(self.buckets)}, got {name!r}"
            )
        return bucket

    def comm(self, name: str) -> Comm:
        """Return a communicator that this rank is a member of; raises ProgramError."""
        comm = self.comms.get(name)
        if comm is None:
            raise ProgramError(f"{self.name} expected a comm of {list(self.comms)}, got {name!r}")
        return comm

    def place(self, axis: str) -> tuple[int, int]:
        """Return the index of this rank along an axis and the axis' size; raises ProgramError."""
        place = self.places.get(axis)
        if place is None:
            raise ProgramError(f"{self.name} expected an axis of {list(self.places)}, got {axis!r}")
        return place

    def peer(self, coordinate: int) -> int:
        """Return the world rank at ``coordinate``; raises ProgramError."""
        if not 0 <= coordinate < len(self.peers):
            raise ProgramError(
                f"{self.name} expected a peer below {len(self.peers)}, got {coordinate}"
            )
        return self.peers[coordinate]


def make_home(
    loaded: LoadedProgram,
    rank: int,
    *,
    buckets: Mapping[str, Bucket],
    device: torch.device,
    poison: bool = False,
) -> Home:
    """Collect what the manifest says about ``rank``."""
    manifest, mesh = loaded.manifest, loaded.manifest.mesh
    coordinate = mesh.coordinate(rank)
    comms = {
        spec.name: _comm(spec, mesh, rank)
        for spec in manifest.comms
        if coordinate in spec.coordinates
    }
    return Home(
        index=rank,
        name=mesh.describe(rank),
        file=str(loaded.modules[coordinate].__file__),
        peers=mesh.peers(rank),
        comms=comms,
        buckets=buckets,
        loss_dtypes=_loss_dtypes(manifest),
        device=device,
        poison=poison,
        places={axis.name: (mesh.positions(rank)[axis.name], axis.size) for axis in mesh.axes},
    )


def _comm(spec: CommSpec, mesh: Mesh, rank: int) -> Comm:
    members = mesh.members(spec, rank)
    return Comm(spec.name, members, tuple(mesh.index(member, spec.axes) for member in members))


def _loss_dtypes(manifest: Manifest) -> dict[str, torch.dtype]:
    """Return the dtype of each loss: the manifest's, else that of the first trained parameter."""
    trained = [state.dtype for state in manifest.states if state.trainable]
    default = trained[0] if trained else "float32"
    return {name: dtype_of(dtype or default) for name, dtype in manifest.losses.items()}
