"""Memory by storage: what is new, what is an alias, and where the most is alive."""

from __future__ import annotations

import dataclasses

import torch
from handmade import Rows, chunk, facts, run
from piper.simulate.memory import Memory, optimizer_bytes
from piper_runtime.manifest import BucketSpec

BUCKET = BucketSpec("w$b", ("w",), (0,), "bfloat16", 10, "float32")
FROZEN = BucketSpec("v$b", ("v",), (0, 1), "float32", 3, None)
BIG, SMALL = chunk("one", size=1000), chunk("two", stage=1, size=8)


def memory(rows: Rows, *, optimizer: float | None = None) -> Memory:
    chunks = [BIG, dataclasses.replace(SMALL, temporaries=500)]
    program = facts(rows, chunks=chunks, buckets=[BUCKET, FROZEN])
    return run(program, optimizer=optimizer).memory[0]


def test_what_is_alive_ends_at_its_free() -> None:
    rows = Rows()
    first = rows.run(BIG.name)
    rows.run(BIG.name, first)
    rows.add("free", first)
    rows.run(BIG.name)
    found = memory(rows)
    assert found.curve.live == (1000, 2000, 1000, 2000)
    assert (found.activations, found.temporaries, found.at) == (2000, 0, 1)


def test_what_is_needed_inside_counts_at_its_instruction() -> None:
    rows = Rows()
    rows.run(SMALL.name)
    found = memory(rows)
    assert (found.activations, found.temporaries, found.at) == (8, 500, 0)
    rows.run(BIG.name)
    found = memory(rows)
    assert (found.activations, found.temporaries, found.at) == (1008, 0, 1)


def test_states_gradients_and_the_batch_are_no_activations() -> None:
    rows = Rows()
    rows.add("read", results=1, symbol="w$b", slot="value")
    rows.add("input", results=1, input="x", mb=0)
    value = rows.run(BIG.name)
    [gradient] = rows.add("accumulate", value, results=1, bucket="w$b")
    reduced, event = rows.all_reduce(gradient, "all", after=[rows.record()])
    rows.add("free", value)
    rows.add("update", reduced, after=[event], results=1, bucket="w$b")
    found = memory(rows, optimizer=8)
    assert max(found.curve.live) == 1000
    assert found.curve.live[-1] == 0
    assert found.parameters == 10 * 2 + 3 * 4
    assert found.gradients == 10 * 4
    assert found.optimizer == 10 * 8  # a bucket that is not updated has no state
    assert found.batch == 2 * 3 * 4 + 5  # microbatches of x; the mask is there once
    assert (found.temporaries, found.at) == (40, 5)  # alone, a collective copies its operand
    assert found.peak == 32 + 40 + 80 + 29 + 1000 + 40


def test_an_update_needs_room_for_what_it_scales_and_casts() -> None:
    rows = Rows()
    [gradient] = rows.add("read", results=1, symbol="w$b", slot="grad")
    rows.add("update", gradient, results=1, bucket="w$b")
    assert memory(rows).temporaries == 20 + 2 * 20  # cast to the value, two of the largest member
    rows.rows[-1]["clip"] = 1.0
    assert memory(rows).temporaries == 40 + 20 + 2 * 20


def test_what_is_reduced_in_place_has_no_memory_of_its_own() -> None:
    rows = Rows()
    value = rows.run(BIG.name)
    rows.all_reduce(value, "all")  # of a value: a new one
    assert memory(rows).curve.live == (1000, 2000)
    [gradient] = rows.add("accumulate", value, results=1, bucket="w$b")
    rows.all_reduce(gradient, "all")
    assert memory(rows).curve.live == (1000, 2000, 2000, 2000)


def test_what_comes_over_communicators_is_counted_apart() -> None:
    """A received value, then a gathered state, which is no state any more."""
    first, second = Rows(), Rows()
    value = first.run(BIG.name)
    first.send(value, "0.1")
    received, event = second.recv("0.1", size=1000)
    second.run(BIG.name, received, after=[event])
    for rows in (first, second):
        [state] = rows.add("read", results=1, symbol="v$b", slot="value")
        rows.add("all_gather", state, results=2, stream="all")
    second.add("free", received)
    program = facts(first, second, chunks=[BIG], buckets=[BUCKET, FROZEN], ways=["0.1"], dp=2)
    sender, receiver = run(program).memory
    gathered = 2 * 12  # a part of each data-parallel rank
    assert (sender.activations, sender.communication) == (1000, gathered)
    assert (receiver.activations, receiver.communication) == (1000, 1000 + gathered)
    assert receiver.curve.communication == (1000, 1000, 1000, 1000 + gathered, gathered)
    assert receiver.curve.activations == (0, 1000, 1000, 1000, 1000)


def test_only_what_was_accumulated_is_reduced_in_place() -> None:
    rows = Rows()
    [gradient] = rows.add("read", results=1, symbol="w$b", slot="grad")
    rows.all_reduce(gradient, "all")
    assert memory(rows).communication == 40


def test_a_program_without_instructions_holds_its_states() -> None:
    found = memory(Rows())
    assert (found.step, found.at, found.curve.live) == (0, 0, ())
    assert found.peak == found.parameters + found.batch == 32 + 29


def test_a_collective_works_on_copies() -> None:
    """Of 40 bytes over three data-parallel ranks at two coordinates: six parts of 7 bytes."""
    first, second = Rows(), Rows()
    for rows in (first, second):
        [value] = rows.add("input", results=1, input="x", mb=0)
        [gradient] = rows.add("accumulate", value, results=1, bucket="w$b")
        rows.all_reduce(gradient, "all")
    program = facts(first, second, buckets=[BUCKET, FROZEN], dp=3)
    found = run(program).memory[0]
    assert (found.communication, found.temporaries, found.at) == (0, 2 * 42 + 7, 2)


def test_the_copy_that_is_the_result_is_no_temporary() -> None:
    first, second = Rows(), Rows()
    for rows in (first, second):
        rows.all_reduce(rows.run(BIG.name), "all")
    found = run(facts(first, second, chunks=[BIG])).memory[0]
    assert (found.activations, found.communication) == (1000, 1000)
    assert found.temporaries == 500 + 500 + 500 + 500 + 500 - 1000
    alone = Rows()
    alone.all_reduce(alone.run(BIG.name), "all")
    assert run(facts(alone, chunks=[BIG])).memory[0].temporaries == 0


def test_an_unknown_optimizer_stays_unknown() -> None:
    rows = Rows()
    rows.run(BIG.name)
    assert memory(rows).optimizer == 0  # nothing is updated
    [gradient] = rows.add("read", results=1, symbol="w$b", slot="grad")
    rows.add("update", gradient, results=1, bucket="w$b")
    assert memory(rows).optimizer is None
    assert memory(rows).peak == 32 + 40 + 29 + 1000 + 60


def test_optimizers_tell_what_they_keep() -> None:
    assert optimizer_bytes(lambda p: torch.optim.AdamW(p)) == 8
    assert optimizer_bytes(lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9)) == 4
    assert optimizer_bytes(lambda p: torch.optim.SGD(p, lr=0.1)) == 0
    assert optimizer_bytes(lambda p: torch.optim.AdamW(p), "float64") == 16
