"""A checkpoint that does not fit is refused by name, before anything is changed."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from checkpoint_cases import DP2, DP4, everything, read, same, start, train, write
from mlp_program import make_sgd
from piper_runtime import CheckpointError
from sharded_program import Sharding
from torch import Tensor, nn
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import Metadata

SHARDING = Sharding(1, "last", DP4)
Tree = dict[str, Any]


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Tree:
    """What a checkpoint has after a step."""
    path = tmp_path_factory.mktemp("checkpoint") / "it"
    sharding = Sharding(3, "each", DP2)
    trainer = start(sharding)
    train(trainer, sharding, 1)
    trainer.save(path)
    return read(path)


def edited(tree: Tree, change: Callable[[Tree], object], path: Path) -> Path:
    copied = {
        "model": dict(tree["model"]),
        "optimizer": {"state": {n: dict(s) for n, s in tree["optimizer"]["state"].items()}},
        "train_state": dict(tree["train_state"]),
    }
    change(copied)
    write(copied, path)
    return path


def refused(path: Path, message: str, **options: Any) -> None:
    """Load into a trainer that has made a step; it stays as it is."""
    trainer = start(SHARDING, seed=1, **options)
    train(trainer, SHARDING, 1)
    before = everything(trainer)
    with pytest.raises(CheckpointError, match=message):
        trainer.load(path)
    assert same(everything(trainer), before)


CHANGES: dict[str, tuple[Callable[[Tree], object], str]] = {
    "lacks a parameter": (
        lambda t: t["model"].pop("gain"),
        r"does not fit the program: expected a tensor 'model.gain', got none$",
    ),
    "has another parameter": (
        lambda t: t["model"].update(more=torch.ones(2)),
        "expected no 'model.more', since the program has no such state$",
    ),
    "has another shape": (
        lambda t: t["model"].update({"fc.weight": torch.ones(3, 7)}),
        r"expected 'model.fc.weight' of shape \(7, 3\), got \(3, 7\)$",
    ),
    "has integers": (
        lambda t: t["model"].update(gain=torch.ones(3, dtype=torch.int64)),
        "expected 'model.gain' of float64, got int64$",
    ),
    "has no tensor": (
        lambda t: t["model"].update(gain="much"),
        "expected a tensor 'model.gain', got another object$",
    ),
    "lacks optimizer state": (
        lambda t: t["optimizer"]["state"].pop("gain"),
        "expected optimizer state exp_avg, exp_avg_sq, step of 'gain', as AdamW keeps it, got none$",
    ),
    "lacks all optimizer state": (
        lambda t: t.pop("optimizer"),
        r"of 'fc.weight', as AdamW keeps it, got none; .*; and 4 more$",
    ),
    "lacks some of it": (
        lambda t: t["optimizer"]["state"]["gain"].pop("step"),
        "of 'gain', as AdamW keeps it, got exp_avg, exp_avg_sq$",
    ),
    "has it in another shape": (
        lambda t: t["optimizer"]["state"]["gain"].update(step=torch.ones(3)),
        r"expected 'optimizer.state.gain.step' of shape \(\), got \(3,\)$",
    ),
    "has that of another parameter": (
        lambda t: t["optimizer"]["state"].update(more={"step": torch.ones(())}),
        "expected no optimizer state of 'more', since the program does not train it$",
    ),
    "lacks the step": (
        lambda t: t["train_state"].pop("step"),
        "expected a number 'train_state.step', got none$",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", CHANGES)
def test_a_checkpoint_that(what: str, tree: Tree, tmp_path: Path) -> None:
    change, message = CHANGES[what]
    refused(edited(tree, change, tmp_path / "it"), message)


def test_another_optimizer(tree: Tree, tmp_path: Path) -> None:
    path = edited(tree, lambda t: t, tmp_path / "it")
    message = "state momentum_buffer of 'fc.weight', as SGD keeps it, got exp_avg, exp_avg_sq, step"
    refused(path, message, factory=make_sgd)


def test_another_kind_of_optimizer_state(tree: Tree, tmp_path: Path) -> None:
    """Some parameters of a bucket have other options."""

    def factory(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        groups = [{"params": [p], "amsgrad": p.dim() > 1} for p in parameters]
        return torch.optim.AdamW(groups)

    path = edited(tree, lambda t: t, tmp_path / "it")
    message = "state exp_avg, exp_avg_sq, max_exp_avg_sq, step of 'fc.weight', .*'out.weight'[^;]*$"
    refused(path, message, factory=factory)


def test_a_folder_without_a_checkpoint(tmp_path: Path) -> None:
    refused(tmp_path, rf"load expected a checkpoint with a file .metadata, got {tmp_path}$")


def test_a_checkpoint_that_lacks_elements(tree: Tree, tmp_path: Path) -> None:
    """Its index says that nobody wrote them."""
    path = edited(tree, lambda t: t, tmp_path / "it")
    metadata = pickle.loads((path / ".metadata").read_bytes())
    metadata.state_dict_metadata["model.fc.weight"].chunks[0].sizes = torch.Size([6, 3])
    (path / ".metadata").write_bytes(pickle.dumps(metadata))
    refused(path, "load expected 21 elements of 'model.fc.weight', got 18$")


def test_a_file_that_is_gone(tree: Tree, tmp_path: Path) -> None:
    path = edited(tree, lambda t: t, tmp_path / "it")
    [file] = path.glob("*.distcp")
    file.unlink()
    message = (
        rf"^checkpoint expected a file {file}, which its index names, got none \(No such file or "
        r"directory\): put all files of the checkpoint there, or load another one$"
    )
    refused(path, message)


@pytest.mark.parametrize("lacking", ["most", "a byte"])
def test_a_file_that_was_cut_off(lacking: str, tree: Tree, tmp_path: Path) -> None:
    """Also where what is read last is not there, nothing has been changed."""
    path = edited(tree, lambda t: t, tmp_path / "it")
    [file] = path.glob("*.distcp")
    size = file.stat().st_size
    left = 100 if lacking == "most" else size - 1
    os.truncate(file, left)
    message = (
        rf"^checkpoint file {file} expected at least \d+ bytes, as the index of the checkpoint says, "
        rf"got {left}: it was cut off, copy it again or load another checkpoint$"
    )
    refused(path, message)


def test_a_file_that_is_damaged(tree: Tree, tmp_path: Path) -> None:
    path = edited(tree, lambda t: t, tmp_path / "it")
    [file] = path.glob("*.distcp")
    file.write_bytes(b"x" * file.stat().st_size)
    message = (
        rf"^checkpoint file {file} cannot be read \(\w+: .*\): it is damaged, load another "
        "checkpoint$"
    )
    refused(path, message)


@pytest.mark.parametrize("content", [b"garbage", b"", None], ids=["garbage", "nothing", "half"])
def test_an_index_that_is_damaged(content: bytes | None, tree: Tree, tmp_path: Path) -> None:
    path = edited(tree, lambda t: t, tmp_path / "it")
    index = path / ".metadata"
    whole = index.read_bytes()
    index.write_bytes(whole[: len(whole) // 2] if content is None else content)
    message = (
        rf"^checkpoint index {index} cannot be read \(\w+: .*\): it is damaged, load another "
        "checkpoint$"
    )
    refused(path, message)


def test_an_index_that_may_not_be_read(
    tree: Tree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = edited(tree, lambda t: t, tmp_path / "it")
    error = PermissionError(13, "Permission denied", str(path / ".metadata"))

    def refuse(*_: Any) -> None:
        raise error

    monkeypatch.setattr(FileSystemReader, "read_metadata", refuse)
    refused(
        path, r"^checkpoint index \S* cannot be read \(PermissionError: .*\): make it readable$"
    )


@pytest.mark.parametrize(
    ("content", "got"), [(SimpleNamespace(), "a SimpleNamespace"), (Metadata({}), "no files")]
)
def test_an_index_of_something_else(content: Any, got: str, tree: Tree, tmp_path: Path) -> None:
    path = edited(tree, lambda t: t, tmp_path / "it")
    (path / ".metadata").write_bytes(pickle.dumps(content))
    message = (
        r"^checkpoint index \S*\.metadata expected what torch\.distributed\.checkpoint saves, with a "
        f"file for each piece, got {got}: load another checkpoint$"
    )
    refused(path, message)


def test_an_index_that_does_not_say_where_a_piece_is(tree: Tree, tmp_path: Path) -> None:
    path = edited(tree, lambda t: t, tmp_path / "it")
    metadata = pickle.loads((path / ".metadata").read_bytes())
    for index in [one for one in metadata.storage_data if one.fqn == "model.fc.weight"]:
        del metadata.storage_data[index]
    (path / ".metadata").write_bytes(pickle.dumps(metadata))
    message = (
        rf"^checkpoint {path} expected a file for each piece, got none for 'model\.fc\.weight' from "
        r"\[0, 0\]: its index is damaged, load another checkpoint$"
    )
    refused(path, message)


def test_what_is_not_the_trainers_is_left_alone(tree: Tree, tmp_path: Path) -> None:
    """Options of an optimizer, schedules and other numbers may be there."""

    def add(t: Tree) -> None:
        t["optimizer"]["param_groups"] = [{"lr": 0.1}]
        t["lr_scheduler"] = {"last_epoch": 3}
        t["train_state"]["ntokens_seen"] = 7

    trainer = start(SHARDING, seed=1)
    trainer.load(edited(tree, add, tmp_path / "it"))
    weights: dict[str, Tensor] = tree["model"]
    assert same(trainer.full_state_dict(), {name: weights[name] for name in weights})
