"""Peak memory of each coordinate, counted by storage in the order in which the host issues.

A result is allocated when its instruction is issued and released at its `free`: this is what an
allocator that serves the compute stream does, whatever the instructions' times. With one thread per
stream a buffer may be taken later, never earlier.

What an instruction needs inside counts as if nothing but it ran meanwhile: tensors inside kernels,
what an update scales, casts and computes, and the copies that a collective over gloo works on. Not
counted are workspaces inside of ops, what gloo itself allocates, and that a collective's copies may
be alive while another stream computes. The test against torch's profiler sees the thread that runs
the program, thus no copies of collectives, which other threads make.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from piper_runtime.manifest import Manifest
from piper_runtime.optimizer import OptimizerFactory, make_optimizer
from torch import nn

from piper.simulate.facts import ProgramFacts, Row
from piper.simulate.values import COLLECTIVES, Values, bucket_bytes, itemsize

__all__ = ["Memory", "measure_memory", "optimizer_bytes"]


@dataclass(frozen=True)
class Memory:
    """Bytes at one coordinate, per rank.

    `optimizer` is None where the optimizer is not known. `batch` are the inputs of a step.
    `activations` is the peak of what instructions make and later free, `temporaries` what the
    instruction at that peak needs inside, at most; `at` is its row. `live` has the bytes of
    activations after each row.
    """

    parameters: int
    gradients: int
    optimizer: int | None
    batch: int
    activations: int
    temporaries: int
    at: int
    live: tuple[int, ...]

    @property
    def peak(self) -> int:
        """The most that is allocated at once, without the optimizer if that is not known."""
        persistent = self.parameters + self.gradients + (self.optimizer or 0) + self.batch
        return persistent + self.activations + self.temporaries


def measure_memory(
    facts: ProgramFacts,
    coordinate: int,
    rows: Sequence[Row],
    values: Values,
    *,
    per_parameter: float | None,
) -> Memory:
    """Count the memory of one program; `per_parameter` are the optimizer's bytes per parameter."""
    manifest = facts.manifest
    held = [bucket for bucket in manifest.buckets if coordinate in bucket.holders]
    written = {row["bucket"] for row in rows if row["op"] in ("accumulate", "update")}
    updated = {row["bucket"] for row in rows if row["op"] == "update"}
    optimized = sum(bucket.numel for bucket in held if bucket.name in updated)
    live, peak, extra, at = _sweep(facts, rows, values)
    return Memory(
        parameters=sum(bucket_bytes(bucket, slot="value") for bucket in held),
        gradients=sum(bucket_bytes(b, slot="grad") for b in held if b.name in written),
        optimizer=None if per_parameter is None else round(optimized * per_parameter),
        batch=_batch_bytes(manifest),
        activations=peak,
        temporaries=extra,
        at=at,
        live=tuple(live),
    )


def optimizer_bytes(factory: OptimizerFactory, dtype: str = "float32") -> float:
    """Bytes of state that an optimizer keeps per parameter of a dtype, found by a step on a few."""
    parameter = nn.Parameter(torch.zeros(3, 5, dtype=getattr(torch, dtype)))
    optimizer = make_optimizer(factory, [parameter])
    parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    state = optimizer.state[parameter].values()
    kept = [value for value in state if isinstance(value, torch.Tensor)]
    return sum(t.nbytes for t in kept if t.shape == parameter.shape) / parameter.numel()


def _sweep(
    facts: ProgramFacts, rows: Sequence[Row], values: Values
) -> tuple[list[int], int, int, int]:
    """Bytes alive after each row; and where they and what is needed inside are most, both."""
    manifest = facts.manifest
    largest = _largest_members(manifest)
    alive = peak = extra = at = 0
    live = []
    for index, row in enumerate(rows):
        if row["op"] == "free":
            alive -= sum(values.bytes[value] for value in row["in"] if value in values.owned)
        else:
            alive += sum(values.bytes[value] for value in row["out"] if value in values.owned)
        inside = _temporaries(facts, row, values, largest)
        if alive + inside > peak + extra:
            peak, extra, at = alive, inside, index
        live.append(alive)
    return live, peak, extra, at


def _temporaries(facts: ProgramFacts, row: Row, values: Values, largest: Mapping[str, int]) -> int:
    """Bytes that an instruction needs inside, at most."""
    if row["op"] == "run":
        return facts.chunks[row["chunk"]].temporaries
    if row["op"] in COLLECTIVES:
        return _copies(facts, row, values)
    if row["op"] != "update":
        return 0
    bucket = facts.bucket(row["bucket"])
    scaled = bucket_bytes(bucket, slot="grad") if "clip" in row else 0
    narrowed = bucket_bytes(bucket, slot="value") if bucket.grad_dtype != bucket.dtype else 0
    # Elementwise optimizers work parameter by parameter, with at most two tensors of its size.
    return scaled + narrowed + 2 * largest[bucket.name]


def _copies(facts: ProgramFacts, row: Row, values: Values) -> int:
    """Bytes that a collective makes and drops; the copy that is its result is none of them.

    A sum is the operand once more, padded to a part per member, as much received from the others,
    and this member's part of the sum; a gather is all parts before they are put together.
    """
    comm = next(comm for comm in facts.manifest.comms if comm.name == row["stream"])
    members = facts.manifest.mesh.size(comm.axes) * len(comm.coordinates)
    operand, (result, *_) = values.bytes[row["in"][0]], row["out"]
    made = values.bytes[result] if result in values.owned else 0
    if members == 1:
        return operand - made  # one copy
    part = -(-operand // members)
    match row["op"]:
        case "all_reduce":
            return 2 * part * members + part - made
        case "reduce_scatter":
            return 2 * operand + part - made
        case "all_gather":
            return 2 * operand * members - made
    return operand - made


def _largest_members(manifest: Manifest) -> dict[str, int]:
    """Bytes of the largest member of each bucket."""
    sizes = {state.name: state.numel * itemsize(state.dtype) for state in manifest.states}
    return {bucket.name: max(sizes[name] for name in bucket.members) for bucket in manifest.buckets}


def _batch_bytes(manifest: Manifest) -> int:
    """Bytes of the inputs of a step on one rank; one that is not split is there once."""
    total = 0
    for spec in manifest.inputs:
        numel = 1
        for size in spec.shape:
            numel *= size
        total += numel * itemsize(spec.dtype) * (1 if spec.dim is None else manifest.microbatches)
    return total
