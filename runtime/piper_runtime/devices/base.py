"""The interface of a device: streams, events, buffers, memory."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity

__all__ = ["Device", "Event", "MemoryFacts", "Stream"]


@dataclass(frozen=True, slots=True)
class MemoryFacts:
    """Bytes of a device now: what it has, what is free, and what torch's tensors take of it."""

    total: int
    free: int
    allocated: int


class Event(ABC):
    """A point of a stream."""

    @abstractmethod
    def done(self) -> bool:
        """Return whether the stream has got past the point; never blocks."""

    @abstractmethod
    def nanoseconds_since(self, earlier: Event) -> int:
        """Return the time from another point to this one; both are timed and done."""


class Stream(ABC):
    """A FIFO of work. What is issued while it is entered is its work."""

    @abstractmethod
    def entered(self) -> AbstractContextManager[object]:
        """Return a context in which the stream is the current one of this thread."""

    def run(self, action: Callable[[], None]) -> None:
        """Issue what ``action`` does to the stream."""
        with self.entered():
            action()

    @abstractmethod
    def idle(self) -> bool:
        """Return whether everything issued is done; never blocks."""

    @abstractmethod
    def record(self, *, timed: bool = False) -> Event:
        """Return the point behind everything issued so far; only ``timed`` ones measure time."""

    @abstractmethod
    def wait(self, event: Event) -> None:
        """Let what is issued from now on start after a point of another stream."""


class Device(ABC):
    """One device of this process."""

    device: torch.device
    keeps_history = False
    """Whether the allocator can write down all that it does."""

    @abstractmethod
    def stream(self, *, priority: int = 0) -> Stream:
        """Return a new stream. Of two that could go on, the one with the higher priority does.

        Raises ValueError for a priority that the device does not have.
        """

    @abstractmethod
    def current_stream(self) -> Stream:
        """Return the stream that is the current one of this thread."""

    @abstractmethod
    def synchronize(self) -> None:
        """Block until everything issued is done; raises what went wrong on the device."""

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Return a tensor with arbitrary values, out of the memory of the current stream."""
        return torch.empty(shape, dtype=dtype, device=self.device)

    def empty_on_host(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Return a tensor of the CPU, with arbitrary values, that the device can copy to."""
        return torch.empty(shape, dtype=dtype)

    # Memory.

    def keep_memory(self) -> None:
        """Let what is freed stay with the process: the next step takes as much again."""
        return

    @abstractmethod
    def reset_peak(self) -> None:
        """Let ``peak_bytes`` measure from now on."""

    @abstractmethod
    def peak_bytes(self) -> int | None:
        """Return the most bytes that tensors took at once, or None where torch does not count."""

    @abstractmethod
    def memory(self) -> MemoryFacts | None:
        """Return the memory now, or None where torch does not count."""

    # Torch's own tools.

    @abstractmethod
    def activities(self) -> list[ProfilerActivity]:
        """Return what torch's profiler has to watch."""

    def start_history(self, most: int) -> None:
        """Let the allocator write down what it does, the last ``most`` events of it."""
        raise RuntimeError(f"history of memory expected a CUDA device, got {self.device}")

    def stop_history(self) -> None:
        """Forget it, and write down no more."""
        raise RuntimeError(f"history of memory expected a CUDA device, got {self.device}")

    def write_history(self, path: Path) -> None:
        """Write it as a snapshot for pytorch.org/memory_viz."""
        raise RuntimeError(f"history of memory expected a CUDA device, got {self.device}")
