"""Whether a checkpoint fits a program: looked at before anything is changed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata

from piper_runtime.checkpoint.kept import Kept, kept_by
from piper_runtime.checkpoint.keys import MODEL, OPTIMIZER, Key
from piper_runtime.errors import CheckpointError
from piper_runtime.manifest import StateSpec
from piper_runtime.names import dtype_name
from piper_runtime.states.held import Held

__all__ = ["Fit", "check_fit"]

NUM_TOLD = 3  # differences that a message lists
Entries = Mapping[str, object]


@dataclass(frozen=True)
class Fit:
    """How a checkpoint fits.

    ``model`` has the key of each state that is saved, and ``optimizer`` the name under which something is kept of
    it: of a tied weight that may be any of its names. ``kept`` is what the optimizers of this
    process keep of the parameters that they have; with ``fresh`` there is none of it in the
    checkpoint, as before a first update.
    """

    model: Mapping[str, Key]
    optimizer: Mapping[str, str]
    kept: Mapping[nn.Parameter, Mapping[str, Kept]]
    fresh: bool


def check_fit(held: Held, path: Path, metadata: Metadata, numbers: Mapping[str, float]) -> Fit:
    """Return how a checkpoint fits; raises CheckpointError that names what differs."""
    found = metadata.state_dict_metadata
    saved = _saved_by_optimizers(found)
    kept = {
        parameter: names
        for _, bucket in held.buckets()
        if bucket.optimizer is not None
        for parameter, names in kept_by(bucket.optimizer).items()
    }
    fit = Fit(
        model={s.name: Key.model(_name_of(s, f"{MODEL}{{}}", found)) for s in held.states()},
        optimizer={s.name: _name_of(s, "{}", saved) for s in held.states()},
        kept=kept,
        fresh=not saved and numbers.get("step") == numbers.get("skipped", 0),
    )
    step = str(Key.number("step"))
    problems = [] if "step" in numbers else [f"expected a number {step!r}, got none"]
    problems += [*_model_problems(held, fit, found), *_optimizer_problems(held, fit, found, saved)]
    if problems:
        told, more = "; ".join(problems[:NUM_TOLD]), len(problems) - NUM_TOLD
        text = f"{told}; and {more} more" if more > 0 else told
        raise CheckpointError(f"checkpoint {path} does not fit the program: {text}")
    return fit


def _saved_by_optimizers(found: Entries) -> dict[str, set[str]]:
    """Return the names of what was kept, by parameter."""
    saved: dict[str, set[str]] = {}
    for key in found:
        if key.startswith(OPTIMIZER):
            fqn, _, name = key.removeprefix(OPTIMIZER).rpartition(".")
            saved.setdefault(fqn, set()).add(name)
    return saved


def _name_of(state: StateSpec, pattern: str, found: Mapping[str, object]) -> str:
    """Return the name under which a state is there; the first one it is saved under if it is not."""
    names = state.saved_names
    return next((name for name in names if pattern.format(name) in found), names[0])


def _model_problems(held: Held, fit: Fit, found: Entries) -> Iterator[str]:
    dtypes = held.value_dtypes()
    for state in held.states():
        key = str(fit.model[state.name])
        yield from _entry_problems(key, found, state.shape, dtypes[state.name])
    # Older checkpoints have buffers that are not persistent, too: they are not read.
    known = {f"{MODEL}{name}" for state in held.manifest.states for name in state.names}
    for key in found:
        if key.startswith(MODEL) and key not in known:
            yield f"expected no {key!r}, since the program has no such state"


def _optimizer_problems(
    held: Held, fit: Fit, found: Entries, saved: Mapping[str, set[str]]
) -> Iterator[str]:
    trained = {
        name
        for spec in held.manifest.buckets
        if spec.name in held.updated
        for member in spec.members
        for name in held.manifest.state(member).names
    }
    for fqn in saved:
        if fqn not in trained:
            yield f"expected no optimizer state of {fqn!r}, since the program does not train it"
    if fit.fresh:
        return
    said = set()
    for _, bucket in held.buckets():
        for piece, parameter in zip(bucket.pieces, bucket.parameters, strict=False):
            state = bucket.members[piece.index]
            if state.name not in said:
                said.add(state.name)
                kind = type(bucket.optimizer).__name__
                yield from _kept_problems(
                    state, kind, fit, found, saved, fit.kept.get(parameter, {})
                )


def _kept_problems(
    state: StateSpec,
    kind: str,
    fit: Fit,
    found: Entries,
    saved: Mapping[str, set[str]],
    kept: Mapping[str, Kept],
) -> Iterator[str]:
    fqn = fit.optimizer[state.name]
    got = saved.get(fqn, set())
    if got != kept.keys():
        yield (
            f"expected optimizer state {_listed(kept)} of {fqn!r}, as {kind} keeps it, "
            f"got {_listed(got)}"
        )
        return
    for name, one in kept.items():
        shape = () if one.scalar else state.shape
        yield from _entry_problems(str(Key.optimizer(fqn, name)), found, shape, one.dtype)


def _listed(names: Mapping[str, object] | set[str]) -> str:
    return ", ".join(sorted(names)) or "none"


def _entry_problems(
    key: str, found: Entries, shape: tuple[int, ...], dtype: torch.dtype
) -> Iterator[str]:
    """Yield why an entry cannot be copied to a tensor of this shape and dtype."""
    entry = found.get(key)
    if not isinstance(entry, TensorStorageMetadata):
        yield f"expected a tensor {key!r}, got {'none' if entry is None else 'another object'}"
        return
    if tuple(entry.size) != shape:
        yield f"expected {key!r} of shape {shape}, got {tuple(entry.size)}"
    got = entry.properties.dtype
    if got != dtype and not (got.is_floating_point and dtype.is_floating_point):
        yield f"expected {key!r} of {dtype_name(dtype)}, got {dtype_name(got)}"
