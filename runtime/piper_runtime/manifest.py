"""The manifest of an artifact, as typed data: mesh, inputs, states, buckets, communicators."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from math import prod
from typing import Any

from piper_runtime.errors import ProgramError
from piper_runtime.inputs.batch import InputSpec, SequenceSpec
from piper_runtime.inputs.fixed import FixedLeaf
from piper_runtime.mesh import Axis, CommSpec, Mesh
from piper_runtime.names import dtype_of
from piper_runtime.states.loss_scale import LossScale
from piper_runtime.states.sharding import Local, Shard

__all__ = ["VERSION", "BucketSpec", "FlopsSpec", "Manifest", "MemorySpec", "StateSpec"]

VERSION = 1
STATE_KINDS = ("parameter", "buffer", "constant")


@dataclass(frozen=True, slots=True)
class StateSpec:
    """One parameter, buffer or constant: its whole shape and every name the model has for it.

    With a ``shard_axis``, ranks along that axis hold equal parts of its dim ``shard_dim``, of which
    the last ones may have padding if the axis is auto. ``unsaved`` are the names that a state dict
    of the model leaves out: those of buffers that are not persistent.
    """

    name: str
    kind: str
    shape: tuple[int, ...]
    dtype: str
    trainable: bool
    aliases: tuple[str, ...]
    shard_axis: str | None = None
    shard_dim: int = 0
    unsaved: tuple[str, ...] = ()

    @property
    def numel(self) -> int:
        """Number of elements of the whole tensor."""
        return prod(self.shape)

    @property
    def names(self) -> tuple[str, ...]:
        """The name, then the aliases of a tied weight."""
        return (self.name, *self.aliases)

    @property
    def saved_names(self) -> tuple[str, ...]:
        """The names in a state dict of the model; a constant, which is not the model's, has none."""
        if self.kind == "constant":
            return ()
        return tuple(name for name in self.names if name not in self.unsaved)


@dataclass(frozen=True, slots=True)
class BucketSpec:
    """Ordered states that share one flat tensor, and the coordinates that hold it.

    ``numel`` counts the members' elements, of ``dtype``; ``grad_dtype`` is that of the flat main
    gradient, or None for a bucket that has none. ``shard_axes`` are the axes, in mesh order, over
    which the value is sharded: a rank holds one of equal consecutive parts of the flat tensor, with
    padding at its end. ``compute_dtype`` is that of the slot that chunks read, derived from the
    value, or None if they read the value. ``compute_sharded`` and ``grad_sharded`` say that these
    slots are sharded as the value is; else they are whole, padding included.

    ``varying_axes`` are those along which the members are shared out by themselves: what ranks hold
    differs along them, and "whole" and ``numel`` are about the members' local parts,
    cut along ``varying_dim``.
    """

    name: str
    members: tuple[str, ...]
    holders: tuple[int, ...]
    dtype: str
    numel: int
    grad_dtype: str | None
    shard_axes: tuple[str, ...] = ()
    compute_dtype: str | None = None
    compute_sharded: bool = False
    grad_sharded: bool = False
    varying_axes: tuple[str, ...] = ()
    varying_dim: int = 0

    def local(self, mesh: Mesh, rank: int) -> Local:
        """Return which local part of its members a rank has."""
        axes = self.varying_axes
        return Local(mesh.index(rank, axes), mesh.size(axes), self.varying_dim)

    def shards(self, mesh: Mesh) -> int:
        """Return into how many parts the value is cut."""
        return mesh.size(self.shard_axes)

    def shard(self, mesh: Mesh, rank: int) -> Shard:
        """Return the part that a rank holds."""
        return Shard(self.numel, mesh.index(rank, self.shard_axes), self.shards(mesh))

    def slot_dtype(self, slot: str) -> str | None:
        """Return the dtype of slot value, compute or grad; None if the bucket does not have it."""
        return {"value": self.dtype, "compute": self.compute_dtype, "grad": self.grad_dtype}[slot]

    def slot_numel(self, slot: str, mesh: Mesh) -> int:
        """Return the elements that a rank holds of slot value, compute or grad, if it exists."""
        shard = Shard(self.numel, 0, self.shards(mesh))
        flags = {"value": True, "compute": self.compute_sharded, "grad": self.grad_sharded}
        return shard.part if flags[slot] else shard.padded

    @property
    def is_view(self) -> bool:
        """Whether the value is this rank's part of the compute slot, and has no memory of its own.

        That is so if both have one dtype and the compute slot is whole.
        """
        return self.compute_dtype == self.dtype and not self.compute_sharded


