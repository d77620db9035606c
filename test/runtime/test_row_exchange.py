"""all_to_all with sizes that depend on data, and host_wait: on local, gloo, and streams."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from exchange_program import (
    COLUMNS,
    EP,
    NUM,
    NUM_RANKS,
    exchange_program,
    exchange_text,
    expected_output,
    make_input,
    sent,
)
from frozen import Machine
from piper_runtime import InstructionError, LocalTransport, Program, ProgramError, Trainer
from piper_runtime.compute import sizes
from piper_runtime.failures.hang import Programs, find_blame
from piper_runtime.instruction import COMPUTE, HOST, Instruction, Message
from piper_runtime.mesh import Comm
from piper_runtime.transports.base import rows_of
from recorded_streams import NOTHING, Log, RecordedTransport, check_log, pretended_world
from torch import Tensor
from torchrun import saved_by_ranks, torchrun

WORKER = Path(__file__).with_name("exchange_worker.py")
DTYPES = [torch.float64, torch.bfloat16, torch.int64]
TWO = Comm("exchange.ep$0", (4, 5))


def run(program: Program, transport: LocalTransport | None = None) -> float:
    trainer = Trainer(program, transport=transport or LocalTransport())
    return trainer.outputs("train", make_input())["back"]


def leaving(rank: int, microbatch: int) -> int:
    """Return how many rows a rank gives to others."""
    return sum(n for place, n in enumerate(sent(rank, microbatch)) if place != rank % EP)


# On local.


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_go_to_other_ranks_and_come_back(dtype: torch.dtype) -> None:
    program, batch = exchange_program(str(dtype).removeprefix("torch.")), make_input(dtype)
    trainer = Trainer(program, transport=LocalTransport())
    assert trainer.outputs("train", batch)["back"] == expected_output(batch)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("delays", [False, True])
def test_order_does_not_matter(seed: int, delays: bool) -> None:
    """Whatever the host issues behind a host_wait waits for it, so sizes are always there."""
    found = run(exchange_program(), LocalTransport(seed=seed, delays=delays))
    assert found == expected_output(make_input())


def test_one_queue_for_all_communication() -> None:
    """The host has a queue of its own."""
    found = run(exchange_program(), LocalTransport(single_queue=True))
    assert found == expected_output(make_input())


def test_a_host_wait_holds_back_all_that_is_issued_later() -> None:
    """An input needs nothing, but the host comes to it when the sizes are known."""
    trainer = Trainer(exchange_program(), transport=LocalTransport(seed=3))
    done: list[tuple[int, str, int]] = []
    for members in trainer.stepper(make_input()):
        done += [(i.rank.home.index, i.kind, i.number) for i in members]
    for rank in range(NUM_RANKS):
        mine = [(kind, number) for at, kind, number in done if at == rank]
        places = {number: place for place, (_, number) in enumerate(mine)}
        waits = [number for kind, number in mine if kind == "host_wait"]
        assert len(waits) == NUM
        for wait in waits:
            assert all(places[n] > places[wait] for n in places if n > wait)


def test_sizes_are_lists_until_they_are_freed() -> None:
    trainer = Trainer(exchange_program(), transport=LocalTransport())
    stepper = trainer.stepper(make_input())
    stepper.run_until("all_to_all layer.0_dispatch mb 0", rank=0)
    for rank in range(EP):
        assert stepper.value("hs_0", rank=rank) == sent(rank, 0)
        assert stepper.value("hr_0", rank=rank) == [sent(other, 0)[rank] for other in range(EP)]
    stepper.finish()
    with pytest.raises(RuntimeError, match=r"operand was freed: by .*r\.free"):
        stepper.value("hr_0", rank=0)


def test_freed_rows_are_poisoned() -> None:
    """Of any number; the chunk keeps them on purpose."""
    text = exchange_text().replace(
        "    assert len(rows)", "    kept.append(rows)\n    assert len(rows)"
    )
    trainer = Trainer(exchange_program(text=f"kept = []\n{text}"), transport=LocalTransport())
    trainer.outputs("train", make_input())
    kept: list[Tensor] = trainer._loaded.modules[0].kept
    assert min(len(rows) for rows in kept) == 0 < max(len(rows) for rows in kept)
    assert all(bool(rows.isnan().all()) for rows in kept)


# What is wrong.


def test_more_rows_than_the_bound_are_an_error() -> None:
    """Rank 1 gets four and two rows: it says so, and who sends them."""
    with pytest.raises(InstructionError) as raised:
        run(exchange_program(text=exchange_text(bound=5)))
    text = str(raised.value)
    assert re.search(
        r"rank 1 \(edp 0, ep 1\), program_0\.py:\d+: `in_0, b_0 = r\.all_to_all\(rows_0, .*", text
    )
    assert (
        "all_to_all expected at most 5 rows, got 6: [4, 2] from ranks 0, 1; a larger capacity in "
        "piper.shard(capacity=) raises the bound" in text
    )


def test_as_many_rows_as_the_bound_are_none() -> None:
    most = max(
        sum(sent(rank, mb)[index] for rank in pair)
        for pair in ((0, 1), (2, 3))
        for index in range(EP)
        for mb in range(NUM)
    )
    run(exchange_program(text=exchange_text(bound=most)))
    with pytest.raises(InstructionError, match=f"at most {most - 1} rows, got {most}"):
        run(exchange_program(text=exchange_text(bound=most - 1)))


def test_sizes_of_both_ends_must_agree() -> None:
    """A rank that expects what it sends: the first pair happens to differ."""
    with pytest.raises(InstructionError, match=r"expected 4 rows of rank 1, which sends 2"):
        run(exchange_program(text=exchange_text(sizes="hs_{m}, hs_{m}")))


def test_sizes_must_be_those_of_the_rows() -> None:
    """Those that come from each rank say nothing about those that go."""
    with pytest.raises(InstructionError, match=r"sizes to send that add up to 7, its rows, got "):
        run(exchange_program(text=exchange_text(sizes="hr_{m}, hs_{m}")))


def test_counts_that_nobody_waits_for_are_a_race() -> None:
    """Compute reads what it was sent; without the event of an exchange that is refused."""
    text = exchange_text().replace(", after=[b_0])", ")")
    with pytest.raises(ProgramError, match=r"operand of .*in_0, b_0.* is not ready"):
        Trainer(exchange_program(text=text))


def test_a_host_wait_needs_no_events() -> None:
    """It waits for what it is given, and what is issued behind it needs no event of it."""
    text = exchange_text().replace("mb=0, after=[a_0])", "mb=0)")
    assert text != exchange_text()
    assert run(exchange_program(text=text)) == expected_output(make_input())


def test_ranks_exchange_what_differs_in_rows_only() -> None:
    narrow = "return x[: int(c.sum()), : 3 - int(c[0, 0] > 1)].clone()"
    text = exchange_text().replace("return x[: int(c.sum())].clone()", narrow)
    with pytest.raises(InstructionError, match=r"expected torch.float64 \(.*\) as others, but for"):
        run(exchange_program(text=text))


def test_all_members_exchange_the_same_value() -> None:
    instruction = _instruction(Message(TWO, label="layer.0 dispatch"))
    assert instruction.identity() == "all_to_all layer.0 dispatch of microbatch 3"
    assert _instruction(Message(TWO)).identity() == "all_to_all of microbatch 3"


def _instruction(message: Message) -> Instruction:
    rank: Any = None
    return Instruction(rank, "all_to_all", "s", "c", 1, 3, (), (), (), None, message)


# Parts.


def rows(value: Tensor, *given: list[int], comm: Comm = TWO, **options: Any) -> Any:
    return rows_of(Message(comm, own=0, **options), value, *given)


def test_equal_parts() -> None:
    message = Message(TWO, own=1, dim=1)
    found = rows_of(message, torch.zeros(3, 4, 5, dtype=torch.bfloat16))
    assert (found.sent, found.received, found.equal) == ((2, 2), (2, 2), True)
    assert message.sent == 3 * 2 * 5 * 2


def test_sizes_say_the_shape_and_the_bytes() -> None:
    message = Message(TWO, own=1, dim=1, bound=5)
    value = torch.zeros(3, 4)
    found = rows_of(message, value, [1, 3], [5, 0])
    assert found.shape(value, 1) == (3, 5)
    assert message.sent == 3 * 1 * 4  # its own three do not leave


@pytest.mark.parametrize(
    ("given", "options", "message"),
    [
        ([], {}, "all_to_all expected dim 0 divisible by 2, got 5"),
        (
            [[1, 4], [1]],
            {},
            r"sizes to receive of at least 0, one for each of 2 members, got \[1\]",
        ),
        ([[6, -1], [1, 1]], {}, r"sizes to send of at least 0, .* got \[6, -1\]"),
        ([[1, 3], [1, 1]], {}, r"sizes to send that add up to 5, its rows, got \[1, 3\]"),
        (
            [[1, 4], [2, 1]],
            {"bound": 2},
            r"at most 2 rows, got 3: \[2, 1\] from ranks 4, 5; a large",
        ),
    ],
)
def test_parts_that_do_not_fit(
    given: list[list[int]], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        rows(torch.zeros(5, 2), *given, **options)


def test_members_have_places_of_their_own() -> None:
    twins = Comm("twins", (0, 1, 2, 3), (0, 1, 0, 1))
    with pytest.raises(ValueError, match="expected a communicator of one coordinate, got twins"):
        rows(torch.zeros(4, 2), comm=twins)


def test_sizes_are_sums_of_rows() -> None:
    counts, flat = torch.tensor([[1, 2], [3, 4]]), torch.tensor([5, 6])
    assert sizes(counts) == [3, 7]
    assert sizes(counts, flat) == ([3, 7], [5, 6])


# What others see.


def test_a_trace_has_the_bytes_that_are_sent(tmp_path: Path) -> None:
    trainer = Trainer(exchange_program(), transport=LocalTransport())
    with trainer.trace(tmp_path / "trace.json"):
        trainer.step(make_input())
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    ranges = [event for event in events if event.get("ph") == "X"]
    found = {
        (event["pid"], event["args"]["microbatch"]): event["args"]["bytes_sent"]
        for event in ranges
        if event["name"] == "all_to_all layer.0 dispatch"
    }
    for rank in range(NUM_RANKS):
        for mb in range(NUM):
            assert found[rank, mb] == leaving(rank, mb) * COLUMNS * 8
    waits = [event for event in ranges if event["name"] == "host_wait"]
    assert len(waits) == NUM_RANKS * NUM
    assert all(wait["args"]["host_sync"] for wait in waits)
    names = {event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert {HOST, COMPUTE, "exchange.ep$0"} <= names


def test_wherever_one_instruction_hangs_every_rank_that_waits_finds_it() -> None:
    """Also where ranks wait for how many rows there are."""
    programs, asked = Programs(exchange_program().load(torch.device("cpu"))), 0
    for rank in range(NUM_RANKS):
        for frozen in programs.instructions(rank, "train"):
            machine = Machine(programs, frozen)
            statuses = machine.statuses()
            for other in filter(machine.waits, range(NUM_RANKS)):
                blame = find_blame(programs, statuses, other)
                assert frozen in [blame.instruction, *blame.others], (frozen.describe(), other)
                asked += 1
    assert asked > 200


# On streams.


def record(rank: int, drop: int = NOTHING) -> Log:
    """What the host of a rank issues. Here each gets back what it sends."""
    batch = make_input()
    batch["c"] = torch.tensor([[2, 2], [1, 3]]).repeat(NUM_RANKS * NUM, 1)
    transport = RecordedTransport(rank, drop=drop)
    with pretended_world(rank, NUM_RANKS):
        trainer = Trainer(exchange_program(), transport=transport)
        trainer.outputs("train", {name: v.chunk(NUM_RANKS)[rank] for name, v in batch.items()})
        trainer.close()
    return transport.recording.log


@pytest.mark.parametrize("rank", range(NUM_RANKS))
def test_streams_wait_for_what_they_need(rank: int) -> None:
    log = record(rank)
    waits = [what for kind, _, what in log.entries if kind == "issue" and what.stream == HOST]
    assert len(waits) == NUM
    assert {name for what in waits for name, _ in what.needs} == {COMPUTE, "exchange.ep$0"}
    assert check_log(log) == []


def test_the_host_waits_for_counts_and_for_nothing_else() -> None:
    """Its stream follows the exchange that it needs, not all that was issued to compute."""
    entries = record(0).entries
    points = {what: stream for kind, stream, what in entries if kind == "record"}
    followed = [points[what] for kind, stream, what in entries if (kind, stream) == ("wait", HOST)]
    assert followed == ["exchange.ep$0"] * NUM


def test_every_wait_is_needed() -> None:
    """Each is left out once: the check says so."""
    count = record(0).waits
    assert count > 10
    for drop in range(count):
        assert check_log(record(0, drop)), f"wait {drop}"


# Between processes.


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Return what each rank saw under torchrun."""
    folder = tmp_path_factory.mktemp("exchange")
    done = torchrun(WORKER, folder, count=NUM_RANKS)
    return saved_by_ranks(folder, done, count=NUM_RANKS)


