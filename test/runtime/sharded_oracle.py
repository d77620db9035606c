"""What check mode compares the sharded programs with: their chunks, run in a single process."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from piper_runtime import compute
from piper_runtime.checking.oracle import Shards, Value
from piper_runtime.program import Program
from piper_runtime.states.optimizer import OptimizerFactory
from sharded_program import BACKWARD, BUCKETS, FORWARD, NUM, Sharding, sharded_program
from torch import Tensor, nn

GRADIENTS = {"fc": 0, "out": 1, "gain": 1, "shift": 0}
"""Which result of its backward chunk is the gradient of a layer."""


class SingleProcess:
    """The oracle: the chunks of a program without shards, on every microbatch of all ranks."""

    bound: float | None = 1e-12

    def __init__(self, sharding: Sharding, factory: OptimizerFactory) -> None:
        """Load the chunks; a single optimizer updates all."""
        whole = Sharding(0, "last", sharding.mesh, sharding.axes)
        self._chunks = _functions(sharded_program(whole))
        self._coefficient = 1 / (6 * NUM * sharding.ranks)
        shapes = {name: shape for members in BUCKETS.values() for name, shape in members.items()}
        self._parameters = {
            name: nn.Parameter(torch.zeros(shape, dtype=torch.float64))
            for name, shape in shapes.items()
        }
        self._optimizer = factory(list(self._parameters.values()))

    def expect(
        self,
        entry_point: str,
        *,
        states: Mapping[str, Tensor],
        shards: Shards,
        loss_scale: float = 1.0,
    ) -> SingleCall:
        """Run a training step."""
        flats = {name: _flat(states, members) for name, members in BUCKETS.items()}
        call = SingleCall(flats, self._coefficient)
        for index, shard in enumerate(shards):
            for m in range(NUM):
                values: dict[str, Value] = {
                    f"{name}_{m}": shard[name].chunk(NUM)[m] for name in ("x", "target")
                }
                values["t"] = torch.tensor(self._coefficient, dtype=torch.float64)
                self._run(call, values, index, m)
        for name, parameter in self._parameters.items():
            parameter.data.copy_(states[name])
        for bucket, members in BUCKETS.items():
            sizes = [self._parameters[name].numel() for name in members]
            parts = call.gradients[bucket].split_with_sizes(sizes)
            for name, part in zip(members, parts, strict=True):
                self._parameters[name].grad = part.view_as(self._parameters[name])
        self._optimizer.step()
        updated = {name: parameter.detach() for name, parameter in self._parameters.items()}
        call.updated = {name: _flat(updated, members) for name, members in BUCKETS.items()}
        return call

    def _run(self, call: SingleCall, values: dict[str, Value], shard: int, m: int) -> None:
        steps = [(f"{n}_F", results, operands) for n, results, operands in FORWARD]
        steps += [("loss_F", "l_{m}, d_{m}", "v_{m}, target_{m}"), ("loss_B", "dv_{m}", "t, d_{m}")]
        steps += [(f"{n}_B", results, operands) for n, results, operands in BACKWARD]
        for chunk, results, operands in steps:
            given = [values[name] for name in operands.format(m=m).split(", ")]
            bucket = f"{chunk[:-2]}$b"
            if bucket in BUCKETS and chunk != "shift_B":
                given.append(call.flats[bucket])
            made = self._chunks[chunk](*given)
            names = results.format(m=m).split(", ")
            made = made if len(names) > 1 else (made,)
            values.update(zip(names, made, strict=True))
            call.note(chunk, made, given, m, shard)


class SingleCall:
    """What a call must compute; see ``piper_runtime.checking.oracle.Expected``."""

    def __init__(self, flats: dict[str, Tensor], coefficient: float) -> None:
        """Start with nothing but the state."""
        self.flats, self.updated = flats, dict(flats)
        self.gradients: dict[str, Tensor] = {}
        self._made: dict[tuple[str, int, int], Sequence[Value]] = {}
        self._given: dict[tuple[str, int, int], Sequence[Value]] = {}
        self._coefficient = torch.tensor(coefficient, dtype=torch.float64)

    def note(
        self, chunk: str, made: Sequence[Value], given: Sequence[Value], m: int, shard: int
    ) -> None:
        """Keep what a chunk made, and add up its gradient."""
        self._made[chunk, m, shard], self._given[chunk, m, shard] = made, given
        layer, pass_ = chunk.split("_")
        if pass_ == "B" and layer in GRADIENTS:
            flat = torch.cat([part.reshape(-1) for part in made[GRADIENTS[layer]]])
            known = self.gradients.get(f"{layer}$b")
            self.gradients[f"{layer}$b"] = flat if known is None else known + flat

    def result(self, chunk: str, index: int, *, microbatch: int, place: int) -> Value | None:
        """Return a result of a chunk; ranks exchange none."""
        made = self._made.get((chunk, microbatch, place))
        return None if made is None else made[index]

    def operands(self, chunk: str, *, microbatch: int, place: int) -> Sequence[Value]:
        """Return what a chunk is run on."""
        return self._given[chunk, microbatch, place]

    def contributions(self, bucket: str) -> Iterable[tuple[str, int]]:
        """Return the one chunk that adds to a gradient."""
        layer = bucket.removesuffix("$b")
        return [(f"{layer}_B", GRADIENTS[layer])]

    def bucket(self, name: str, *, updated: bool, place: int) -> Tensor:
        """Return the flat value of a bucket."""
        return (self.updated if updated else self.flats)[name]

    def gradient(self, bucket: str, *, place: int) -> Tensor:
        """Return the flat sum of the gradients of a bucket."""
        return self.gradients[bucket]

    def tangent(self, loss: str) -> Tensor:
        """Return the number that the backward starts with."""
        return self._coefficient

    def output(self, name: str) -> Tensor:
        """Return the loss, or the sum of squares of all gradients."""
        if name == "grad_norm":
            return compute.sumsq(None, torch.device("cpu"), *self.gradients.values())
        losses = [made[0] for (chunk, _, _), made in self._made.items() if chunk == "loss_F"]
        return torch.stack([loss for loss in losses if isinstance(loss, Tensor)]).sum() * (
            self._coefficient
        )


def _functions(program: Program) -> dict[str, Callable[..., Any]]:
    module = program.load(torch.device("cpu")).modules[0]
    return vars(module)


def _flat(values: Mapping[str, Tensor], members: Iterable[str]) -> Tensor:
    return torch.cat([values[name].reshape(-1) for name in members])