@dataclass(frozen=True, slots=True)
class FlopsSpec:
    """FLOPs of one call of an entry point.

    ``model`` are those of the model for the whole batch, none of them counted twice; ``executed``
    those that a rank computes, by coordinate, with what it computes again to save memory.
    """

    model: int
    executed: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class MemorySpec:
    """Bytes that a rank takes in a call of an entry point, by kind, as the compiler predicts them.

    ``parameters`` (with buffers and constants), ``gradients`` and ``batch`` are there all the time,
    and so is what the optimizer keeps, which the compiler does not know. Where they and the rest
    are most, ``activations`` are what compute has made, ``communication`` what messages and
    collectives have brought, and ``temporaries`` what the instruction needs inside, at most.
    ``held`` is the most of activations and communication after any instruction.
    """

    parameters: int
    gradients: int
    batch: int
    activations: int
    communication: int
    temporaries: int
    held: int

    def peak(self, *, optimizer: int, inside: bool) -> int:
        """Return the most bytes at once, with or without what instructions need inside."""
        step = self.activations + self.communication + self.temporaries if inside else self.held
        return self.parameters + self.gradients + self.batch + optimizer + step


@dataclass(frozen=True, slots=True)
class Manifest:
    """Everything a runtime must know beside the program texts."""

    hash: str
    mesh: Mesh
    microbatches: int
    inputs: tuple[InputSpec, ...]
    data_axes: tuple[str, ...]
    states: tuple[StateSpec, ...]
    buckets: tuple[BucketSpec, ...]
    comms: tuple[CommSpec, ...]
    programs: tuple[str, ...]
    entry_points: tuple[str, ...]
    losses: Mapping[str, str | None]
    optimizer: str | None
    clip: float | None
    flops: Mapping[str, FlopsSpec]
    memory: Mapping[str, tuple[MemorySpec, ...]] = field(default_factory=dict)
    """By entry point: an entry per coordinate."""
    skips: bool = False
    """Whether a step whose gradient norm is not finite changes nothing."""
    loss_scale: float | LossScale | None = None
    sequence: SequenceSpec | None = None
    leaves: Mapping[str, FixedLeaf] | None = None
    """What was compiled in of the batch by name: leaves that are no tensors; None if not known."""

    @staticmethod
    def parse(text: str) -> Manifest:
        """Read ``manifest.json``; raises ProgramError naming the key or entry that is wrong."""
        raw = json.loads(text)
        version = raw.get("version")
        if version != VERSION:
            raise ProgramError(f"manifest expected version {VERSION}, got {version!r}")
        try:
            manifest = _parse(raw)
        except KeyError as error:
            raise ProgramError(f"manifest expected key {error.args[0]!r}, got none") from error
        _check(manifest)
        return manifest

    def state(self, name: str) -> StateSpec:
        """Return the state called ``name`` (an alias does not count)."""
        return next(state for state in self.states if state.name == name)

    @property
    def batch_axes(self) -> tuple[str, ...]:
        """The data axes along which batches are cut: not that of shared sequences."""
        shared = None if self.sequence is None else self.sequence.axis
        return tuple(axis for axis in self.data_axes if axis != shared)

    def model_flops(self, entry_point: str) -> int | None:
        """Return the model's FLOPs for a batch; None if the program does not say."""
        return self.flops[entry_point].model if entry_point in self.flops else None

    def executed_flops(self, entry_point: str) -> int | None:
        """Return the FLOPs that all ranks compute together; None if the program does not say."""
        if entry_point not in self.flops:
            return None
        executed = self.flops[entry_point].executed
        return sum(executed) * (self.mesh.world_size // self.mesh.num_coordinates)


def _parse(raw: Mapping[str, Any]) -> Manifest:
    return Manifest(
        hash=raw["hash"],
        mesh=Mesh(tuple(Axis(axis["name"], axis["size"], axis["role"]) for axis in raw["mesh"])),
        microbatches=raw["microbatches"],
        inputs=tuple(
            InputSpec(entry["name"], tuple(entry["shape"]), entry["dtype"], entry["dim"])
            for entry in raw["inputs"]
        ),
        data_axes=tuple(raw["data_axes"]),
        states=tuple(_parse_state(entry) for entry in raw["states"]),
        buckets=tuple(_parse_bucket(entry) for entry in raw["buckets"]),
        comms=tuple(_parse_comm(entry) for entry in raw["comms"]),
        programs=tuple(raw["programs"]),
        entry_points=tuple(raw["entry_points"]),
        losses=_parse_losses(raw["losses"]),
        optimizer=raw.get("optimizer"),
        clip=raw.get("clip"),
        flops={
            name: FlopsSpec(entry["model"], tuple(entry["executed"]))
            for name, entry in raw.get("flops", {}).items()
        },
        memory={
            name: tuple(_parse_memory(entry) for entry in entries)
            for name, entries in raw.get("memory", {}).items()
        },
        skips=raw.get("skip_nonfinite", False),
        loss_scale=_parse_loss_scale(raw.get("loss_scale")),
        sequence=_parse_sequence(raw.get("sequence")),
        leaves=_parse_leaves(raw.get("leaves")),
    )


def _parse_leaves(entries: Mapping[str, Mapping[str, str]] | None) -> dict[str, FixedLeaf] | None:
    if entries is None:
        return None
    return {name: FixedLeaf(entry["type"], entry["text"]) for name, entry in entries.items()}


def _parse_sequence(entry: Mapping[str, Any] | None) -> SequenceSpec | None:
    return None if entry is None else SequenceSpec(**entry)


def _parse_loss_scale(entry: float | Mapping[str, Any] | None) -> float | LossScale | None:
    return LossScale(**entry) if isinstance(entry, Mapping) else entry


def _parse_state(entry: Mapping[str, Any]) -> StateSpec:
    return StateSpec(
        name=entry["name"],
        kind=entry["kind"],
        shape=tuple(entry["shape"]),
        dtype=entry["dtype"],
        trainable=entry["trainable"],
        aliases=tuple(entry.get("aliases", ())),
        shard_axis=entry.get("shard_axis"),
        shard_dim=entry.get("shard_dim", 0),
        unsaved=tuple(entry.get("unsaved", ())),
    )


def _parse_bucket(entry: Mapping[str, Any]) -> BucketSpec:
    return BucketSpec(
        name=entry["name"],
        members=tuple(entry["members"]),
        holders=tuple(entry["holders"]),
        dtype=entry["dtype"],
        numel=entry["numel"],
        grad_dtype=entry.get("grad_dtype"),
        shard_axes=tuple(entry.get("shard_axes", ())),
        compute_dtype=entry.get("compute_dtype"),
        compute_sharded=entry.get("compute_sharded", False),
        grad_sharded=entry.get("grad_sharded", False),
        varying_axes=tuple(entry.get("varying_axes", ())),
        varying_dim=entry.get("varying_dim", 0),
    )


def _parse_comm(entry: Mapping[str, Any]) -> CommSpec:
    return CommSpec(
        name=entry["name"],
        axes=tuple(entry["axes"]),
        coordinates=tuple(entry["coordinates"]),
        priority=entry.get("priority"),
        sms=entry.get("sms"),
    )


def _parse_memory(entry: Mapping[str, int]) -> MemorySpec:
    return MemorySpec(**{kind.name: entry[kind.name] for kind in fields(MemorySpec)})


def _parse_losses(entries: Sequence[Any]) -> dict[str, str | None]:
    """Return dtype by loss; an entry is a name, or a mapping of name and dtype."""
    pairs = [
        (entry, None) if isinstance(entry, str) else (entry["name"], entry["dtype"])
        for entry in entries
    ]
    return dict(pairs)


def _check(manifest: Manifest) -> None:
    coordinates = manifest.mesh.num_coordinates
    if len(manifest.programs) != coordinates:
        raise ProgramError(
            f"manifest expected {coordinates} programs, one per coordinate of {manifest.mesh}, "
            f"got {len(manifest.programs)}"
        )
    given: dict[str, Sequence[object]] = {}
    given |= {f"executed flops of {name!r}": e.executed for name, e in manifest.flops.items()}
    given |= {f"memory of {name!r}": entries for name, entries in manifest.memory.items()}
    for what, entries in given.items():
        if len(entries) != coordinates:
            raise ProgramError(
                f"manifest expected {what} for {coordinates} coordinates, got {len(entries)}"
            )
    unknown = [axis for axis in manifest.data_axes if axis not in manifest.mesh.names]
    if unknown:
        raise ProgramError(f"data axes expected axes of {manifest.mesh}, got {unknown[0]!r}")
    states = {state.name: state for state in manifest.states}
    for state in manifest.states:
        dtype_of(state.dtype)
        if state.kind not in STATE_KINDS:
            raise ProgramError(
                f"state {state.name!r} expected kind in {STATE_KINDS}, got {state.kind!r}"
            )
        _check_shard(state, manifest.mesh)
    for bucket in manifest.buckets:
        _check_bucket(bucket, states, manifest.mesh)
        _check_sharding(bucket, manifest.mesh)


def _check_shard(state: StateSpec, mesh: Mesh) -> None:
    """Check that ranks along the axis of a state can hold equal parts of its dim.

    Along an auto axis they may hold padding: what they compute with it is left out.
    """
    if state.shard_axis is None:
        return
    where = f"state {state.name!r}"
    known = {axis.name: axis.role for axis in mesh.axes if axis.role != "unrolled"}
    if state.shard_axis not in known:
        raise ProgramError(f"{where} expected a shard axis of {[*known]}, got {state.shard_axis!r}")
    size, dim = mesh.size([state.shard_axis]), state.shard_dim
    padded = known[state.shard_axis] == "auto"
    if not 0 <= dim < len(state.shape) or (state.shape[dim] % size and not padded):
        raise ProgramError(
            f"{where} expected a dim {dim} divisible by {size}, the ranks along "
            f"{state.shard_axis!r}, got shape {state.shape}"
        )


def _manual(mesh: Mesh) -> list[str]:
    return [axis.name for axis in mesh.axes if axis.role == "manual"]


def _check_bucket(bucket: BucketSpec, states: Mapping[str, StateSpec], mesh: Mesh) -> None:
    where = f"bucket {bucket.name!r}"
    absent = [name for name in bucket.members if name not in states]
    if absent:
        raise ProgramError(f"{where} expected states as members, got {absent[0]!r}")
    known = dict.fromkeys(filter(None, (bucket.dtype, bucket.compute_dtype)))
    odd = [name for name in bucket.members if states[name].dtype not in known]
    if odd:
        raise ProgramError(
            f"{where} expected members of dtype {' or '.join(known)}, "
            f"got {odd[0]!r} of {states[odd[0]].dtype}"
        )
    for name in bucket.members:
        axes = tuple(filter(None, [states[name].shard_axis]))
        if axes != bucket.varying_axes:
            raise ProgramError(
                f"{where} expected members sharded over {list(bucket.varying_axes)}, its varying "
                f"axes, got {name!r} over {list(axes)}"
            )
        if axes and states[name].shard_dim != bucket.varying_dim:
            raise ProgramError(
                f"{where} expected members sharded along dim {bucket.varying_dim}, its varying "
                f"dim, got {name!r} along dim {states[name].shard_dim}"
            )
    local = Local(0, mesh.size(bucket.varying_axes), bucket.varying_dim)
    numel = sum(prod(local.shape(states[name].shape)) for name in bucket.members)
    if numel != bucket.numel:
        raise ProgramError(
            f"{where} expected numel {numel}, the sum of its members, got {bucket.numel}"
        )
    coordinates = mesh.num_coordinates
    outside = [holder for holder in bucket.holders if not 0 <= holder < coordinates]
    if outside:
        raise ProgramError(f"{where} expected holders below {coordinates}, got {outside[0]}")


def _check_sharding(bucket: BucketSpec, mesh: Mesh) -> None:
    where = f"bucket {bucket.name!r}"
    manual = _manual(mesh)
    axes = tuple(axis for axis in manual if axis in bucket.shard_axes)
    if axes != bucket.shard_axes:
        raise ProgramError(
            f"{where} expected shard axes of {manual}, in this order and each once, "
            f"got {list(bucket.shard_axes)}"
        )
    both = [axis for axis in axes if axis in bucket.varying_axes]
    if both:
        raise ProgramError(
            f"{where} expected shard axes beside its varying axes {list(bucket.varying_axes)}, "
            f"got {both[0]!r} as both"
        )
    for slot, sharded in (("compute", bucket.compute_sharded), ("grad", bucket.grad_sharded)):
        if sharded and not bucket.shard_axes:
            raise ProgramError(f"{where} expected shard axes for its sharded slot {slot}, got none")
        if sharded and bucket.slot_dtype(slot) is None:
            raise ProgramError(f"{where} expected a dtype for its sharded slot {slot}, got none")
