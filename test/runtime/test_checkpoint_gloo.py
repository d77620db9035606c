"""Checkpoints of several processes, under torchrun: each writes and reads its own part."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoint_cases import AFTER, BEFORE, everything, read, start, train
from checkpoint_worker import NUM_RANKS, SAVER
from mlp_program import TiedMlp, make_adamw, make_batch, program_texts
from piper_runtime import Program, Trainer
from torchrun import torchrun

TOLERANCE = 1e-12
WORKER = Path(__file__).with_name("checkpoint_worker.py")

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run the worker under torchrun once, for all tests of this module."""
    folder = tmp_path_factory.mktemp("gloo")
    done = torchrun(WORKER, folder, count=NUM_RANKS)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def seen(folder: Path) -> list[dict[str, Any]]:
    """Return what each rank saw."""
    return [torch.load(folder / f"rank{rank}.pt") for rank in range(NUM_RANKS)]


def test_processes_go_on_as_one_does(folder: Path, seen: list[dict[str, Any]]) -> None:
    """Losses after loading under another sharding, and what was saved before and after."""
    local = start(SAVER)
    train(local, SAVER, BEFORE)
    again = start(SAVER, seed=1)
    again.load(folder / "saved")
    whole = local.full_state_dict()
    for name, value in again.full_state_dict().items():
        assert torch.allclose(value, whole[name], rtol=0, atol=TOLERANCE)
    losses = train(local, SAVER, AFTER)
    for rank in seen:
        assert rank["losses"] == pytest.approx(losses, abs=TOLERANCE)
    later = read(folder / "later")
    assert int(later["train_state"]["step"]) == BEFORE + AFTER
    whole = local.full_state_dict()
    for name, value in later["model"].items():
        assert torch.allclose(value, whole[name], rtol=0, atol=TOLERANCE)


def test_every_process_writes_its_part(folder: Path) -> None:
    for name in ("saved", "later"):
        files = {file.name: file.stat().st_size for file in (folder / name).glob("*.distcp")}
        assert files.keys() == {f"__{rank}_0.distcp" for rank in range(NUM_RANKS)}
        assert all(files.values())


def test_a_process_that_cannot_write_fails_all(folder: Path, seen: list[dict[str, Any]]) -> None:
    """The older checkpoint is what the others load."""
    expected = "save failed on rank 1: OSError: no space left"
    assert [rank["write"] for rank in seen] == [expected] * NUM_RANKS
    assert not (folder / "saved.saving").exists()
    assert int(read(folder / "saved")["train_state"]["step"]) == BEFORE


def test_a_process_for_which_it_does_not_fit_fails_all(seen: list[dict[str, Any]]) -> None:
    for rank, found in enumerate(seen):
        assert "expected optimizer state momentum_buffer of" in found["fit"]
        assert found["fit"].endswith("(on rank 2)") == (rank != 2)


def test_stages_that_share_a_weight_write_it_once(folder: Path) -> None:
    """One process that stands for all ranks reads what two stages of two ranks wrote."""
    tree = read(folder / "tied")
    assert "head.weight" not in tree["model"]
    trainers = [
        Trainer(Program(program_texts()), model=TiedMlp(), optimizer=make_adamw, transport="local")
        for _ in range(2)
    ]
    trainers[0].step(make_batch(0))
    trainers[1].load(folder / "tied")
    one, other = (everything(trainer) for trainer in trainers)
    assert one.keys() == other.keys()
    assert all(torch.allclose(one[n], v, rtol=0, atol=1e-6) for n, v in other.items())
