"""Collectives and, under torchrun, whole training: gloo does what local does."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from collective_program import collective_program, expected_outputs, make_input
from gloo_worker import NUM_STEPS
from mlp_program import TiedMlp, make_adamw, make_batch, program_texts
from piper_runtime import InstructionError, LocalTransport, Program, Trainer
from piper_runtime.home import Home
from piper_runtime.instruction import COMPUTE, Handle, Instruction
from piper_runtime.rank import Rank
from torch import Tensor
from torchrun import saved_by_ranks, torchrun

WORKER = Path(__file__).with_name("gloo_worker.py")
NUM_RANKS = 4
TOLERANCE = 1e-12
Launched = tuple[Path, subprocess.CompletedProcess[str]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
@pytest.mark.parametrize("seed", [None, 1])
def test_local_collectives(dtype: torch.dtype, seed: int | None) -> None:
    program = collective_program(str(dtype).removeprefix("torch."))
    trainer = Trainer(program, transport=LocalTransport(seed=seed))
    x = make_input(dtype)
    assert trainer.outputs("train", {"x": x}) == expected_outputs(x)


def test_unequal_parts_cannot_be_scattered() -> None:
    program = collective_program("float32", scatter_dim=1)
    with pytest.raises(InstructionError, match="expected dim 1 divisible by 4, got 3"):
        Trainer(program).outputs("train", {"x": make_input(torch.float32)})


def _rank(transport: LocalTransport) -> Rank:
    home = Home(
        index=0,
        name="rank 0",
        file=__file__,
        peers=(0,),
        comms={},
        buckets={},
        loss_dtypes={},
        device=transport.device,
        poison=True,
    )
    return Rank(home, inputs=[{"x": torch.ones(2)}], submit=transport.submit)


def test_an_operand_that_is_not_ready_is_an_error_at_run_time() -> None:
    transport = LocalTransport()
    rank, stray = _rank(transport), Handle()
    stray.producer = Instruction(rank, "recv", "s", "", 1, None, (), (stray,), (), None, None)
    rank.sum(stray)
    with pytest.raises(
        InstructionError, match=r"`rank.sum\(stray\)`.*operand is not ready: it comes"
    ):
        transport.drain()


def test_a_freed_operand_is_poisoned_and_an_error_at_run_time() -> None:
    transport = LocalTransport()
    rank = _rank(transport)
    total = rank.sum(rank.input("x", mb=0))
    double = rank.sum(total, total)
    transport.drain()
    hidden = total.get()
    rank.free(total)
    rank.sum(total)
    with pytest.raises(InstructionError, match=r"operand was freed: by .*: `rank.free\(total\)`"):
        transport.drain()
    assert bool(hidden.isnan().all())
    assert torch.equal(double.get(), torch.full((2,), 2.0))
    assert double.producer.stream == COMPUTE


@pytest.fixture(scope="module")
def launched(tmp_path_factory: pytest.TempPathFactory) -> Launched:
    """Run the worker under torchrun once, for all tests of this module."""
    folder = tmp_path_factory.mktemp("gloo")
    return folder, torchrun(WORKER, folder, count=NUM_RANKS)


@pytest.fixture(scope="module")
def seen(launched: Launched) -> list[dict[str, Any]]:
    """Return what each rank saved."""
    folder, done = launched
    return saved_by_ranks(folder, done, count=NUM_RANKS)


def _close(got: dict[str, Tensor], expected: dict[str, Tensor]) -> bool:
    assert got.keys() == expected.keys()
    return all(
        float((got[name] - value).abs().max()) <= TOLERANCE for name, value in expected.items()
    )


def test_gloo_trains_like_local(seen: list[dict[str, Any]]) -> None:
    trainer = Trainer(Program(program_texts()), model=TiedMlp(), optimizer=make_adamw)
    results = [trainer.step(make_batch(step)) for step in range(NUM_STEPS)]
    for rank in seen:
        assert rank["transport"] == "gloo"
        losses = [result.loss for result in results]
        assert rank["losses"] == pytest.approx(losses, abs=TOLERANCE)
        norms = [result.grad_norm for result in results]
        assert rank["norms"] == pytest.approx(norms, abs=TOLERANCE)
        assert _close(rank["gradients"], trainer.gradients())
        assert _close(rank["state"], trainer.full_state_dict())
        expected = trainer.evaluate(make_batch(9))
        assert rank["evaluation"] == pytest.approx(expected, abs=TOLERANCE)


def test_gloo_collectives(seen: list[dict[str, Any]]) -> None:
    for rank in seen:
        for dtype in (torch.float32, torch.bfloat16, torch.int64):
            assert rank["collectives"][str(dtype)] == expected_outputs(make_input(dtype))


def test_gloo_refuses_replicas_and_batches_that_differ(seen: list[dict[str, Any]]) -> None:
    for rank in seen:
        assert (
            "expected one first value on all ranks, got different ones on ranks 0 and 1"
            in (rank["replicas"])
        )
        assert (
            "batch expected to be the same on ranks 0 and 2, both of data-parallel shard 0"
            in (rank["batches"])
        )


def test_a_failure_on_one_rank_stops_all_with_its_report(launched: Launched) -> None:
    folder, done = launched
    assert done.returncode != 0
    for rank in range(NUM_RANKS):
        seconds, report = (folder / f"failure{rank}.txt").read_text().split("\n", maxsplit=1)
        assert float(seconds) < 30
        assert "rank 1 (pp 0, dp 1), program_pp0.py:" in report
        assert "chunk embed_F, microbatch 0: IndexError: index out of range" in report
        assert rank == 1 or report.startswith("rank 1 failed:\nTraceback")


@pytest.mark.parametrize("seed", [None, 1])
def test_an_observer_is_told_of_every_instruction(seed: int | None) -> None:
    transport = LocalTransport(seed=seed)
    trainer = Trainer(collective_program("float32"), transport=transport)
    seen: list[tuple[Instruction, int, int]] = []
    transport.observer = lambda *span: seen.append(span)
    trainer.outputs("train", {"x": make_input(torch.float32)})
    assert len(set(map(id, (instruction for instruction, _, _ in seen)))) == len(seen)
    assert {instruction.rank.home.index for instruction, _, _ in seen} == set(range(NUM_RANKS))
    assert all(instruction.done and start <= end for instruction, start, end in seen)
    assert {"input", "all_reduce", "output"} <= {instruction.kind for instruction, _, _ in seen}
