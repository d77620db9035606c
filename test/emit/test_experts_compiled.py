"""Expert parallelism from a strategy to a run: plain training, in any order, and checkpoints."""

from __future__ import annotations

import copy
import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import piper
import pytest
import torch
from expert_layers import EXPERTS, Model, adamw, loss_fn, make_batch, make_strategy
from expert_layers_worker import LAYERS, NUM_ROWS, NUM_STEPS
from piper.cli import main
from piper_runtime import InstructionError, LocalTransport, Program, Trainer
from piper_runtime.listing import FLAGS, Listing
from plain_ops import plain_ops
from torch import nn
from torchrun import saved_by_ranks, torchrun
from trace_schema import check_trace

TOLERANCE = 1e-10
ROWS = 16
WORKER = Path(__file__).with_name("expert_layers_worker.py")

EP2 = {"edp": 2, "ep": 2}
PIPELINED = {"pp": 2, "edp": 2, "ep": 2}
LAYOUTS: Mapping[str, tuple[Mapping[str, int], int]] = {
    "ep 2, ZeRO-1": (EP2, 1),
    "pp 2, ep 2, ZeRO-3": (PIPELINED, 3),
    "dp 4, ZeRO-2": ({"dp": 4}, 2),
    "ep 4": ({"ep": 4}, 0),
}


@cache
def layout(name: str) -> Program:
    mesh, zero = LAYOUTS[name]
    return piper.compile(Model(), loss_fn, make_strategy(mesh, zero=zero), make_batch(0, ROWS))


def train_as_plain(
    strategy: piper.Strategy, rows: int, *, model: nn.Module, transport: LocalTransport
) -> Trainer:
    """Take some steps in plain PyTorch as well; compare loss, gradients and state of each."""
    program = piper.compile(model, loss_fn, strategy, make_batch(0, rows))
    trainer, plain = Trainer(program, transport=transport), copy.deepcopy(model)
    optimizer = adamw(list(plain.parameters()))
    for step in range(3):
        batch = make_batch(step, rows)
        result = trainer.step(batch)
        optimizer.zero_grad()
        with plain_ops():
            loss = loss_fn(plain, batch)
            loss.backward()  # type: ignore[no-untyped-call]
        assert result.loss == pytest.approx(loss.item(), abs=TOLERANCE)
        gradients = trainer.gradients()
        for name, parameter in plain.named_parameters():
            assert parameter.grad is not None
            assert (gradients[name] - parameter.grad).abs().max() <= TOLERANCE, name
        nn.utils.clip_grad_norm_(plain.parameters(), 0.5)
        optimizer.step()
        state = trainer.full_state_dict()
        for name, parameter in plain.named_parameters():
            assert (state[name] - parameter.detach()).abs().max() <= TOLERANCE, name
    batch = make_batch(9, rows)
    with plain_ops():
        loss = loss_fn(plain, batch)
    assert trainer.evaluate(batch) == pytest.approx(loss.item(), abs=TOLERANCE)
    return trainer


@pytest.mark.parametrize(
    ("mesh", "options", "skew"),
    [
        (EP2, {"zero": 1}, ()),
        ({"ep": 4}, {"zero": 2}, (0.0, 0.0, -100.0, 0.0)),  # rank 2 gets no rows
        ({"edp": 3, "ep": 2}, {"zero": 3}, (9.0, 9.0, 0.0, 0.0)),  # ep 1 gets no rows
        (
            {"pp": 2, "edp": 1, "ep": 2},
            {"zero": 2, "order": "DualPipeV", "microbatches": 6, "stages": 4},
            (),
        ),
    ],
    ids=["zero1", "unused-expert", "all-to-one", "dualpipev"],
)
def test_training_with_shared_out_experts_is_plain_training(
    mesh: Mapping[str, int], options: Mapping[str, Any], skew: Sequence[float]
) -> None:
    strategy = make_strategy(mesh, **options)
    rows = 2 * strategy.microbatches * strategy.num_data_shards
    transport = LocalTransport(seed=1, delays=True)
    train_as_plain(strategy, rows, model=Model(skew), transport=transport)


