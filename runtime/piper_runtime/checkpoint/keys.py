"""What is in a checkpoint and under which key, and what of it a bucket holds.

    model.<fqn>                        what a state dict of the model has: parameters and persistent
                                       buffers, of the dtype of the value slot
    optimizer.state.<fqn>.<name>       what the optimizer keeps of a parameter: exp_avg, step, ...
    train_state.<name>                 numbers of the trainer: step (done so far), skipped, and
                                       loss_scale.scale and .in_a_row if the loss is scaled

So do the functions of ``torch.distributed.checkpoint.state_dict`` name them, saved as ``model`` and
``optimizer``. Options of the optimizer, such as the learning rate, are the strategy's and not there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from piper_runtime.checkpoint.boxes import Box, boxes
from piper_runtime.states.sharding import Local, Piece
from piper_runtime.states.state import Bucket

__all__ = ["MODEL", "NUMBERS", "OPTIMIZER", "Key", "Run", "number_run", "places", "runs"]

_WHOLE = Local()

MODEL = "model."
OPTIMIZER = "optimizer.state."


@dataclass(frozen=True, slots=True)
class Key:
    """The path of an entry; its text, with dots between the steps, is what tools look for."""

    path: tuple[str, ...]

    def __str__(self) -> str:
        """Return the text."""
        return ".".join(self.path)

    @staticmethod
    def model(fqn: str) -> Key:
        """Return the key of a parameter or buffer."""
        return Key(("model", fqn))

    @staticmethod
    def optimizer(fqn: str, name: str) -> Key:
        """Return the key of what the optimizer keeps of a parameter under ``name``."""
        return Key(("optimizer", "state", fqn, name))

    @staticmethod
    def number(name: str) -> Key:
        """Return the key of a number of the trainer."""
        return Key(("train_state", name))


NUMBERS = ("step", "skipped", "loss_scale.scale", "loss_scale.in_a_row")


@dataclass(frozen=True, slots=True)
class Run:
    """Consecutive elements of a local part, from ``start`` on, of an entry of this whole shape.

    ``values`` is 1-D.
    """

    key: Key
    shape: tuple[int, ...]
    start: int
    values: Tensor
    local: Local = _WHOLE

    @staticmethod
    def whole(key: Key, value: Tensor) -> Run:
        """Return all elements of a tensor."""
        return Run(key, tuple(value.shape), 0, value.reshape(-1))

    def boxes(self) -> Iterator[tuple[Box, Tensor]]:
        """Yield boxes of the whole entry, and their values, of the box's sizes; no padding."""
        place, by = 0, self.local.offsets(self.shape)
        stop = self.start + self.values.numel()
        for box in boxes(self.local.shape(self.shape), self.start, stop):
            values = self.values[place : place + box.numel].view(box.sizes)
            place += box.numel
            own = box.moved(by).clipped(self.shape)
            if own.numel:
                yield own, values[tuple(slice(size) for size in own.sizes)]


def places(bucket: Bucket) -> Iterator[tuple[int, Piece, int]]:
    """Yield number and piece of all that a bucket holds here, and where it starts in the part."""
    start = 0
    for number, piece in enumerate(bucket.pieces):
        yield number, piece, start
        start += piece.length


def runs(bucket: Bucket, number: int, piece: Piece, place: int) -> Iterator[Run]:
    """Yield what is saved of a piece of a state that is: its value, and what the optimizer keeps.

    A scalar that is kept of a whole parameter, such as ``step``, goes with its first piece.
    """
    member, local = bucket.members[piece.index], bucket.local
    values = bucket.value[place : place + piece.length]
    yield Run(Key.model(member.saved_names[0]), member.shape, piece.start, values, local)
    if bucket.optimizer is None:
        return
    parameter = bucket.parameters[number]
    kept: dict[str, Tensor] = bucket.optimizer.state.get(parameter, {})
    for name, value in kept.items():
        key = Key.optimizer(member.name, name)
        if value.shape == parameter.shape:
            yield Run(key, member.shape, piece.start, value.detach().reshape(-1), local)
        elif piece.start == local.index == 0:
            yield Run.whole(key, value.detach())


def number_run(name: str, number: float) -> Run:
    """Return a number of the trainer as an entry: int64, or float64."""
    dtype = torch.int64 if isinstance(number, int) else torch.float64
    return Run.whole(Key.number(name), torch.tensor(number, dtype=dtype))
