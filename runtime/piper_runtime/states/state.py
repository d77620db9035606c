"""State of a rank: buckets as flat tensors, parameters as views of them, and first values."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor

from piper_runtime.errors import ProgramError
from piper_runtime.manifest import BucketSpec, Manifest, StateSpec
from piper_runtime.movement import Packing, PartError, movement_for
from piper_runtime.names import dtype_name, dtype_of
from piper_runtime.program import Program
from piper_runtime.states.optimizer import OptimizerFactory, make_optimizer
from piper_runtime.states.sharding import Local, Piece, Shard, pad

__all__ = ["Bucket", "Init", "Weights", "flat_value", "local_flat", "make_buckets"]

Init = Callable[[str, tuple[int, ...], torch.dtype, torch.Generator], Tensor]


class Bucket:
    """One bucket on one rank: its slots, and the optimizer of its value.

    Its elements are those of its members, of which ``local`` says which part the rank has.

    ``value``, what the optimizer updates, is 1-D of the bucket's dtype: all elements, or this
    rank's ``shard`` of them. ``compute``, what chunks read, is None if that is the value; if it is
    whole and of the value's dtype, the value is this rank's part of it, as a view, so that a
    parameter is there once. ``grad``, 1-D of the gradient dtype, is made at first use.

    Whole slots of a sharded bucket, and parts, have zeros at the end; see ``sharding``.
    """

    __slots__ = (
        "_grad", "_movement", "_optimizer", "_own_grads", "_parameters", "_pieces", "_places",
        "compute", "local", "members", "shard", "spec", "value",
    )  # fmt: skip

    def __init__(
        self,
        spec: BucketSpec,
        members: Sequence[StateSpec],
        value: Tensor,
        *,
        shard: Shard | None = None,
        compute: Tensor | None = None,
        local: Local | None = None,
    ) -> None:
        """Take ``value`` and ``compute`` as the bucket's own storage; by default it is whole."""
        self.spec = spec
        self.members = tuple(members)
        self.shard = Shard(spec.numel) if shard is None else shard
        self.local = Local() if local is None else local
        self.value = value
        self.compute = compute
        self._grad: Tensor | None = None
        self._places: Packing | None = None
        self._movement = movement_for(value.device)
        self._optimizer: torch.optim.Optimizer | None = None
        self._parameters: list[nn.Parameter] = []
        self._pieces = tuple(self.shard.pieces(self.shapes))
        self._own_grads: Sequence[Tensor] = ()

    @classmethod
    def make(
        cls,
        spec: BucketSpec,
        members: Sequence[StateSpec],
        whole: Tensor,
        *,
        shard: Shard,
        device: torch.device,
        local: Local | None = None,
    ) -> Bucket:
        """Return a bucket whose first value is the rank's part of ``whole``, without padding.

        ``whole`` are all elements that the rank, and those that it shares them out with, have.
        """
        whole = pad(whole, shard.padded)
        part, compute = shard.of(whole), None
        if spec.compute_dtype is not None:
            derived = part if spec.compute_sharded else whole
            compute = derived.to(device, dtype_of(spec.compute_dtype), copy=True)
        if spec.is_view:
            assert compute is not None
            value = shard.of(compute)
        else:
            value = part.to(device, copy=True)
        return cls(spec, members, value, shard=shard, compute=compute, local=local)

    @property
    def pieces(self) -> tuple[Piece, ...]:
        """What this rank holds of the members, one behind the other in its part."""
        return self._pieces

    @property
    def optimizer(self) -> torch.optim.Optimizer | None:
        """The optimizer of the value, if it has one."""
        return self._optimizer

    @property
    def parameters(self) -> Sequence[nn.Parameter]:
        """What the optimizer updates: a parameter per piece; none without an optimizer."""
        return self._parameters

    @property
    def trainable(self) -> bool:
        """Whether every member is a parameter that is trained."""
        return all(member.kind == "parameter" and member.trainable for member in self.members)

    @property
    def grad(self) -> Tensor:
        """The flat main gradient; zeros before the first accumulation.

        After an update, this rank's part of it holds what the update was given.
        """
        if self._grad is None:
            numel = self.shard.part if self.spec.grad_sharded else self.shard.padded
            dtype = dtype_of(self.spec.grad_dtype or self.spec.dtype)
            with torch.inference_mode(False):
                self._grad = torch.zeros(numel, dtype=dtype, device=self.value.device)
        return self._grad

    @property
    def own_grad(self) -> Tensor:
        """This rank's part of the main gradient: as many elements as the value."""
        return self.grad if self.spec.grad_sharded else self.shard.of(self.grad)

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        """The shapes of what this rank, with those that share it out further, has of members."""
        return [self.local.shape(member.shape) for member in self.members]

    def _packing(self, flat: Tensor) -> Packing:
        """Return the members' places in a whole flat tensor."""
        return Packing(flat[: self.shard.numel], self.shapes)

    def check_slot(self, name: str) -> None:
        """Raise ProgramError for a slot that the bucket does not have."""
        known = ["value", *(["compute"] if self.spec.compute_dtype else []), "grad"]
        if name not in known:
            wanted = f"{', '.join(known[:-1])} or {known[-1]}"
            raise ProgramError(f"slot of {self.spec.name!r} expected {wanted}, got {name!r}")

    def num_bytes(self) -> tuple[int, int]:
        """Return the bytes of all slots, and those that the optimizer keeps.

        Both grow in the first step: gradient and optimizer state are made when they are needed.
        """
        slots = [self._grad, self.compute, None if self.spec.is_view else self.value]
        kept = [] if self._optimizer is None else self._optimizer.state.values()
        tensors = [value for state in kept for value in state.values() if isinstance(value, Tensor)]
        held = sum(slot.nbytes for slot in slots if slot is not None)
        return held, sum(tensor.nbytes for tensor in tensors)

    def slot(self, name: str) -> Tensor:
        """Return the flat tensor of slot ``value``, ``compute`` or ``grad``."""
        self.check_slot(name)
        if name == "compute":
            assert self.compute is not None
            return self.compute
        return self.value if name == "value" else self.grad

    def write(self, value: Tensor) -> None:
        """Set the compute slot."""
        assert self.compute is not None
        if (value.shape, value.dtype) != (self.compute.shape, self.compute.dtype):
            want = f"{self.compute.dtype} of shape {tuple(self.compute.shape)}"
            got = f"{value.dtype} of {tuple(value.shape)}"
            raise ValueError(f"slot compute of {self.spec.name!r} expected {want}, got {got}")
        self.compute.copy_(value)

    def views(self, flat: Tensor) -> dict[str, Tensor]:
        """Return the members' views of a whole flat tensor by name, in bucket order."""
        names = (member.name for member in self.members)
        return dict(zip(names, self._packing(flat).parts, strict=True))

    def accumulate(self, contribution: Tensor | tuple[Tensor, ...], *onto: Tensor) -> Tensor:
        """Write a pack or flat tensor into the main gradient, or add it if ``onto`` is given."""
        grad, parts = self.grad, contribution
        if isinstance(parts, Tensor):
            places, parts = Packing(grad, [grad.shape]), (parts.reshape(-1),)
        elif self.spec.grad_sharded:
            raise ValueError(
                f"gradient of {self.spec.name!r} expected a reduced part of shape "
                f"{tuple(grad.shape)}, got a pack of whole members"
            )
        else:
            places = self._places = self._places or self._packing(grad)
        try:
            self._movement.pack(parts, places, add=bool(onto))
        except PartError as error:
            raise ValueError(f"gradient of {self.spec.name!r} {error.expectation}") from None
        return grad

    def make_optimizer(self, factory: OptimizerFactory) -> None:
        """Make the optimizer of what this rank holds, as parameters that view the flat value.

        A member that is not whole here is a parameter of the elements that are, with as many dims
        as the member and its name, so that a factory which looks at these treats the pieces alike.
        """
        self._parameters = [nn.Parameter(part) for part in self._piece_views(self.value)]
        names = [self.members[piece.index].name for piece in self._pieces]
        # A rank without any element has an optimizer of nothing, so that all refuse the same.
        nothing = [(self.members[0].name, nn.Parameter(self.value[:0]))]
        named = [*zip(names, self._parameters, strict=True)]
        self._optimizer = make_optimizer(factory, named or nothing)

    @torch.inference_mode(False)
    @torch.no_grad()
    def update(self, gradient: Tensor, factor: Tensor | None) -> Tensor:
        """Step the optimizer with ``gradient * factor``; ``own_grad`` then holds ``gradient``.

        Never in inference mode: what the optimizer keeps is there after the call.
        """
        if self._optimizer is None:
            raise ProgramError(f"update of {self.spec.name!r} expected an optimizer, got none")
        self.keep(gradient)
        own = self.own_grad
        scaled = (own if factor is None else own * factor).to(self.value.dtype)
        if scaled is own:
            parts = self._own_grads = self._own_grads or self._piece_views(own)
        else:
            parts = self._piece_views(scaled)
        for parameter, part in zip(self._parameters, parts, strict=True):
            parameter.grad = part
        self._optimizer.step()
        for parameter in self._parameters:
            parameter.grad = None
        return self.value

    def keep(self, gradient: Tensor) -> Tensor:
        """Let ``own_grad`` hold ``gradient``; the value stays, and is returned."""
        if gradient.numel() != self.value.numel():
            raise ValueError(
                f"gradient of {self.spec.name!r} expected {self.value.numel()} elements as the "
                f"value, got {gradient.numel()}"
            )
        own = self.own_grad
        if gradient is not own:
            own.copy_(gradient.reshape(-1))
        return self.value

    def _piece_views(self, part: Tensor) -> Sequence[Tensor]:
        """Return the pieces of members in this rank's part of a flat tensor."""
        shapes = [piece.shape for piece in self._pieces]
        return Packing(part[: self.shard.filled], shapes).parts


