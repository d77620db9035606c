"""A checkpoint is replaced as a whole: whatever fails, one that can be read is there."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from checkpoint_cases import DP4, everything, same, start, train
from piper_runtime import CheckpointError, Trainer
from sharded_program import Sharding
from torch.distributed.checkpoint.filesystem import FileSystemWriter

SHARDING = Sharding(3, "each", DP4)


def trained(steps: int) -> Trainer:
    trainer = start(SHARDING)
    train(trainer, SHARDING, steps)
    return trainer


def check_loads(path: Path, expected: Trainer) -> None:
    trainer = start(SHARDING, seed=1)
    trainer.load(path)
    assert same(everything(trainer), everything(expected))


def test_a_newer_checkpoint_replaces_an_older_one(tmp_path: Path) -> None:
    path = tmp_path / "some" / "it"
    for steps in (1, 2):
        trainer = trained(steps)
        trainer.save(path)
        check_loads(path, trainer)
        assert [*path.parent.iterdir()] == [path]


def fail(*_: Any, **__: Any) -> None:
    raise OSError("no space left")


def fail_to_rename(how_many: int) -> Callable[[Path, Path], Path]:
    """Return a rename of which the first ones succeed and the next one fails."""
    rename, left = Path.rename, [how_many]

    def renamed(self: Path, target: Path) -> Path:
        left[0] -= 1
        if left[0] == -1:
            fail()
        return rename(self, target)

    return renamed


FAILURES = {
    "writing": (FileSystemWriter, "write_data", fail),
    "the index": (FileSystemWriter, "finish", fail),
    "naming the index": (Path, "rename", fail_to_rename(0)),
    "putting the old one aside": (Path, "rename", fail_to_rename(1)),
    "naming the new one": (Path, "rename", fail_to_rename(2)),
}


@pytest.mark.parametrize("what", FAILURES)
def test_the_old_one_stays_if_it_fails(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "it"
    old = trained(1)
    old.save(path)
    new = trained(2)
    with monkeypatch.context() as patch:
        patch.setattr(*FAILURES[what])
        with pytest.raises(CheckpointError, match="no space left"):
            new.save(path)
    assert [*tmp_path.iterdir()] == [path]
    check_loads(path, old)
    new.save(path)
    check_loads(path, new)


KILLED = """
import os
from pathlib import Path
from checkpoint_cases import start, train
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from test_checkpoint_folder import SHARDING

trainer = start(SHARDING)
train(trainer, SHARDING, 2)
{patch}
trainer.save({path!r})
"""
PATCHES = {
    "while it writes": "FileSystemWriter.finish = lambda *_, **__: os._exit(9)",
    "between the renames": (
        "rename = Path.rename\n"
        "Path.rename = lambda self, to: (os._exit(9) if self.suffix == '.saving' else "
        "rename(self, to))"
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("when", PATCHES)
def test_the_old_one_stays_if_the_process_is_killed(when: str, tmp_path: Path) -> None:
    path = tmp_path / "it"
    old = trained(1)
    old.save(path)
    script = KILLED.format(patch=PATCHES[when], path=str(path))
    where = os.environ | {"PYTHONPATH": str(Path(__file__).parent)}
    done = subprocess.run([sys.executable, "-c", script], env=where, check=False, timeout=120)
    assert done.returncode == 9
    assert {file.name for file in tmp_path.iterdir()} > {"it.saving"}
    check_loads(path, old)
    new = trained(2)
    new.save(path)
    check_loads(path, new)
    assert [*tmp_path.iterdir()] == [path]


def test_what_a_killed_process_left_is_removed(tmp_path: Path) -> None:
    """It was killed between the renames, or when the old one was about to be removed."""
    path, aside = tmp_path / "it", tmp_path / "it.replaced"
    old, new = trained(1), trained(2)
    old.save(path)
    path.rename(aside)
    (tmp_path / "it.saving").mkdir()
    check_loads(path, old)
    new.save(path)
    path.rename(aside)
    old.save(path)
    old.save(aside)
    new.save(path)
    assert [*tmp_path.iterdir()] == [path]
    check_loads(path, new)


def test_other_files_are_not_replaced(tmp_path: Path) -> None:
    trainer = trained(0)
    (tmp_path / "thesis.tex").write_text("all my work")
    message = rf"save expected a new folder or that of a checkpoint, got {tmp_path}, which is neith"
    with pytest.raises(CheckpointError, match=message):
        trainer.save(tmp_path)
    with pytest.raises(CheckpointError, match=r"thesis\.tex, which is neither"):
        trainer.save(tmp_path / "thesis.tex")
    assert (tmp_path / "thesis.tex").read_text() == "all my work"
    (tmp_path / "empty").mkdir()
    trainer.save(tmp_path / "empty")
    check_loads(tmp_path / "empty", trainer)


def test_a_link_to_a_folder_stays(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "disk")
    for steps in (0, 1):
        trainer = trained(steps)
        trainer.save(tmp_path / "link")
        check_loads(tmp_path / "link", trainer)
    assert (tmp_path / "link").is_symlink()
    assert {file.name for file in tmp_path.iterdir()} == {"disk", "link"}
