"""What a rank holds at most, measured: by torch on a GPU, elsewhere by the runtime itself.

Torch does not say how much its tensors take on a CPU, and in one process several ranks share what
it says of a GPU. There, every instruction of a step reports the storages that it makes and those
that it frees, and these are summed in the order in which the rank issues, which is the order in
which an allocator would serve it:

    instruction   run F0   run F1   send   free x0   ...
    change         +4096    +4096             -4096
    held            4096     8192   8192       4096          peak 8192

So the peak does not depend on when which stream ran. What instructions need inside, such as the
tensors of a kernel, does not show in it. Shapes do not change from step to step, but where rows
depend on data: the first step is counted, and those that are measured anyway.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from piper_runtime.devices import device_for
from piper_runtime.home import Home
from piper_runtime.instruction import Handle, Instruction
from piper_runtime.manifest import Manifest
from piper_runtime.transports.base import Transport

__all__ = ["MemoryCount", "MemoryMeter", "MemoryReading"]

Inputs = Sequence[Mapping[str, Tensor]]

# Their results are the batch, or lie in a bucket.
NOT_NEW = frozenset({"read", "input", "accumulate", "update", "write"})


@dataclass(frozen=True, slots=True)
class MemoryReading:
    """The peak so far of one rank, in bytes, and what the compiler predicted for it.

    ``how`` it was measured is "allocated" or "counted"; without a prediction that is None.
    """

    memory: int
    of: str
    how: str
    predicted: int | None


class MemoryCount:
    """Counts one call: hook it to every instruction, then ask for the ``peaks``."""

    def __init__(self) -> None:
        """Start with nothing."""
        self._batch: dict[int, int] = {}
        self._changes: dict[int, dict[int, int]] = {}  # by rank and number of the instruction

    def begin(self, rank: int, inputs: Inputs) -> None:
        """Take note of the batch of a rank: an input that is the same for all is there once."""
        held = {
            (name, value.data_ptr()): value.nbytes
            for microbatch in inputs
            for name, value in microbatch.items()
        }
        self._batch[rank] = sum(held.values())
        self._changes[rank] = {}

    def attach(self, instruction: Instruction) -> None:
        """Hook the count to an instruction."""
        instruction.hooks = (*instruction.hooks, self)

    def before(self, instruction: Instruction) -> None:
        """Count what a free is about to drop."""
        if instruction.freed:
            freed = sum(_num_bytes(handle.value) for handle in instruction.freed if _is_new(handle))
            self._changes[instruction.rank.home.index][instruction.number] = -freed

    def after(self, instruction: Instruction, value: Any) -> None:
        """Count what an instruction has made."""
        if value is not None and _makes_new(instruction):
            self._changes[instruction.rank.home.index][instruction.number] = _num_bytes(value)

    def peaks(self) -> dict[int, int]:
        """Return, by rank, the most bytes of the batch and of what instructions made."""
        return {rank: self._batch[rank] + _most(own) for rank, own in self._changes.items()}


class MemoryMeter:
    """Reads the peak of the rank of this process that has the most, and predicts it."""

    def __init__(self, manifest: Manifest, transport: Transport) -> None:
        """Find out who counts, from now on; the transport has started."""
        self._manifest, self._ranks = manifest, transport.ranks
        self._device = device_for(transport.device)
        self._device.reset_peak()
        self.counts = len(self._ranks) > 1 or self._device.peak_bytes() is None
        """Whether the runtime counts itself, which somebody must ask it to do."""
        self._count: MemoryCount | None = None
        self._peaks: dict[int, int] = {}
        self._optimizer: dict[int, int] = {}

    @property
    def is_due(self) -> bool:
        """Whether a step must be counted, as none was."""
        return self.counts and not self._peaks

    def start(self) -> MemoryCount:
        """Return what counts the step to come; ``read`` ends it."""
        self._count = MemoryCount()
        return self._count

    def begin(self, rank: int, inputs: Inputs) -> None:
        """Take note of the batch of a rank, if the step is counted."""
        if self._count is not None:
            self._count.begin(rank, inputs)

    def read(self, homes: Mapping[int, Home]) -> MemoryReading:
        """Return the peak so far, behind a step, of the ranks with these homes."""
        if self._count is not None or not self._optimizer:
            self._look(homes)
        peaks = self._peaks
        if not self.counts:
            peaks = dict.fromkeys(self._ranks, self._device.peak_bytes() or 0)
        rank = max(peaks, key=peaks.__getitem__)
        how = "counted" if self.counts else "allocated"
        return MemoryReading(peaks[rank], f"rank {rank}", how, self._predict(rank))

    def _look(self, homes: Mapping[int, Home]) -> None:
        """Add the states, which by now are all there, to what was counted."""
        counted = {} if self._count is None else self._count.peaks()
        for rank, home in homes.items():
            kept = [bucket.num_bytes() for bucket in home.buckets.values()]
            self._optimizer[rank] = sum(optimizer for _, optimizer in kept)
            if rank in counted:
                peak = counted[rank] + sum(map(sum, kept))
                self._peaks[rank] = max(peak, self._peaks.get(rank, 0))
        self._count = None

    def _predict(self, rank: int) -> int | None:
        specs = self._manifest.memory.get("train")
        if specs is None:
            return None
        spec = specs[self._manifest.mesh.coordinate(rank)]
        return spec.peak(optimizer=self._optimizer[rank], inside=not self.counts)


def _makes_new(instruction: Instruction) -> bool:
    """Whether the results are no part of a bucket or of the batch."""
    message = instruction.message
    return instruction.kind not in NOT_NEW and not (message is not None and message.in_place)


def _is_new(handle: Handle) -> bool:
    return _makes_new(handle.producer)


def _num_bytes(value: Any) -> int:
    """Return the bytes of the storages of a tensor, a pack or several results."""
    if isinstance(value, Tensor):
        return value.untyped_storage().nbytes()
    return sum(map(_num_bytes, value)) if isinstance(value, tuple) else 0


def _most(changes: Mapping[int, int]) -> int:
    held = most = 0
    for number in sorted(changes):
        held += changes[number]
        most = max(most, held)
    return most
