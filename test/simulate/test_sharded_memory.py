"""Sharded state in simulation: what a rank holds, what collectives make, what that costs."""

from __future__ import annotations

import dataclasses
from typing import Any

import piper
import pytest
import torch
from compiled_mlp import adamw, compiled
from handmade import Rows, chunk, facts, network, run
from piper.simulate import Link, Network, Profile, ProgramFacts, simulate_program
from piper.simulate.memory import Memory
from piper.simulate.values import Values, bucket_bytes, read_values
from piper_runtime import Trainer
from piper_runtime.manifest import BucketSpec
from piper_runtime.states.state import Bucket

WHOLE = BucketSpec("w$b", ("w",), (0,), "float32", 10, "float32")
ZERO_1 = dataclasses.replace(WHOLE, shard_axes=("dp",), compute_dtype="float32")
ZERO_3 = dataclasses.replace(WHOLE, shard_axes=("dp",), grad_sharded=True)
MASTER = dataclasses.replace(
    WHOLE, shard_axes=("dp",), compute_dtype="bfloat16", compute_sharded=True
)
PACKED = chunk("one", size=48)
PART, PADDED = 3 * 4, 12 * 4
"""Bytes of ten elements over four ranks: parts of three, together twelve."""


def memory(rows: Rows, bucket: BucketSpec, *, optimizer: float = 8) -> Memory:
    program = facts(rows, chunks=[PACKED], buckets=[bucket], dp=4)
    return run(program, optimizer=optimizer).memory[0]


def values(rows: Rows, bucket: BucketSpec) -> Values:
    return read_values(rows.rows, facts(rows, chunks=[PACKED], buckets=[bucket], dp=4))


def gather(rows: Rows, value: int) -> int:
    out = rows.add("all_gather", value, after=[rows.record()], results=2, stream="all", dim=0)
    return out[0]


def scatter(rows: Rows, value: int) -> int:
    out = rows.add("reduce_scatter", value, after=[rows.record()], results=2, stream="all", dim=0)
    return out[0]


