"""A checkpoint's folder is replaced as a whole: written beside it, then renamed.

    NAME.saving    the new one, while it is written
    NAME.replaced  the old one, between the two renames and until it is removed

If a process dies, NAME is what it was; in the moment between the renames it is called
NAME.replaced, where ``find`` looks.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from piper_runtime.errors import CheckpointError

__all__ = ["METADATA", "discard", "find", "prepare", "saving", "swap"]

METADATA = ".metadata"


def saving(path: Path) -> Path:
    """Return where a new checkpoint is written."""
    return path.with_name(f"{path.name}.saving")


def prepare(path: Path) -> None:
    """Make an empty folder to write to; raises CheckpointError if ``path`` is something else."""
    _restore(path)
    if path.exists() and not _is_checkpoint(path) and not _is_empty(path):
        raise CheckpointError(
            f"save expected a new folder or that of a checkpoint, got {path}, which is neither"
        )
    folder = saving(path)
    if folder.exists():
        shutil.rmtree(folder)
    folder.mkdir(parents=True)


def swap(path: Path) -> None:
    """Give the folder that was written the name of the checkpoint, and remove the old one."""
    new, old = saving(path), _replaced(path)
    _sync(new)
    if path.exists():
        path.rename(old)
    try:
        new.rename(path)
    except OSError:
        _restore(path)
        raise
    _sync(path.parent)
    shutil.rmtree(old, ignore_errors=True)


def discard(path: Path) -> None:
    """Remove what was written, if anything was."""
    shutil.rmtree(saving(path), ignore_errors=True)


def find(path: Path) -> Path:
    """Return where the checkpoint is; raises CheckpointError if there is none."""
    for folder in (path, _replaced(path)):
        if _is_checkpoint(folder):
            return folder
    raise CheckpointError(f"load expected a checkpoint with a file {METADATA}, got {path}")


def _restore(path: Path) -> None:
    """Give the old checkpoint its name back if a process died between the renames."""
    old = _replaced(path)
    if not old.exists():
        return
    if path.exists():
        shutil.rmtree(old)
    else:
        old.rename(path)


def _replaced(path: Path) -> Path:
    return path.with_name(f"{path.name}.replaced")


def _is_checkpoint(path: Path) -> bool:
    return (path / METADATA).is_file()


def _is_empty(path: Path) -> bool:
    return path.is_dir() and not any(path.iterdir())


def _sync(folder: Path) -> None:
    """Make sure that the names in a folder are on the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
