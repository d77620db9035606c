"""Peak memory of each coordinate, counted by storage in the order in which the host issues.

A result is allocated when its instruction is issued and released at its `free`: this is what an
allocator that serves the compute stream does, whatever the instructions' times. With one thread per
stream a buffer may be taken later, never earlier.

What an instruction needs inside counts as if nothing but it ran meanwhile: tensors inside kernels,
what an update scales, casts and computes, and the copies that a collective over gloo works on. Not
counted are workspaces inside of ops, what gloo itself allocates, and that a collective's copies may
be alive while another stream computes. Torch's profiler sees one thread: where the test against it
is about collectives, it has that thread communicate as well.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from piper_runtime.manifest import BucketSpec, Manifest
from piper_runtime.mesh import Mesh
from piper_runtime.states.optimizer import OptimizerFactory, make_optimizer
from torch import nn

from piper.simulate.facts import ProgramFacts, Row
from piper.simulate.values import COLLECTIVES, MESSAGES, Values, bucket_bytes, itemsize

__all__ = ["Curve", "Memory", "measure_memory", "optimizer_bytes"]


@dataclass(frozen=True)
class Curve:
    """Bytes by row of a program, in issue order.

    Of what is alive after the row: `activations`, which compute made, and `communication`, which
    messages and collectives brought; and what the row needs inside, `temporaries`.
    """

    activations: tuple[int, ...]
    communication: tuple[int, ...]
    temporaries: tuple[int, ...]

    @property
    def live(self) -> tuple[int, ...]:
        """What is alive after each row."""
        return tuple(map(sum, zip(self.activations, self.communication, strict=True)))

    @property
    def totals(self) -> tuple[int, ...]:
        """What is alive after each row, and what that needs inside."""
        return tuple(map(sum, zip(self.live, self.temporaries, strict=True)))


@dataclass(frozen=True)
class Memory:
    """Bytes at one coordinate, per rank.

    `optimizer` is None where it is not known what an optimizer keeps. `batch` are the inputs of a
    step. At the peak, `activations` are what compute made and what is freed later, `communication`
    what messages and collectives brought, and `temporaries` what the instruction needs inside, at
    most; `at` is its row. `curve` has these three after each row.
    """

    parameters: int
    gradients: int
    optimizer: int | None
    batch: int
    activations: int
    communication: int
    temporaries: int
    at: int
    curve: Curve

    @property
    def step(self) -> int:
        """The most that a step adds to what is there all the time."""
        return self.activations + self.communication + self.temporaries

    @property
    def persistent(self) -> int:
        """What is there all the time, without the optimizer if that is not known."""
        return self.parameters + self.gradients + (self.optimizer or 0) + self.batch

    @property
    def peak(self) -> int:
        """The most that is allocated at once, without the optimizer if that is not known."""
        return self.persistent + self.step


def measure_memory(
    facts: ProgramFacts,
    coordinate: int,
    rows: Sequence[Row],
    values: Values,
    *,
    per_parameter: float | None,
) -> Memory:
    """Count the memory of one program; `per_parameter` are the optimizer's bytes per parameter.

    Raises:
        ValueError: `per_parameter` below 0.
    """
    if per_parameter is not None and not per_parameter >= 0:
        raise ValueError(f"optimizer bytes per parameter must be at least 0, got {per_parameter}")
    manifest = facts.manifest
    held = [bucket for bucket in manifest.buckets if coordinate in bucket.holders]
    written = {row["bucket"] for row in rows if row["op"] in ("accumulate", "update")}
    updated = {row["bucket"] for row in rows if row["op"] == "update"}
    mesh = manifest.mesh
    optimized = sum(b.slot_numel("value", mesh) for b in held if b.name in updated)
    curve = _sweep(facts, rows, values)
    points = [*zip(curve.activations, curve.communication, curve.temporaries, strict=True)]
    points = points or [(0, 0, 0)]  # of a program without rows
    at = max(range(len(points)), key=lambda row: sum(points[row]))  # the first of several
    activations, communication, temporaries = points[at]
    return Memory(
        parameters=sum(_parameter_bytes(bucket, mesh) for bucket in held),
        gradients=sum(bucket_bytes(b, mesh, slot="grad") for b in held if b.name in written),
        optimizer=0 if not optimized else _times(per_parameter, optimized),
        batch=_batch_bytes(manifest),
        activations=activations,
        communication=communication,
        temporaries=temporaries,
        at=at,
        curve=curve,
    )


def optimizer_bytes(factory: OptimizerFactory, dtype: str = "float32") -> float:
    """Bytes of state that an optimizer keeps per parameter of a dtype, found by a step on a few."""
    parameter = nn.Parameter(torch.zeros(3, 5, dtype=getattr(torch, dtype)))
    optimizer = make_optimizer(factory, [("weight", parameter)])
    parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    state = optimizer.state[parameter].values()
    kept = [value for value in state if isinstance(value, torch.Tensor)]
    return sum(t.nbytes for t in kept if t.shape == parameter.shape) / parameter.numel()


def _times(per_parameter: float | None, parameters: int) -> int | None:
    return None if per_parameter is None else round(parameters * per_parameter)


def _sweep(facts: ProgramFacts, rows: Sequence[Row], values: Values) -> Curve:
    """Follow what is alive from row to row."""
    largest = _largest_members(facts.manifest)
    brought: set[int] = set()
    alive = {False: 0, True: 0}  # by whether it was brought
    activations, communication, temporaries = [], [], []
    for row in rows:
        frees, comes = row["op"] == "free", row["op"] in (*MESSAGES, *COLLECTIVES)
        for value in row["in" if frees else "out"]:
            if value in values.owned:
                if comes:
                    brought.add(value)
                alive[value in brought] += -values.most(value) if frees else values.most(value)
        activations.append(alive[False])
        communication.append(alive[True])
        temporaries.append(_temporaries(facts, row, values, largest))
    return Curve(tuple(activations), tuple(communication), tuple(temporaries))


def _temporaries(facts: ProgramFacts, row: Row, values: Values, largest: Mapping[str, int]) -> int:
    """Bytes that an instruction needs inside, at most."""
    if row["op"] == "run":
        return facts.chunks[row["chunk"]].temporaries
    if row["op"] in COLLECTIVES:
        return _copies(facts, row, values)
    if row["op"] != "update":
        return 0
    bucket, mesh = facts.bucket(row["bucket"]), facts.manifest.mesh
    part = bucket.slot_numel("value", mesh)
    scaled = part * itemsize(bucket.grad_dtype or bucket.dtype) if "clip" in row else 0
    narrowed = part * itemsize(bucket.dtype) if bucket.grad_dtype != bucket.dtype else 0
    # Elementwise optimizers work parameter by parameter, with at most two tensors of its size.
    return scaled + narrowed + 2 * largest[bucket.name]


def _copies(facts: ProgramFacts, row: Row, values: Values) -> int:
    """Bytes that a collective makes and drops; the copy that is its result is none of them.

    A sum is as much as the operand received from the others, and this member's part of it; and the
    operand once more, where it has to be padded to equal parts or packed. A gather is its result.
    """
    comm = next(comm for comm in facts.manifest.comms if comm.name == row["stream"])
    parts = facts.manifest.mesh.size(comm.axes)
    members = parts * len(comm.coordinates)
    operand, (result, *_) = values.most(row["in"][0]), row["out"]
    made = values.most(result) if result in values.owned else 0
    if members == 1:
        return max(0, operand - made)  # one copy
    part = -(-operand // members)
    match row["op"]:
        case "all_reduce":
            padded = part * members if part * members > operand else 0
            return part * members + part + (padded - made if padded else 0)
        case "reduce_scatter":
            packed = members if members > parts else 0  # a part for each of several coordinates
            return (members + packed + 1) * (operand // parts) - made
        case "all_gather":
            return operand * members - made
        case "all_to_all":
            return 0  # rows are received where they stay
    return operand - made


def _largest_members(manifest: Manifest) -> dict[str, int]:
    """Bytes of the largest member of each bucket, or of a rank's part of it if that is less."""
    sizes = {state.name: state.numel for state in manifest.states}
    return {
        bucket.name: itemsize(bucket.dtype)
        * min(
            bucket.slot_numel("value", manifest.mesh), max(sizes[name] for name in bucket.members)
        )
        for bucket in manifest.buckets
    }


def _parameter_bytes(bucket: BucketSpec, mesh: Mesh) -> int:
    """Bytes of the value and of what is derived from it; a value that is a view has none."""
    derived = bucket_bytes(bucket, mesh, slot="compute")
    return derived if bucket.is_view else derived + bucket_bytes(bucket, mesh, slot="value")


def _batch_bytes(manifest: Manifest) -> int:
    """Bytes of the inputs of a step on one rank; one that is not split is there once."""
    total = 0
    for spec in manifest.inputs:
        numel = 1
        for size in spec.shape:
            numel *= size
        total += numel * itemsize(spec.dtype) * (1 if spec.dim is None else manifest.microbatches)
    return total
