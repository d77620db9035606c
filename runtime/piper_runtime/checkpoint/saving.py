"""Saving: every process writes its part with torch's writer of files."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    MetadataIndex,
    TensorProperties,
)
from torch.distributed.checkpoint.planner import (
    SavePlan,
    TensorWriteData,
    WriteItem,
    WriteItemType,
)
from torch.distributed.checkpoint.state_dict_saver import save

from piper_runtime.checkpoint.agree import agree
from piper_runtime.checkpoint.boxes import Box
from piper_runtime.checkpoint.folder import discard, prepare, saving, swap
from piper_runtime.checkpoint.keys import Key, Run, number_run, places, runs
from piper_runtime.checkpoint.writers import choose_writers
from piper_runtime.errors import CheckpointError
from piper_runtime.states.held import Held

__all__ = ["save_checkpoint"]


def save_checkpoint(held: Held, path: Path, *, numbers: Mapping[str, float]) -> None:
    """Write what all ranks hold, and numbers of ``NUMBERS``, and then replace ``path``.

    Raises CheckpointError, in every process, if one cannot write.
    """
    path, transport = path.resolve(), held.transport
    planner = _Planner([*_written(held, numbers)])
    agree(transport, lambda: prepare(path) if held.is_first else None)
    try:
        failure = transport.together(lambda group: _write(planner, saving(path), group))
        if failure is not None:
            raise failure
        agree(transport, lambda: swap(path) if held.is_first else None)
    except BaseException:
        if held.is_first:
            discard(path)
        raise


def _write(
    planner: _Planner, folder: Path, group: dist.ProcessGroup | None
) -> CheckpointError | None:
    """Let torch plan and write; returns what failed, the same in every process."""
    writer = FileSystemWriter(folder)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="torch.distributed is disabled")
            save(
                {},
                storage_writer=writer,
                planner=planner,
                process_group=group,
                no_dist=group is None,
            )
    except CheckpointException as error:
        rank, (cause, _) = min(error.failures.items())
        failure = CheckpointError(f"save failed on rank {rank}: {type(cause).__name__}: {cause}")
        failure.__cause__ = cause
        return failure
    return None


def _written(held: Held, numbers: Mapping[str, float]) -> Iterator[Run]:
    """Yield what this process writes."""
    chosen = choose_writers(held.manifest)
    for rank, bucket in held.buckets():
        for number, piece, place in places(bucket):
            owner = chosen[bucket.spec.name, bucket.local.index, bucket.shard.index, piece.index]
            if owner == rank and bucket.members[piece.index].saved_names:
                yield from runs(bucket, number, piece, place)
    if held.is_first:
        for name, value in numbers.items():
            yield number_run(name, value)
        yield from _of_nobody(held)


def _of_nobody(held: Held) -> Iterator[Run]:
    """Yield states of which no rank holds an element: without elements, or not used by the step."""
    dtypes = held.value_dtypes()
    for state in held.states():
        key = Key.model(state.saved_names[0])
        if state.name in held.loose:
            yield Run.whole(key, held.loose[state.name])
        elif not state.numel:
            empty = torch.empty(state.shape, dtype=dtypes[state.name])
            yield Run.whole(key, empty)


class _Planner(DefaultSavePlanner):
    """Writes each run as boxes of the whole tensor, which any tool can read by its key."""

    def __init__(self, written: list[Run]) -> None:
        super().__init__()
        self._written = written
        self._values: dict[MetadataIndex, Tensor] = {}

    def create_local_plan(self) -> SavePlan:
        """Return what this process writes, and the path of each key."""
        items = [self._item(run, box, part) for run in self._written for box, part in _cut(run)]
        return SavePlan(items, planner_data={str(run.key): run.key.path for run in self._written})

    def lookup_object(self, index: MetadataIndex) -> Tensor:
        """Return a box."""
        return self._values[index]

    def _item(self, run: Run, box: Box, part: Tensor) -> WriteItem:
        index = MetadataIndex(str(run.key), box.offsets)
        self._values[index] = part
        return WriteItem(
            index,
            WriteItemType.SHARD,
            tensor_data=TensorWriteData(
                ChunkStorageMetadata(torch.Size(box.offsets), torch.Size(box.sizes)),
                TensorProperties(dtype=run.values.dtype),
                torch.Size(run.shape),
            ),
        )


def _cut(run: Run) -> Iterator[tuple[Box, Tensor]]:
    """Yield the boxes of a run, and their values; one without elements is there too."""
    if not run.values.numel():
        yield Box((0,) * len(run.shape), run.shape), run.values.view(run.shape)
        return
    yield from run.boxes()
