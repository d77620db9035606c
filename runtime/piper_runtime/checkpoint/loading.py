"""Loading: every process reads what it holds, after it has seen that all of it is there."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata

from piper_runtime.checkpoint.agree import agree
from piper_runtime.checkpoint.fit import Fit, check_fit
from piper_runtime.checkpoint.folder import find
from piper_runtime.checkpoint.index import open_index
from piper_runtime.checkpoint.kept import first_state
from piper_runtime.checkpoint.keys import NUMBERS, Key, Run, number_run, places
from piper_runtime.checkpoint.reading import Reading
from piper_runtime.names import dtype_of
from piper_runtime.states.held import Held
from piper_runtime.states.state import Bucket

__all__ = ["load_checkpoint"]

States = dict[Tensor, dict[str, Any]]


def load_checkpoint(held: Held, path: Path) -> dict[str, float]:
    """Fill what the ranks hold from a checkpoint; returns those of ``NUMBERS`` that it has.

    Raises CheckpointError in every process, before anything is changed, if the checkpoint does not
    fit, or a file is not there or cut off. If the contents of one turn out to be damaged after
    that, parameters may be the old or the new ones.
    """
    opened = agree(held.transport, lambda: _open(held, path.resolve()))
    reading = Reading(opened.metadata)
    states = [_aim(bucket, reading, opened.fit) for _, bucket in held.buckets()]
    for state in held.states():
        if state.name in held.loose:
            value = held.loose[state.name]
            reading.add(Run.whole(opened.fit.model[state.name], value), value.dtype)
    plans = agree(held.transport, lambda: reading.plan(opened.reader))
    agree(held.transport, lambda: reading.read(opened.reader, plans))
    for (_, bucket), kept in zip(held.buckets(), states, strict=True):
        if bucket.optimizer is not None:
            bucket.optimizer.state.clear()
            bucket.optimizer.state.update(kept)
    return opened.numbers


@dataclass(frozen=True)
class _Opened:
    """A checkpoint that fits."""

    reader: FileSystemReader
    metadata: Metadata
    numbers: dict[str, float]
    fit: Fit


def _open(held: Held, path: Path) -> _Opened:
    reader, metadata = open_index(find(path), first=held.is_first)
    numbers = _numbers(reader, metadata)
    return _Opened(reader, metadata, numbers, check_fit(held, path, metadata, numbers))


def _numbers(reader: FileSystemReader, metadata: Metadata) -> dict[str, float]:
    """Read the numbers of the trainer."""
    found, reading = {}, Reading(metadata)
    for name in NUMBERS:
        entry = metadata.state_dict_metadata.get(str(Key.number(name)))
        if isinstance(entry, TensorStorageMetadata) and not entry.size:
            is_float = entry.properties.dtype.is_floating_point
            found[name] = run = number_run(name, 0.0 if is_float else 0)
            reading.add(run, run.values.dtype)
    reading.read(reader, reading.plan(reader))
    return {name: run.values.item() for name, run in found.items()}


def _aim(bucket: Bucket, reading: Reading, fit: Fit) -> States:
    """Let the slots of a bucket be read, and a new optimizer state, which is returned."""
    dtype = dtype_of(bucket.spec.dtype)
    for run in (*_value_runs(bucket, fit), *_compute_runs(bucket, fit)):
        reading.add(run, dtype)
    if bucket.optimizer is None:
        return {}
    if fit.fresh:
        return first_state(bucket.optimizer)
    states: States = {}
    for piece, parameter in zip(bucket.pieces, bucket.parameters, strict=True):
        member = bucket.members[piece.index]
        states[parameter] = kept = {}
        for name, one in fit.kept.get(parameter, {}).items():
            kept[name] = value = one.empty(piece.shape)
            key = Key.optimizer(fit.optimizer[member.name], name)
            run = Run(key, member.shape, piece.start, value.view(-1), bucket.local)
            reading.add(Run.whole(key, value) if one.scalar else run, one.dtype)
    return states


def _value_runs(bucket: Bucket, fit: Fit) -> Iterator[Run]:
    """Yield what a rank holds of the value, and of a compute slot that is sharded as it is."""
    slots = [bucket.value]
    if bucket.compute is not None and bucket.spec.compute_sharded:
        slots.append(bucket.compute)
    for _, piece, place in places(bucket):
        member = bucket.members[piece.index]
        if member.name in fit.model:
            for slot in slots:
                values = slot[place : place + piece.length]
                key = fit.model[member.name]
                yield Run(key, member.shape, piece.start, values, bucket.local)


def _compute_runs(bucket: Bucket, fit: Fit) -> Iterator[Run]:
    """Yield all of a compute slot that is whole, cut as the values of all ranks are."""
    if bucket.compute is None or bucket.spec.compute_sharded:
        return
    for index in range(bucket.shard.count):
        part = replace(bucket.shard, index=index)
        place = part.start
        for piece in part.pieces(bucket.shapes):
            member = bucket.members[piece.index]
            if member.name in fit.model:
                values = bucket.compute[place : place + piece.length]
                key = fit.model[member.name]
                yield Run(key, member.shape, piece.start, values, bucket.local)
            place += piece.length
