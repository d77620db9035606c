"""The CPU: everything is done when it has been issued."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager, nullcontext

import torch
from torch.profiler import ProfilerActivity

from piper_runtime.devices.base import Device, Event, MemoryFacts, Stream
from piper_runtime.devices.heap import keep_freed_memory

__all__ = ["CpuDevice", "CpuEvent", "CpuStream"]


class CpuEvent(Event):
    """A point that has been passed."""

    __slots__ = ("_at",)

    def __init__(self) -> None:
        """Take note of the time."""
        self._at = time.perf_counter_ns()

    def done(self) -> bool:
        """Return true."""
        return True

    def nanoseconds_since(self, earlier: Event) -> int:
        """Return the time between two calls of ``record``."""
        assert isinstance(earlier, CpuEvent)
        return self._at - earlier._at


class CpuStream(Stream):
    """The thread that issues work does it, whatever stream is current."""

    __slots__ = ()

    def entered(self) -> AbstractContextManager[object]:
        """Return a context without effect."""
        return nullcontext()

    def idle(self) -> bool:
        """Return true."""
        return True

    def record(self, *, timed: bool = False) -> Event:
        """Return a point that has been passed."""
        return CpuEvent()

    def wait(self, event: Event) -> None:
        """Do nothing: the point has been passed."""


class CpuDevice(Device):
    """The CPU. It has one priority, 0, and torch does not count what its tensors take."""

    def __init__(self) -> None:
        """Nothing is to be prepared."""
        self.device = torch.device("cpu")

    def stream(self, *, priority: int = 0) -> Stream:
        """Return a stream; raises ValueError for a priority other than 0."""
        if priority:
            raise ValueError(
                f"priority of a stream expected 0 on cpu, which has one, got {priority}"
            )
        return CpuStream()

    def current_stream(self) -> Stream:
        """Return a stream like any other."""
        return CpuStream()

    def synchronize(self) -> None:
        """Do nothing: everything issued is done."""

    def keep_memory(self) -> None:
        """Let the heap of this process keep what is freed."""
        keep_freed_memory()

    def reset_peak(self) -> None:
        """Do nothing: there is no peak."""

    def peak_bytes(self) -> int | None:
        """Return None."""
        return None

    def memory(self) -> MemoryFacts | None:
        """Return None."""
        return None

    def activities(self) -> list[ProfilerActivity]:
        """Return that of the host."""
        return [ProfilerActivity.CPU]
