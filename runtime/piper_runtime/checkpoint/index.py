"""The index of a checkpoint: what is in it, and in which file each piece lies."""

from __future__ import annotations

from pathlib import Path

from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import Metadata

from piper_runtime.checkpoint.folder import METADATA
from piper_runtime.errors import CheckpointError

__all__ = ["open_index", "unreadable"]


def open_index(folder: Path, *, first: bool) -> tuple[FileSystemReader, Metadata]:
    """Return a reader of a checkpoint and its index; ``first`` says that this is rank 0.

    Raises CheckpointError, naming the file, for one that torch cannot read.
    """
    reader, file = FileSystemReader(folder), folder / METADATA
    try:
        metadata = reader.read_metadata()
    except Exception as error:  # a damaged pickle may raise anything
        raise unreadable(f"checkpoint index {file}", error) from error
    if not isinstance(metadata, Metadata) or not isinstance(metadata.storage_data, dict):
        raise CheckpointError(
            f"checkpoint index {file} expected what torch.distributed.checkpoint saves, with a file "
            f"for each piece, got {_described(metadata)}: load another checkpoint"
        )
    reader.set_up_storage_reader(metadata, first)
    return reader, metadata


def unreadable(what: str, error: Exception) -> CheckpointError:
    """Return the error to raise of a file that ``error`` has kept from being read."""
    why = f"{type(error).__name__}: {(str(error).splitlines() or ['no more is known'])[0]}"
    damaged = not isinstance(error, OSError)
    cure = "it is damaged, load another checkpoint" if damaged else "make it readable"
    return CheckpointError(f"{what} cannot be read ({why}): {cure}")


def _described(found: object) -> str:
    return "no files" if isinstance(found, Metadata) else f"a {type(found).__name__}"