class Weights:
    """Where first values come from: the model's tensors, an init function, or the program.

    A state takes the model's tensor under its name or an alias if that is materialised, else
    ``init(name, shape, dtype, generator)`` with a generator seeded by ``seed`` and the name, so
    that every rank makes the same values; a constant comes with the program.
    """

    def __init__(
        self, program: Program, *, model: nn.Module | None, init: Init | None, seed: int
    ) -> None:
        """Collect the names; raises nothing until a value is asked for."""
        self._constants = program.constants
        self._init = init
        self._seed = seed
        self._tensors: dict[str, Tensor] = {}
        if model is not None:
            self._tensors.update(model.named_parameters(remove_duplicate=False))
            self._tensors.update(model.named_buffers(remove_duplicate=False))

    def value(self, state: StateSpec) -> Tensor:
        """Return the whole tensor of ``state``; raises ValueError for a missing or odd one."""
        tensor = self._find(state)
        where = f"{state.kind} {state.name!r}"
        if tuple(tensor.shape) != state.shape:
            raise ValueError(f"{where} expected shape {state.shape}, got {tuple(tensor.shape)}")
        if dtype_name(tensor.dtype) != state.dtype:
            raise ValueError(f"{where} expected {state.dtype}, got {dtype_name(tensor.dtype)}")
        return tensor.detach()

    def _find(self, state: StateSpec) -> Tensor:
        if state.kind == "constant":
            if state.name not in self._constants:
                known = sorted(self._constants)
                raise ValueError(f"constant {state.name!r} expected one of {known}, got none")
            return self._constants[state.name]
        found = [self._tensors[name] for name in state.names if name in self._tensors]
        real = [tensor for tensor in found if not _is_abstract(tensor)]
        if real:
            return _one_value(state, real)
        if self._init is not None:
            generator = torch.Generator().manual_seed(_seed_of(self._seed, state.name))
            return self._init(state.name, state.shape, dtype_of(state.dtype), generator)
        got = "one without data and no init" if found else "neither it in the model nor an init"
        raise ValueError(f"{state.kind} {state.name!r} expected a value, got {got}")