@pytest.mark.parametrize("name", ["ep 2, ZeRO-1", "pp 2, ep 2, ZeRO-3"])
def test_order_does_not_matter_to_the_bit(name: str) -> None:
    losses = []
    for transport in (
        LocalTransport(),
        LocalTransport(single_queue=True),
        LocalTransport(seed=2),
        LocalTransport(seed=3, delays=True),
    ):
        trainer = Trainer(layout(name), transport=transport)
        losses.append([trainer.step(make_batch(step, ROWS)).loss for step in range(2)])
    assert losses == [losses[0]] * 4


def test_the_host_waits_for_counts_with_other_work_queued() -> None:
    """Where a cell runs alone, too: rows in their order need no counts of other ranks."""
    text = layout("ep 4").texts["program_0.py"]
    run, counts = r"run\((layer_0_F\d?)(?:_eval)?,", r"all_to_all\(.*'layer\.0 (counts)'"
    issued = re.findall(rf"r\.(?:{run}|(host_wait)\(layer_0|{counts})", text)
    once = ["layer_0_F", "counts", "layer_0_F1", "host_wait", "layer_0_F2", "layer_0_F3"]
    assert ["".join(found) for found in issued] == 4 * once  # two microbatches, two steps


def test_a_rank_holds_its_experts_only() -> None:
    trainer = Trainer(layout("ep 4"), transport="local")
    for home in trainer._homes.values():
        for name, bucket in home.buckets.items():
            whole = sum(member.numel for member in bucket.members)
            share = EXPERTS if "experts" in name else 1
            assert bucket.value.numel() * share == whole


def test_rows_beyond_the_capacity_end_the_step() -> None:
    """All tokens choose the experts of rank 0."""
    strategy = make_strategy({"ep": 2}, capacity=1.5)
    model = Model((9.0, 9.0, 0.0, 0.0))
    program = piper.compile(model, loss_fn, strategy, make_batch(0, 8))
    with pytest.raises(
        InstructionError,
        match=r"(?s)rank 0 \(ep 0\).*r\.all_to_all\(.*bound=30, mb=0, label='layer\.0 dispatch'.* "
        r"all_to_all expected at most 30 rows, got 40: \[20, 20\] from ranks 0, 1; a larger capacity"
        r".*expert_layers\.py:\d+ \(layers\.0\)",
    ):
        Trainer(program, transport="local").step(make_batch(0, 8))


@pytest.mark.slow  # a minute of compiling
def test_compiled_kernels_take_any_number_of_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also none: rank 2 gets no rows."""
    monkeypatch.setenv("PIPER_CACHE", str(tmp_path))
    strategy, model = make_strategy({"ep": 4}, zero=1), Model((0.0, 0.0, -100.0, 0.0))
    program = piper.compile(model, loss_fn, strategy, make_batch(0, ROWS))
    eager = Trainer(program, transport="local")
    compiled = Trainer(program, transport="local", kernels="inductor")
    for step in range(2):
        batch = make_batch(step, ROWS)
        assert compiled.step(batch).loss == pytest.approx(eager.step(batch).loss, abs=TOLERANCE)
    expected = eager.gradients()
    for name, value in compiled.gradients().items():
        assert (value - expected[name]).abs().max() <= TOLERANCE, name


def test_show_says_what_is_shared_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    layout("ep 4").save(tmp_path)
    assert main(["show", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert "float64[4, 12, 8]  parameter, shared out over ep" in shown
    assert "float64[192]" in shown  # both of one expert
    assert "host_wait" in shown


def test_instructions_that_wait_for_sizes_or_have_such_are_flagged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two layers, two microbatches: rows come to experts in both passes."""
    program = layout("ep 4")
    program.save(tmp_path)
    assert main(["show", str(tmp_path)]) == 0
    section = capsys.readouterr().out.partition("flagged instructions")[2].partition("\n\n")[0]
    rows = [tuple(re.split(r"  +", line.strip())) for line in section.splitlines()[2:]]
    assert [row[1:] for row in rows if row[0] == "train"] == [
        ("all ranks", "host_wait", "4", "host_sync"),
        ("all ranks", "all_to_all", "8", "dynamic_shape"),
        ("all ranks", "run layer.0$F2", "2", "dynamic_shape"),
        ("all ranks", "run layer.1$F2", "2", "dynamic_shape"),
        ("all ranks", "run layer.1$B", "2", "dynamic_shape"),
        ("all ranks", "run layer.1$B1", "2", "dynamic_shape"),
        ("all ranks", "run layer.0$B", "2", "dynamic_shape"),
        ("all ranks", "run layer.0$B1", "2", "dynamic_shape"),
    ]
    listing, lines = Listing(program), program.texts["program_0.py"].splitlines()
    flags: dict[str, Counter[tuple[str, ...]]] = {}
    for number in listing.entry_lines(0, "train"):
        text, flagged = lines[number - 1], listing.line(0, number).flags
        [kind] = re.findall(r"r\.(\w+)\(", text)
        flags.setdefault(kind, Counter())[flagged] += 1
        assert ("bound=" in text) == (kind == "all_to_all" and flagged == ("dynamic_shape",))
    assert flags.pop("host_wait") == {("host_sync",): 4}
    assert flags.pop("all_to_all")["dynamic_shape",] == 8
    assert flags.pop("run")["dynamic_shape",] == 12
    assert all(set(found) == {()} for found in flags.values())


