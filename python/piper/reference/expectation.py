"""What one call must compute, as a single process that runs the step of the IR finds it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import prod
from typing import Any

import torch
from piper_runtime.checking.places import Places
from piper_runtime.compute import sumsq
from piper_runtime.manifest import BucketSpec, Manifest
from piper_runtime.states.sharding import Local
from torch import Tensor

from piper.reference.interpret import Results, StepFunction

__all__ = ["Expectation", "local_flats", "squared_norm", "whole_gradients"]

States = Mapping[str, Tensor]
CPU = torch.device("cpu")


class Expectation:
    """See ``piper_runtime.checking.oracle.Expected``."""

    def __init__(
        self,
        step: StepFunction,
        results: Results,
        flats: Sequence[Mapping[str, Tensor]],
        *,
        manifest: Manifest,
        places: Places,
        update: Callable[[], Sequence[Mapping[str, Tensor]]],
    ) -> None:
        """Keep the results; the update is made when it is asked for, at most once."""
        self._step, self._results, self._flats = step, results, flats
        self._manifest, self._places = manifest, places
        self._make_update = update
        self._updated: Sequence[Mapping[str, Tensor]] | None = None

    def result(self, chunk: str, index: int, *, microbatch: int, place: int) -> Any:
        """Return one result of a chunk, None if the step has no such chunk."""
        made = self._results.chunks.get((chunk, microbatch, place))
        return None if made is None or index >= len(made) else made[index]

    def operands(self, chunk: str, *, microbatch: int, place: int) -> Sequence[Any] | None:
        """Return what a chunk is run on, None if the step has no such chunk."""
        return self._results.operands.get((chunk, microbatch, place))

    def contributions(self, bucket: str) -> Iterable[tuple[str, int]]:
        """Return chunk and index of every result that adds to the gradient of a bucket."""
        return self._step.contributions.get(bucket, ())

    def bucket(self, name: str, *, updated: bool, place: int) -> Tensor | None:
        """Return the flat value of a bucket before or after the update."""
        if not updated:
            return self._flats[place].get(name)
        if self._updated is None:
            self._updated = self._make_update()
        return self._updated[place].get(name)

    def gradient(self, bucket: str, *, place: int) -> Tensor | None:
        """Return the flat sum of all gradients of a bucket."""
        return self._results.gradients.get((bucket, place))

    def tangent(self, loss: str) -> Tensor | None:
        """Return the number that the backward of a loss starts with."""
        return self._results.tangents.get(loss)

    def output(self, name: str) -> Tensor | None:
        """Return an output; ``grad_norm`` is the sum of squares of all gradients."""
        if name == "grad_norm" and name not in self._results.outputs:
            return squared_norm(self._results, self._manifest, self._places)
        return self._results.outputs.get(name)


def local_flats(states: States, manifest: Manifest, places: Places) -> list[dict[str, Tensor]]:
    """Return the flat values of all buckets at each place, of their members' local parts."""
    made: dict[tuple[str, int], Tensor] = {}
    flats: list[dict[str, Tensor]] = []
    for place in range(len(places)):
        flats.append({})
        for spec in manifest.buckets:
            local = spec.local(places.mesh, place)
            if (spec.name, local.index) not in made:
                parts = [local.of(states[name]).reshape(-1) for name in spec.members]
                made[spec.name, local.index] = torch.cat(parts)
            flats[place][spec.name] = made[spec.name, local.index]
    return flats


def whole_gradients(results: Results, manifest: Manifest, places: Places) -> dict[str, Tensor]:
    """Return the gradients of states by name, put together from those of all places: no padding."""
    found: dict[str, Tensor] = {}
    for spec in manifest.buckets:
        for local, flat in _local_gradients(results, spec, places):
            start = 0
            for name in spec.members:
                state = manifest.state(name)
                whole = found.setdefault(name, flat.new_empty(state.shape))
                shape = local.shape(state.shape)
                numel = prod(shape)
                local.put(flat[start : start + numel].view(shape), whole)
                start += numel
    return found


def squared_norm(results: Results, manifest: Manifest, places: Places) -> Tensor:
    """Return the sum of squares of all gradients, times the loss scale squared."""
    flats = [
        flat for spec in manifest.buckets for _, flat in _local_gradients(results, spec, places)
    ]
    return sumsq(None, CPU, *flats)


def _local_gradients(
    results: Results, spec: BucketSpec, places: Places
) -> Iterator[tuple[Local, Tensor]]:
    """Yield each local part of a bucket once, and its gradient; nothing if there is none."""
    for place in places.group(0, spec.varying_axes):
        if (spec.name, place) in results.gradients:
            yield spec.local(places.mesh, place), results.gradients[spec.name, place]
