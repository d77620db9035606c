"""The main job: its options, what each process feeds, and a short run with its closing check."""

from __future__ import annotations

import argparse
import math

import pytest
import torch
import train_lm
from piper.strategy import Mesh
from train_lm import parse
from training import Process, distance, mesh_sizes, transport_of

SIZES = {"steps": 2, "layers": 2, "width": 16, "heads": 2, "context": 8, "batch": 8}
SMALL = [f"--{name}={value}" for name, value in SIZES.items()]


def test_mesh_sizes() -> None:
    assert mesh_sizes("pp=2,dp=3") == {"pp": 2, "dp": 3}
    for wrong in ("pp", "pp=", "pp=a", ""):
        with pytest.raises(argparse.ArgumentTypeError, match="expected such as pp=2,dp=1"):
            mesh_sizes(wrong)


def test_default_options() -> None:
    options = parse([])
    assert options.mesh == {"pp": 2, "dp": 1}
    assert transport_of(options) is None
    assert transport_of(parse(["--transport=gloo"])) == "gloo"
    assert options.check
    assert not parse(["--no-check"]).check


def test_one_process_feeds_everything() -> None:
    batch = {"ids": torch.arange(8)}
    assert Process(0, 1).shard(batch, Mesh.of({"pp": 2, "dp": 2})) is batch


@pytest.mark.parametrize(
    ("mesh", "rank", "rows"),
    [
        ({"pp": 2, "dp": 2}, 0, [0, 1]),
        ({"pp": 2, "dp": 2}, 1, [2, 3]),
        ({"pp": 2, "dp": 2}, 2, [0, 1]),
        ({"dp": 2, "pp": 2}, 1, [0, 1]),
        ({"dp": 2, "pp": 2}, 2, [2, 3]),
        ({"pp": 4}, 3, [0, 1, 2, 3]),
    ],
)
def test_each_process_feeds_its_shard(mesh: dict[str, int], rank: int, rows: list[int]) -> None:
    shard = Process(rank, 4).shard({"ids": torch.arange(4)}, Mesh.of(mesh))
    assert shard["ids"].tolist() == rows


def test_world_size_must_be_the_mesh() -> None:
    with pytest.raises(ValueError, match="needs 4 ranks, got a world of 2"):
        Process(0, 2).shard({}, Mesh.of({"pp": 2, "dp": 2}))


def test_only_rank_0_prints(capsys: pytest.CaptureFixture[str]) -> None:
    Process(1, 2).say("one")
    Process(0, 2).say("zero")
    assert capsys.readouterr().out == "zero\n"


def test_distance() -> None:
    small, large = torch.tensor([0.5, 0.25]), torch.tensor([100.0, 0.0])
    assert distance(small, small) == 0
    assert distance(small + 0.5, small) == 0.5
    assert distance(large + 1, large) == pytest.approx(0.01)
    assert distance(small * math.nan, small) == math.inf


@pytest.mark.parametrize("mesh", ["pp=2,dp=1", "pp=2,dp=2", "dp=2", "pp=1"])
def test_run_passes_its_check(mesh: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert train_lm.main([*SMALL, "--mesh", mesh, "--microbatches", "2"]) == 0
    out = capsys.readouterr().out
    assert "0F0" in out
    assert "step: 2 loss: " in out
    assert "validation loss: " in out
    assert "check: passed" in out


def test_failed_check_is_the_exit_status(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(train_lm, "TOLERANCE", -1.0)
    assert train_lm.main([*SMALL, "--mesh", "pp=1", "--schedule", "gpipe"]) == 1
    assert "check: FAILED" in capsys.readouterr().out