@pytest.mark.parametrize("seed", [None, 2])
def test_a_trace_has_all_of_it_with_its_flags(tmp_path: Path, seed: int | None) -> None:
    program = layout("pp 2, ep 2, ZeRO-3")
    trainer = Trainer(program, transport=LocalTransport(seed=seed, delays=seed is not None))
    with trainer.trace(tmp_path / "trace.json"):
        trainer.step(make_batch(0, ROWS))
    raw = json.loads((tmp_path / "trace.json").read_text())
    check_trace(raw, program, [1])
    flags: dict[str, set[str]] = {}
    for event in raw["traceEvents"]:
        about = event.get("args", {})
        if "instruction" in about:
            flags.setdefault(about["instruction"], set()).update(set(FLAGS) & set(about))
    assert {kind: found for kind, found in flags.items() if found} == {
        "host_wait": {"host_sync"},
        "all_to_all": {"dynamic_shape"},
        "run": {"dynamic_shape"},
    }


def test_check_mode_compares_what_ranks_exchange() -> None:
    summary = piper.check(layout("ep 4"), loss_fn, make_batch(0, ROWS))
    assert summary.compared > 300
    assert summary.unknown == 0


def test_every_layout_goes_on_from_every_other(tmp_path: Path) -> None:
    """Around once, and the first again: to the bit, and with the losses of an unbroken run."""
    names = [*LAYOUTS, next(iter(LAYOUTS))]
    first = Trainer(layout(names[0]), transport="local")
    for step in range(2):
        first.step(make_batch(step, ROWS))
    first.save(tmp_path / "0")
    state, expected = first.full_state_dict(), first.step(make_batch(2, ROWS)).loss
    for number, (_, name) in enumerate(pairwise(names)):
        trainer = Trainer(layout(name), transport="local", model=Model(seed=number + 1))
        trainer.load(tmp_path / str(number))
        assert all(torch.equal(trainer.full_state_dict()[n], value) for n, value in state.items())
        trainer.save(tmp_path / str(number + 1))
        assert trainer.step(make_batch(2, ROWS)).loss == pytest.approx(expected, abs=TOLERANCE)


def test_processes_train_to_the_bit_as_local_does(tmp_path: Path) -> None:
    """DualPipeV, whose cells overlap: the host of a rank waits amid the other's pieces. The trace of
    their last step is whole.
    """
    strategy = make_strategy(
        {"pp": 2, "edp": 1, "ep": 2}, zero=2, order="DualPipeV", microbatches=6, stages=4
    )
    model, ranks = Model(layers=LAYERS), 4
    program = piper.compile(model, loss_fn, strategy, make_batch(0, NUM_ROWS))
    program.save(tmp_path / "program")
    done = torchrun(WORKER, tmp_path, count=ranks)
    check_trace(json.loads((tmp_path / "trace.json").read_text()), program, [NUM_STEPS])
    trainer = Trainer(program, transport="local")
    losses = [trainer.step(make_batch(step, NUM_ROWS)).loss for step in range(NUM_STEPS)]
    for seen in saved_by_ranks(tmp_path, done, count=ranks):
        assert seen["losses"] == losses
        for name, value in trainer.full_state_dict().items():
            assert torch.equal(seen["state"][name], value)