def make_buckets(
    manifest: Manifest,
    weights: Weights,
    coordinates: Mapping[int, int],
    device: torch.device,
    *,
    look: Callable[[str, Tensor], None] | None = None,
) -> dict[int, dict[str, Bucket]]:
    """Return, per rank of ``coordinates`` (rank to coordinate), the buckets that it holds.

    Each whole tensor is made once; every rank that holds it, or a part of it, copies that. ``look``
    is shown the name and the whole first value of every bucket.
    """
    buckets: dict[int, dict[str, Bucket]] = {rank: {} for rank in coordinates}
    for spec in manifest.buckets:
        holders = [rank for rank, at in coordinates.items() if at in spec.holders]
        if not holders:
            continue
        members = [manifest.state(name) for name in spec.members]
        flat = flat_value(spec, members, weights)
        if look is not None:
            look(spec.name, flat)
        parts: dict[Local, Tensor] = {}
        for rank in holders:
            shard, local = spec.shard(manifest.mesh, rank), spec.local(manifest.mesh, rank)
            if local not in parts:
                parts[local] = local_flat(flat, members, local)
            buckets[rank][spec.name] = Bucket.make(
                spec, members, parts[local], shard=shard, device=device, local=local
            )
    return buckets


def flat_value(spec: BucketSpec, members: Sequence[StateSpec], weights: Weights) -> Tensor:
    """Return the first value of a bucket: its whole members' values, flattened and concatenated."""
    flat = torch.empty(sum(member.numel for member in members), dtype=dtype_of(spec.dtype))
    places = Packing(flat, [member.shape for member in members]).parts
    for member, place in zip(members, places, strict=True):
        place.copy_(weights.value(member))
    return flat


def local_flat(flat: Tensor, members: Sequence[StateSpec], local: Local) -> Tensor:
    """Return the local parts of members in the flat tensor of the whole ones; itself if all."""
    if local.count == 1:
        return flat
    places = Packing(flat, [member.shape for member in members]).parts
    return torch.cat([local.of(place).reshape(-1) for place in places])


def _is_abstract(tensor: Tensor) -> bool:
    return tensor.is_meta or isinstance(tensor, FakeTensor)


def _one_value(state: StateSpec, tensors: Sequence[Tensor]) -> Tensor:
    """Return the value that all names of a tied weight share; raises ValueError if they differ."""
    first = tensors[0]
    for other in tensors[1:]:
        if other is not first and not torch.equal(other, first):
            names = ", ".join(state.names)
            raise ValueError(f"tied weight expected one value under {names}, got different ones")
    return first


def _seed_of(seed: int, name: str) -> int:
    digest = hashlib.sha256(f"{seed}:{name}".encode()).digest()
    return int.from_bytes(digest[:7], "little")