@pytest.mark.parametrize(
    ("bucket", "parameters", "gradients", "optimizer"),
    [
        pytest.param(WHOLE, 40, 40, 80, id="whole"),
        pytest.param(ZERO_1, PADDED, PADDED, 24, id="the value is a view of compute"),
        pytest.param(ZERO_3, PART, PART, 24, id="all are parts"),
        pytest.param(MASTER, PART + PART // 2, PADDED, 24, id="a narrower copy"),
    ],
)
def test_a_rank_holds_its_part(
    bucket: BucketSpec, parameters: int, gradients: int, optimizer: int
) -> None:
    rows = Rows()
    [gradient] = rows.add("read", results=1, symbol="w$b", slot="grad")
    rows.add("update", gradient, results=1, bucket="w$b")
    found = memory(rows, bucket)
    assert found.parameters == parameters
    assert found.gradients == gradients
    assert found.optimizer == optimizer


def test_slots_have_the_bytes_of_parts_or_of_the_padded_whole() -> None:
    mesh = facts(Rows(), dp=4).manifest.mesh
    assert [bucket_bytes(MASTER, mesh, slot=slot) for slot in ("value", "compute", "grad")] == [
        PART,
        PART // 2,
        PADDED,
    ]
    assert bucket_bytes(ZERO_3, mesh, slot="compute") == 0


def test_collectives_slices_and_conversions_make_new_tensors() -> None:
    rows = Rows()
    [value] = rows.add("read", results=1, symbol="w$b", slot="value")
    whole = gather(rows, value)
    packed = rows.run(PACKED.name, whole)
    part = scatter(rows, packed)
    [own] = rows.add("slice", packed, results=1, axis="dp", dim=0)
    [narrow] = rows.add("convert", part, results=1, dtype="bf16", shape=[3])
    [gradient] = rows.add("accumulate", own, results=1, bucket="w$b")
    [updated] = rows.add("update", gradient, results=1, bucket="w$b")
    rows.add("write", updated, symbol="w$b", slot="compute")
    found = values(rows, MASTER)
    assert found.bytes(value) == found.bytes(updated) == PART
    assert found.bytes(whole) == found.bytes(packed) == PADDED
    assert found.bytes(part) == found.bytes(own) == PART
    assert found.bytes(narrow) == PART // 2
    assert found.bytes(gradient) == PADDED
    assert found.owned == {whole, packed, part, own, narrow}


def test_what_is_gathered_is_there_until_its_free() -> None:
    rows = Rows()
    [value] = rows.add("read", results=1, symbol="w$b", slot="value")
    whole = gather(rows, value)
    rows.add("free", whole)
    found = memory(rows, ZERO_3)
    assert found.temporaries == 0  # the parts are received where they stay
    assert found.peak == found.parameters + found.batch + PADDED
    rows.rows.pop()
    rows.add("free", gather(rows, value))  # the first is there still
    assert memory(rows, ZERO_3).peak == found.peak + PADDED


def test_a_reduction_over_coordinates_leaves_a_part_per_data_parallel_rank() -> None:
    """Of a tied weight: eight members, four parts, each sent to two."""
    first, second = Rows(), Rows()
    for rows in (first, second):
        part = scatter(rows, rows.run(PACKED.name))
        assert values(rows, ZERO_3).bytes(part) == PART
    program = facts(first, second, chunks=[PACKED], buckets=[ZERO_3], dp=4)
    found = run(program).memory[0]
    assert found.temporaries == (2 * 8 + 1) * PART - PART


def test_an_update_works_on_parts() -> None:
    rows = Rows()
    [gradient] = rows.add("read", results=1, symbol="w$b", slot="grad")
    rows.add("update", gradient, results=1, bucket="w$b", clip=1.0)
    assert memory(rows, ZERO_3).temporaries == PART + 2 * PART  # scaled, two of a part's size
    assert memory(rows, WHOLE).temporaries == 40 + 2 * 40


def test_compute_pays_for_the_bytes_that_it_moves() -> None:
    """A byte per second: a slice reads and writes a part, a write reads and writes the slot."""
    rows = Rows()
    packed = rows.run(PACKED.name)
    [own] = rows.add("slice", packed, results=1, axis="dp", dim=0)
    [narrow] = rows.add("convert", own, results=1, dtype="bf16", shape=[3])
    rows.add("write", narrow, symbol="w$b", slot="compute")
    [gradient] = rows.add("read", results=1, symbol="w$b", slot="grad")
    rows.add("update", gradient, results=1, bucket="w$b")
    program = facts(rows, chunks=[PACKED], buckets=[MASTER], dp=4)
    profile = Profile("a machine", {"one": 1.0}, memory_bandwidth=1.0)
    times = simulate_program(program, profile, network(), optimizer=8).times[0]
    assert [round(end - start) for start, end in times] == [
        1,
        2 * PART,
        PART + PART // 2,
        2 * (PART // 2),
        0,
        2 * PART + PART + 2 * 8 * 3,
    ]


# Against what ranks hold.


@pytest.mark.parametrize("reduce", ["last", "each"])
@pytest.mark.parametrize("zero", [0, 1, 2, 3])
def test_what_is_kept_between_steps_is_what_ranks_hold(zero: int, reduce: Any) -> None:
    """A layer of 56 elements over three ranks: parts of 19, one element of padding."""

    shared = piper.replicate(axis="dp", zero=zero, reduce=reduce)
    program = compiled("1F1B", pp=2, microbatches=2, dp=3, width=7, replicate=shared)
    trainer = Trainer(program)
    trainer.step({"x": torch.randn(24, 7)})
    facts = ProgramFacts.read(program)
    prices = Profile("a machine", dict.fromkeys(facts.kernels, 1.0), memory_bandwidth=1.0)
    wire = Network(Link("wire", "", 1.0, 0.0, {}))
    simulated = simulate_program(facts, prices, wire, optimizer=adamw)
    for rank, home in trainer._homes.items():
        held = list(home.buckets.values())
        predicted = simulated.memory[facts.manifest.mesh.coordinate(rank)]
        assert predicted.parameters == sum(map(_parameter_bytes, held))
        assert predicted.gradients == sum(bucket.grad.nbytes for bucket in held)
        kept = sum(map(_optimizer_bytes, held))
        last = facts.manifest.mesh.index(rank, ["dp"]) == 2  # has the padding
        padding = sum(8 * (-bucket.spec.numel % bucket.shard.count) for bucket in held)
        assert predicted.optimizer == kept + (padding if last else 0)


def _parameter_bytes(bucket: Bucket) -> int:
    """Bytes of the storages of value and compute, each once."""
    slots = [bucket.value] if bucket.compute is None else [bucket.value, bucket.compute]
    storages = [slot.untyped_storage() for slot in slots]
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


def _optimizer_bytes(bucket: Bucket) -> int:
    assert bucket._optimizer is not None
    states = bucket._optimizer.state.values()
    return sum(state[name].nbytes for state in states for name in ("exp_avg", "exp_avg_sq"))