@pytest.mark.parametrize("transport", ["gloo", "threaded"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_processes_exchange_rows(
    seen: list[dict[str, Any]], transport: str, dtype: torch.dtype
) -> None:
    for found in seen:
        assert found["outputs"][transport, str(dtype)] == expected_output(make_input(dtype))


@pytest.mark.parametrize("transport", ["gloo", "threaded"])
def test_processes_count_the_bytes(seen: list[dict[str, Any]], transport: str) -> None:
    for rank, found in enumerate(seen):
        for mb in range(NUM):
            counted = found["bytes"][transport]["layer.0 dispatch", mb]
            assert counted == leaving(rank, mb) * COLUMNS * 8


def test_processes_that_check_find_sizes_that_differ(seen: list[dict[str, Any]]) -> None:
    for found in seen:
        assert re.search(r"expected \d rows of rank \d, which sends \d", found["mismatch"])


def test_a_bound_ends_all_processes(seen: list[dict[str, Any]]) -> None:
    for found in seen:
        assert re.search(r"all_to_all expected at most 5 rows, got \d+: \[", found["bound"])
        assert "r.all_to_all(rows_" in found["bound"]


def test_a_rank_in_a_host_wait_says_for_whom_it_waits(seen: list[dict[str, Any]]) -> None:
    """Rank 1 sleeps before it says how many rows it has."""
    for found in seen:
        assert "rank 1 (edp 0, ep 1) is behind: it has been running" in found["hang"]
        waits = "rank 0 (edp 0, ep 0) waits for rank 1: all_to_all of layer.0 counts, instruction"
        assert waits in found["hang"]
