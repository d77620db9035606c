"""Bytes of communicators beside the textbook, on programs written by hand and on compiled ones."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from fractions import Fraction
from functools import cache
from typing import Any, Literal

import piper
import pytest
import torch
from compiled_mlp import compiled, sgd
from handmade import Rows, chunk, facts
from piper.simulate import ProgramFacts
from piper.simulate.communication import Traffic, measure_traffic, measure_volumes
from piper.simulate.replication import Replication
from piper.simulate.sizes import Size
from piper_runtime import Program, Trainer
from piper_runtime.instruction import Instruction
from piper_runtime.manifest import BucketSpec
from piper_runtime.mesh import CommSpec
from piper_runtime.transports.local import LocalTransport

BUCKET = BucketSpec("w$b", ("w",), (0,), "bfloat16", 100, "float32")
OTHER = BucketSpec("v$b", ("v",), (0,), "float32", 50, None)
CHUNK = chunk("one", size=1000)
RANKS = 4


def collective(op: str, *, calls: int = 1, size: int = 1000) -> tuple[Traffic, ...]:
    """The traffic of a program that does a collective with a value of a chunk, `calls` times."""
    rows = Rows()
    value = rows.run(CHUNK.name)
    for _ in range(calls):
        rows.add(op, value, results=2, stream="all")
    return measure_traffic(counted(rows, size=size))


def counted(*rows: Rows, microbatches: int = 2, size: int = 1000, **more: Any) -> ProgramFacts:
    """Programs on four data-parallel ranks per coordinate."""
    chunks = [replace(CHUNK, results=(Size.of(size),))]
    found = facts(*rows, chunks=chunks, buckets=[BUCKET, OTHER], dp=RANKS, **more)
    return replace(found, manifest=replace(found.manifest, microbatches=microbatches))


@pytest.mark.parametrize(
    ("op", "expected"),
    [
        ("all_reduce", 2 * 1000 * 3 // 4),
        ("reduce_scatter", 1000 * 3 // 4),
        ("all_gather", 1000 * 3),  # three quarters of four times as much
        ("all_to_all", 1000 * 3 // 4),
        ("broadcast", 1000),
        ("permute", 1000),
    ],
)
def test_collectives_move_what_the_textbook_says(op: str, expected: int) -> None:
    [found] = collective(op)
    assert (found.op, found.members, found.values, found.calls) == (op, RANKS, 1, 1)
    assert found.num_bytes == found.textbook == expected
    assert found.ratio == 1.0


def test_a_communicator_of_one_moves_nothing() -> None:
    rows = Rows()
    rows.all_reduce(rows.run(CHUNK.name), "all")
    [found] = measure_traffic(facts(rows, chunks=[CHUNK]))
    assert (found.num_bytes, found.textbook, found.ratio) == (0, 0, None)


def test_what_goes_more_often_than_it_has_to_shows() -> None:
    [found] = collective("all_reduce", calls=3)
    assert (found.calls, found.values, found.ratio) == (3, 1, 3.0)


REDUCED = 4
LAST, EACH = Replication(), Replication(reduce="each")


@pytest.mark.parametrize(
    ("replication", "each", "calls", "ratio"),
    [
        (LAST, False, 1, 1.0),
        (LAST, False, 2, 2.0),
        (LAST, True, 1, REDUCED),  # for every microbatch, where once was asked for
        (EACH, True, 1, 1.0),
        (EACH, True, 2, 2.0),
        (EACH, False, 1, 1 / REDUCED),  # the sum alone
        (None, True, 1, REDUCED),
    ],
)
@pytest.mark.parametrize("op", ["all_reduce", "reduce_scatter"])
def test_reductions_are_held_against_the_policy(
    op: str, replication: Replication | None, *, each: bool, calls: int, ratio: float
) -> None:
    """Of each contribution to a gradient, or of their sum, `calls` times, as asked for or not."""
    rows = Rows()

    def reduce(value: int) -> int:
        results = [rows.add(op, value, results=2, stream="own")[0] for _ in range(calls)]
        return results[-1]

    total: list[int] = []
    for mb in range(REDUCED):
        value = rows.run(CHUNK.name, mb=mb)
        value = reduce(value) if each else value
        total = rows.add("accumulate", value, *total, results=1, bucket="w$b")
    if not each:
        reduce(total[0])
    found = measure_traffic(replicated_as(rows, replication))[0]
    assert (found.values, found.calls) == (1, calls * (REDUCED if each else 1))
    assert found.ratio == ratio


@pytest.mark.parametrize(
    ("replication", "passes", "shared", "ratio"),
    [
        (Replication(3), "F", 1, 1.0),
        (Replication(3), "FB", 1, 1.0),
        (Replication(3), "FIW", 1, 1.5),  # and again for the other half of backward
        (Replication(3, gather="group"), "FB", 2, 0.5),
        (Replication(3, gather="step"), "FB", 2 * REDUCED, 1.0),
        (Replication(3, gather="step"), "FB", 1, 2 * REDUCED),
        (Replication(1), "FB", 2 * REDUCED, 1.0),
        (Replication(2, gather="step"), "FB", REDUCED, 2.0),
        (None, "FB", 1, 2 * REDUCED),
    ],
)
def test_gathers_are_held_against_the_policy(
    replication: Replication | None, passes: str, shared: int, ratio: float
) -> None:
    """So many runs in a row share a gather, whatever was asked for."""
    rows = Rows()
    runs = [(pass_, mb) for mb in range(REDUCED) for pass_ in passes]
    for index, (pass_, mb) in enumerate(runs):
        if index % shared == 0:
            [state] = rows.add("read", results=1, symbol="v$b", slot="value")
            whole, _ = rows.add("all_gather", state, results=2, stream="own")
        rows.run(f"one.0${pass_}", whole, mb=mb)
    [found] = measure_traffic(replicated_as(rows, replication, passes))
    assert (found.values, found.calls) == (1, len(runs) // shared)
    assert found.ratio == ratio


def replicated_as(rows: Rows, replication: Replication | None, passes: str = "F") -> ProgramFacts:
    """A program on one coordinate of two, with all buckets replicated one way, or not at all."""
    found = counted(rows, Rows())
    own = CommSpec("own", ("dp",), (0,))
    chunks = {f"one.0${pass_}": chunk("one", pass_=pass_, size=400) for pass_ in passes}
    return replace(
        found,
        chunks={**found.chunks, **chunks},
        manifest=replace(found.manifest, comms=(*found.manifest.comms, own)),
        replications={} if replication is None else {"w$b": replication, "v$b": replication},
    )


def test_copies_at_several_coordinates_are_summed_once() -> None:
    own, both = CommSpec("own", ("dp",), (0,)), CommSpec("both", ("dp",), (0, 1))
    times = [
        Replication(3, "each", "each").times("all_reduce", comm, contributions=8, uses=16)
        for comm in (own, both)
    ]
    assert times == [8, 1]


def test_values_are_buckets_and_what_else_is_communicated() -> None:
    rows = Rows()
    value = rows.run(CHUNK.name)
    [first] = rows.add("accumulate", value, results=1, bucket="w$b")
    reduced, _ = rows.all_reduce(first, "all")
    rows.all_reduce(reduced, "all")  # the same bucket once more
    [state] = rows.add("read", results=1, symbol="v$b", slot="value")
    rows.all_reduce(state, "all")
    rows.all_reduce(rows.run(CHUNK.name), "all")
    [found] = measure_traffic(counted(rows))
    assert (found.calls, found.values) == (4, 3)
    assert found.num_bytes == (400 + 400 + 200 + 1000) * 3 // 2
    assert found.textbook == (400 + 200 + 1000) * 3 // 2


def test_messages_are_to_go_once_each() -> None:
    def programs(again: bool) -> ProgramFacts:
        first, second = Rows(), Rows()
        for mb in (0, 1, *([1] if again else [])):
            first.send(first.run(CHUNK.name, mb=mb), "0.1", mb=mb)
            second.recv("0.1", size=1000, mb=mb)
        return counted(first, second, ways=["0.1"])

    [found] = measure_traffic(programs(again=False))
    assert (found.op, found.coordinates, found.members) == ("send", (0, 1), 2)
    assert (found.values, found.calls) == (1, 2)
    assert found.num_bytes == found.textbook == 2000
    [found] = measure_traffic(programs(again=True))
    assert (found.num_bytes, found.textbook, found.ratio) == (3000, 2000, 1.5)


def test_both_ways_of_a_communicator_are_told_apart() -> None:
    first, second = Rows(), Rows()
    more: dict[str, Any] = {"stream": "all", "mb": 0, "label": "x"}
    first.add("send", first.run(CHUNK.name), results=1, peer=1, **more)
    second.add("recv", results=2, peer=0, shape=[1000], dtype="i8", **more)
    second.add("send", second.run(CHUNK.name), results=1, peer=0, **more)
    first.add("recv", results=2, peer=1, shape=[1000], dtype="i8", **more)
    found = measure_traffic(facts(first, second, chunks=[CHUNK]))
    assert [item.coordinates for item in found] == [(0, 1), (1, 0)]


def test_ranks_have_sums_and_count_their_parameters() -> None:
    """Scatter a reduction and gather a state, as stage 1 of ZeRO does."""
    first, second = Rows(), Rows()
    first.send(first.run(CHUNK.name), "0.1")
    [gradient] = first.add("read", results=1, symbol="w$b", slot="value")
    first.add("reduce_scatter", gradient, results=2, stream="all")
    [part] = first.add("input", results=1, input="x", mb=0)  # 12 bytes, as a part of the state
    first.add("all_gather", part, results=2, stream="all")
    second.recv("0.1", size=1000)
    sender, receiver = measure_volumes(counted(first, second, ways=["0.1"]))
    assert (sender.sent, sender.received, receiver.sent, receiver.received) == (1000, 0, 0, 1000)
    # Four data-parallel ranks have parts, at two coordinates: eight ranks meet.
    assert sender.collectives == (200 + 4 * 12) * 7 // 8
    assert (sender.trained, receiver.trained) == (200, 0)  # one bucket is frozen
    assert sender.multiple == (200 + 4 * 12) / 200
    assert receiver.multiple is None


# Compiled programs.


MICROBATCHES = 4
PARAMETERS = 2 * (8 * 8 + 8) * 4  # bytes of a stage

Reduce = Literal["last", "each"]
Gather = Literal["each", "step"]
Policy = tuple[int, Reduce, Gather | None]
REDUCTIONS: tuple[Reduce, ...] = ("last", "each")
GATHERS: tuple[Gather, ...] = ("each", "step")
POLICIES: list[Policy] = [
    *((zero, reduce, None) for zero in range(3) for reduce in REDUCTIONS),
    *((3, reduce, gather) for reduce in REDUCTIONS for gather in GATHERS),
]


@cache
def replicated(microbatches: int, dp: int, policy: Policy = (0, "last", None)) -> Program:
    """Two stages, in copies that share out states by a policy: stage of ZeRO, reduce, gather."""
    zero, reduce, gather = policy
    return compiled(
        "1F1B",
        pp=2,
        microbatches=microbatches,
        dp=dp,
        replicate=piper.replicate(axis="dp", zero=zero, reduce=reduce, gather=gather),
        update=piper.update(sgd, clip=1.0),
    )


@pytest.fixture(scope="module")
def program() -> Program:
    return replicated(MICROBATCHES, RANKS)


@pytest.fixture(scope="module", params=POLICIES, ids=str)
def sharing(request: pytest.FixtureRequest) -> tuple[Policy, Program]:
    policy: Policy = request.param
    return policy, replicated(MICROBATCHES, RANKS, policy)


def formulas(policy: Policy) -> dict[tuple[str, str], int]:
    """Bytes of a rank of the first stage by the textbook, by communicator and collective.

    An all_reduce is a reduce_scatter and an all_gather, each of (n-1)/n of the parameters. What is
    reduced for each microbatch goes as often as there are; states that are gathered for each use
    go forward and backward, but the first layer's, half of them, whose input needs no gradient.
    """
    zero, reduce, gather = policy
    once = PARAMETERS * (RANKS - 1) // RANKS
    reductions = MICROBATCHES if reduce == "each" else 1
    whole = zero == 0 or (zero == 1 and reduce == "each")
    found = {
        ("reduce.dp$0", "all_reduce" if whole else "reduce_scatter"): reductions
        * once
        * (2 if whole else 1)
    }
    if zero:
        uses = (once + once // 2) * MICROBATCHES
        found["gather.dp$0", "all_gather"] = uses if gather == "each" else once
    return found


def test_every_stage_of_zero_moves_what_its_formula_says(sharing: tuple[Policy, Program]) -> None:
    policy, program = sharing
    found = measure_traffic(ProgramFacts.read(program))
    assert {item.ratio for item in found} == {1.0}
    moved = {
        (item.comm.name, item.op): item.num_bytes
        for item in found
        if item.coordinates == (0,) and item.comm.axes == ("dp",)
    }
    assert moved == formulas(policy)
    messages = {item.comm.name: item.num_bytes for item in found if item.op == "send"}
    assert messages == dict.fromkeys(("send$0.1", "send$1.0"), MICROBATCHES * (4 * 8 * 4))
    for volume in measure_volumes(ProgramFacts.read(program)):
        assert volume.trained == PARAMETERS
    first, _ = measure_volumes(ProgramFacts.read(program))
    crossed = sum(formulas(policy).values()) / (PARAMETERS * (RANKS - 1) / RANKS)
    assert first.multiple == pytest.approx(crossed, abs=0.05)  # besides, the loss and the norm


def test_a_program_that_moves_more_than_it_was_asked_to_shows() -> None:
    """One that reduces and gathers for each microbatch, as if it were to do both once a step."""
    program = replicated(MICROBATCHES, RANKS, (3, "each", "each"))
    found = ProgramFacts.read(program)
    buckets = {bucket.name for bucket in found.manifest.buckets}
    assert found.replications == dict.fromkeys(buckets, Replication(3, "each", "each"))
    once = dict.fromkeys(buckets, Replication(3, "last", "step"))
    ratios = {
        (item.comm.name, item.op): item.ratio
        for item in measure_traffic(replace(found, replications=once))
        if item.comm.axes == ("dp",) and len(item.coordinates) == 1 and item.values == 2
    }
    # The first layer's weights are read forward only.
    assert ratios == {
        ("reduce.dp$0", "reduce_scatter"): MICROBATCHES,
        ("gather.dp$0", "all_gather"): MICROBATCHES * (1 + 2) / 2,
        ("reduce.dp$1", "reduce_scatter"): MICROBATCHES,
        ("gather.dp$1", "all_gather"): MICROBATCHES * 2,
    }


def test_policies_are_read_as_they_were_recorded(sharing: tuple[Policy, Program]) -> None:
    (zero, reduce, gather), program = sharing
    found = ProgramFacts.read(program).replications
    assert set(found.values()) == {Replication(zero, reduce, gather or "each")}


def test_the_policy_group_is_read() -> None:
    found = ProgramFacts.read(replicated(MICROBATCHES, RANKS, (3, "each", "group"))).replications
    assert set(found.values()) == {Replication(3, "each", "group")}


def test_compiled_programs_move_what_the_textbook_says(program: Program) -> None:
    found = measure_traffic(ProgramFacts.read(program))
    assert {item.ratio for item in found} == {1.0}
    messages = {item.comm.name: item for item in found if item.op == "send"}
    assert set(messages) == {"send$0.1", "send$1.0"}
    assert all(item.num_bytes == 4 * (4 * 8 * 4) for item in messages.values())
    for volume in measure_volumes(ProgramFacts.read(program)):
        assert volume.trained == PARAMETERS
        assert volume.multiple == pytest.approx(2.0, abs=0.02)  # besides, the loss


def test_bytes_are_those_of_the_tensors_that_transports_get(
    sharing: tuple[Policy, Program],
) -> None:
    """What rank 0 and its copies hand to the transport, by kind and communicator, to the byte."""
    policy, program = sharing
    handed: Counter[tuple[str, str]] = Counter()

    class Weigh:
        def before(self, instruction: Instruction) -> None:
            message = instruction.message
            if message is not None and instruction.operands and instruction.rank.home.index < RANKS:
                size = instruction.operands[0].get().nbytes
                handed[message.comm.name, instruction.kind] += size

        def after(self, instruction: Instruction, value: Any) -> None:
            pass

    class Weighing(LocalTransport):
        def submit(self, instruction: Instruction) -> None:
            instruction.hooks = (*instruction.hooks, Weigh())
            super().submit(instruction)

    trainer = Trainer(program, transport=Weighing())
    trainer.step({"x": torch.randn(4 * MICROBATCHES * RANKS, 8)})
    trainer.close()
    found = {
        (item.comm.name, item.op): item
        for item in measure_traffic(ProgramFacts.read(program))
        if item.coordinates[0] == 0
    }
    assert handed.keys() == found.keys() > formulas(policy).keys()
    for name, item in found.items():
        n = item.members
        share = {
            "send": Fraction(1),
            "all_reduce": Fraction(2 * (n - 1), n),
            "reduce_scatter": Fraction(n - 1, n),
            "all_gather": Fraction(n - 1),  # of a part, which is what is handed over
        }[item.op]
        assert item.num_bytes == round(handed[name] / RANKS * share), name


def test_microbatches_count_messages_and_not_reductions() -> None:
    few, many = (
        {
            (item.comm.name, item.op): item.num_bytes
            for item in measure_traffic(ProgramFacts.read(replicated(count, dp=2)))
        }
        for count in (2, 6)
    )
    assert many["send$0.1", "send"] == 3 * few["send$0.1", "send"]
    assert many["reduce.dp$0", "all_reduce"] == few["reduce.dp$0", "all_reduce"]


def test_another_entry_point_can_be_asked_for() -> None:
    facts_ = ProgramFacts.read(compiled("1F1B", pp=2, microbatches=2))
    assert [item.comm.name for item in measure_traffic(facts_, "eval") if item.op == "send"] == [
        "send$0.1"
    ]
    with pytest.raises(ValueError, match=r"entry point must be one of .*, got 'test'"):
        measure_traffic(facts_, "test")
