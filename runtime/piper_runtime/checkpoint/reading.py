"""Reading boxes of a checkpoint into places that hold the same elements."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from pathlib import Path

import torch
from torch import Tensor
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadPlan, ReadItem
from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list

from piper_runtime.checkpoint.boxes import Box
from piper_runtime.checkpoint.index import unreadable
from piper_runtime.checkpoint.keys import Run
from piper_runtime.errors import CheckpointError

__all__ = ["Plans", "Reading"]

Plans = Mapping[Path, LoadPlan]
"""What is read of each file."""


@dataclass(frozen=True, slots=True)
class _Place:
    """Where the elements of a box go, after they have been converted to ``dtype``."""

    box: Box
    dtype: torch.dtype
    views: list[Tensor] = field(default_factory=list)


class Reading(DefaultLoadPlanner):
    """Reads every box once, however many ranks of this process hold it, in whichever slots.

    What is read is converted to the dtype of the value first and then to that of each place, so
    that a slot which is derived from the value is what a step would derive.
    """

    def __init__(self, metadata: Metadata) -> None:
        """Read nothing yet."""
        super().__init__()
        self._entries = metadata.state_dict_metadata
        self._places: dict[str, dict[Box, _Place]] = {}
        self._planned: dict[str, list[_Place]] = {}

    def add(self, run: Run, dtype: torch.dtype) -> None:
        """Let ``run.values`` be written, with what the checkpoint has, rounded to ``dtype``."""
        places = self._places.setdefault(str(run.key), {})
        for box, part in run.boxes():
            places.setdefault(box, _Place(box, dtype)).views.append(part)

    def plan(self, reader: FileSystemReader) -> Plans:
        """Return what is read, by file, having looked that it is there.

        Raises CheckpointError if a box is not completely in the index, or a file is not there or
        too short. Nothing has been read by then.
        """
        items: dict[Path, list[ReadItem]] = {}
        ends: dict[Path, int] = {}
        for item in self.create_local_plan().items:
            place = reader.storage_data.get(item.storage_index)
            if place is None:
                raise CheckpointError(
                    f"checkpoint {reader.path} expected a file for each piece, got none for "
                    f"{item.storage_index.fqn!r} from {list(item.storage_index.offset or ())}: its "
                    "index is damaged, load another checkpoint"
                )
            path = Path(reader.path, place.relative_path)
            items.setdefault(path, []).append(item)
            ends[path] = max(ends.get(path, 0), place.offset + place.length)
        for path, end in ends.items():
            _check_file(path, end)
        return {path: LoadPlan(found) for path, found in items.items()}

    def read(self, reader: FileSystemReader, plans: Plans) -> None:
        """Fill all places; raises CheckpointError that names a file that cannot be read."""
        for path, plan in plans.items():
            try:
                reader.read_data(plan, self).wait()
            except Exception as error:
                raise unreadable(f"checkpoint file {path}", error) from error

    def create_local_plan(self) -> LoadPlan:
        """Return which boxes of the files are read."""
        items = []
        self._planned = {key: [*places.values()] for key, places in self._places.items()}
        for key, places in self._places.items():
            entry = self._entries[key]
            assert isinstance(entry, TensorStorageMetadata)
            chunks = [
                ChunkStorageMetadata(torch.Size(box.offsets), torch.Size(box.sizes))
                for box in places
            ]
            found = create_read_items_for_chunk_list(key, entry, chunks)
            want, got = sum(box.numel for box in places), sum(prod(i.lengths) for i in found)
            if want != got:
                raise CheckpointError(f"load expected {want} elements of {key!r}, got {got}")
            items += found
        return LoadPlan(items)

    def resolve_tensor(self, read_item: ReadItem) -> Tensor:
        """Return where a box is read to."""
        return torch.empty(read_item.lengths, dtype=self._place(read_item).dtype)

    def commit_tensor(self, read_item: ReadItem, tensor: Tensor) -> None:
        """Copy a box that was read to its places."""
        region = [
            slice(start, start + size)
            for start, size in zip(read_item.dest_offsets, read_item.lengths, strict=True)
        ]
        with torch.no_grad():
            for view in self._place(read_item).views:
                view[tuple(region)].copy_(tensor)

    def _place(self, item: ReadItem) -> _Place:
        assert item.dest_index.index is not None
        return self._planned[item.dest_index.fqn][item.dest_index.index]


def _check_file(path: Path, end: int) -> None:
    """Raise CheckpointError unless there is a file with bytes up to ``end``."""
    try:
        size = path.stat().st_size
    except OSError as error:
        raise CheckpointError(
            f"checkpoint expected a file {path}, which its index names, got none "
            f"({error.strerror}): put all files of the checkpoint there, or load another one"
        ) from error
    if size < end:
        raise CheckpointError(
            f"checkpoint file {path} expected at least {end} bytes, as the index of the checkpoint "
            f"says, got {size}: it was cut off, copy it again or load another checkpoint"
        )
