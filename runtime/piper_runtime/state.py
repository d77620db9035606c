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
from piper_runtime.optimizer import OptimizerFactory, make_optimizer
from piper_runtime.program import Program

__all__ = ["Bucket", "Init", "Weights", "flat_value", "make_buckets"]

Init = Callable[[str, tuple[int, ...], torch.dtype, torch.Generator], Tensor]


class Bucket:
    """One bucket on one rank: a flat value, a flat main gradient made at first use, an optimizer.

    ``value`` is 1-D of the bucket's dtype, ``grad`` 1-D of its gradient dtype.
    """

    __slots__ = ("_main", "_movement", "_optimizer", "_parameters", "members", "spec", "value")

    def __init__(self, spec: BucketSpec, members: Sequence[StateSpec], value: Tensor) -> None:
        """Take ``value`` as the bucket's own storage."""
        self.spec = spec
        self.members = tuple(members)
        self.value = value
        self._main: Packing | None = None
        self._movement = movement_for(value.device)
        self._optimizer: torch.optim.Optimizer | None = None
        self._parameters: list[nn.Parameter] = []

    @property
    def trainable(self) -> bool:
        """Whether every member is a parameter that is trained."""
        return all(member.kind == "parameter" and member.trainable for member in self.members)

    @property
    def grad(self) -> Tensor:
        """The flat main gradient; zeros before the first accumulation."""
        return self._main_gradient.flat

    @property
    def _main_gradient(self) -> Packing:
        """The main gradient with the members' places in it, made when it is first asked for."""
        if self._main is None:
            dtype = dtype_of(self.spec.grad_dtype or self.spec.dtype)
            flat = torch.zeros(self.spec.numel, dtype=dtype, device=self.value.device)
            self._main = self._packing(flat)
        return self._main

    def _packing(self, flat: Tensor) -> Packing:
        return Packing(flat, [member.shape for member in self.members])

    def num_bytes(self) -> tuple[int, int]:
        """Return the bytes of value and main gradient, and those that the optimizer keeps.

        Both grow in the first step: gradient and optimizer state are made when they are needed.
        """
        main = 0 if self._main is None else self._main.flat.nbytes
        kept = [] if self._optimizer is None else self._optimizer.state.values()
        tensors = [value for state in kept for value in state.values() if isinstance(value, Tensor)]
        return self.value.nbytes + main, sum(tensor.nbytes for tensor in tensors)

    def slot(self, name: str) -> Tensor:
        """Return the flat tensor of slot ``value`` or ``grad``."""
        if name not in ("value", "grad"):
            raise ProgramError(f"slot of {self.spec.name!r} expected value or grad, got {name!r}")
        return self.value if name == "value" else self.grad

    def views(self, flat: Tensor) -> dict[str, Tensor]:
        """Return the members' views of a flat tensor by name, in bucket order."""
        names = (member.name for member in self.members)
        return dict(zip(names, self._packing(flat).parts, strict=True))

    def accumulate(self, contribution: Tensor | tuple[Tensor, ...], *onto: Tensor) -> Tensor:
        """Write a pack or flat tensor into the main gradient, or add it if ``onto`` is given."""
        into, parts = self._main_gradient, contribution
        if isinstance(parts, Tensor):
            into, parts = Packing(into.flat, [into.flat.shape]), (parts.reshape(-1),)
        try:
            self._movement.pack(parts, into, add=bool(onto))
        except PartError as error:
            raise ValueError(f"gradient of {self.spec.name!r} {error.expectation}") from None
        return into.flat

    def make_optimizer(self, factory: OptimizerFactory) -> None:
        """Make the optimizer of the members, as parameters that view the flat value."""
        self._parameters = [nn.Parameter(view) for view in self.views(self.value).values()]
        self._optimizer = make_optimizer(factory, self._parameters)

    def update(self, gradient: Tensor, factor: Tensor | None) -> Tensor:
        """Step the optimizer with ``gradient * factor``; ``grad`` then holds ``gradient``."""
        if self._optimizer is None:
            raise ProgramError(f"update of {self.spec.name!r} expected an optimizer, got none")
        grad = self.grad
        if gradient is not grad:
            grad.copy_(gradient.reshape(-1))
        scaled = grad if factor is None else grad * factor
        scaled = scaled.to(self.value.dtype)
        packed = self._main_gradient if scaled is grad else self._packing(scaled)
        for parameter, part in zip(self._parameters, packed.parts, strict=True):
            parameter.grad = part
        self._optimizer.step()
        for parameter in self._parameters:
            parameter.grad = None
        return self.value


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
    manifest: Manifest, weights: Weights, coordinates: Mapping[int, int], device: torch.device
) -> dict[int, dict[str, Bucket]]:
    """Return, per rank of ``coordinates`` (rank to coordinate), the buckets that it holds.

    Each whole tensor is made once, and copied to every rank that holds it.
    """
    buckets: dict[int, dict[str, Bucket]] = {rank: {} for rank in coordinates}
    for spec in manifest.buckets:
        holders = [rank for rank, at in coordinates.items() if at in spec.holders]
        if not holders:
            continue
        members = [manifest.state(name) for name in spec.members]
        flat = flat_value(spec, members, weights)
        for rank in holders:
            buckets[rank][spec.name] = Bucket(spec, members, flat.to(device, copy=True))
    return buckets


def flat_value(spec: BucketSpec, members: Sequence[StateSpec], weights: Weights) -> Tensor:
    """Return the first value of a bucket: its members' values, flattened and concatenated."""
    flat = torch.empty(spec.numel, dtype=dtype_of(spec.dtype))
    places = Packing(flat, [member.shape for member in members]).parts
    for member, place in zip(members, places, strict=True):
        place.copy_(weights.value(member))
    return flat


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
