"""CUDA: streams, events and the caching allocator of torch."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity

from piper_runtime.devices.base import Device, Event, MemoryFacts, Stream

__all__ = ["CudaDevice", "CudaEvent", "CudaStream"]

NANOSECONDS = 1_000_000  # per millisecond, which is what CUDA counts in


class CudaEvent(Event):
    """A CUDA event that was recorded."""

    __slots__ = ("event",)

    def __init__(self, event: torch.cuda.Event) -> None:
        """Keep an event."""
        self.event = event

    def done(self) -> bool:
        """Ask CUDA; raises RuntimeError if a kernel before it failed."""
        return bool(self.event.query())  # type: ignore[no-untyped-call]

    def nanoseconds_since(self, earlier: Event) -> int:
        """Return what CUDA measured between two timed events, to about half a microsecond."""
        assert isinstance(earlier, CudaEvent)
        return round(float(earlier.event.elapsed_time(self.event)) * NANOSECONDS)


class CudaStream(Stream):
    """A CUDA stream."""

    __slots__ = ("stream",)

    def __init__(self, stream: torch.cuda.Stream) -> None:
        """Keep a stream."""
        self.stream = stream

    def entered(self) -> AbstractContextManager[object]:
        """Return a context in which torch issues to this stream and takes memory for it."""
        return torch.cuda.stream(self.stream)

    def idle(self) -> bool:
        """Ask CUDA; raises RuntimeError if a kernel failed."""
        return self.stream.query()

    def record(self, *, timed: bool = False) -> Event:
        """Record an event."""
        event = torch.cuda.Event(enable_timing=timed)  # type: ignore[no-untyped-call]
        event.record(self.stream)
        return CudaEvent(event)

    def wait(self, event: Event) -> None:
        """Let the stream wait on the device; the host goes on."""
        assert isinstance(event, CudaEvent)
        self.stream.wait_event(event.event)


class CudaDevice(Device):
    """One GPU."""

    keeps_history = True

    def __init__(self, device: torch.device) -> None:
        """Find the GPU; raises RuntimeError if there is none, ValueError for a wrong number."""
        if not torch.cuda.is_available():
            raise RuntimeError(f"device {device} expected a CUDA device, got none")
        count = torch.cuda.device_count()
        index = torch.cuda.current_device() if device.index is None else device.index
        if not index < count:
            raise ValueError(f"device expected a number below {count}, got {device}")
        self.device = torch.device("cuda", index)

    @property
    def num_priorities(self) -> int:
        """How many priorities a stream can have: 0 and those above."""
        least, greatest = torch.cuda.Stream.priority_range()  # type: ignore[call-arg]  # static
        return 1 + least - greatest

    def stream(self, *, priority: int = 0) -> Stream:
        """Return a stream out of torch's pool; raises ValueError for a priority CUDA has not.

        CUDA calls higher priorities by lower numbers, from 0 down, and would clamp others.
        """
        count = self.num_priorities
        if not 0 <= priority < count:
            raise ValueError(
                f"priority of a stream expected 0 to {count - 1}, which {self.device} has, "
                f"got {priority}"
            )
        stream = torch.cuda.Stream(self.device, priority=-priority)  # type: ignore[no-untyped-call]
        return CudaStream(stream)

    def current_stream(self) -> Stream:
        """Return torch's current stream: the default one, unless the caller entered another."""
        return CudaStream(torch.cuda.current_stream(self.device))

    def synchronize(self) -> None:
        """Block until all streams are done."""
        torch.cuda.synchronize(self.device)

    def empty_on_host(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Return a tensor in pinned memory: else a copy would keep the host."""
        return torch.empty(shape, dtype=dtype, pin_memory=True)

    def reset_peak(self) -> None:
        """Let torch's allocator count from what is allocated now."""
        torch.cuda.reset_peak_memory_stats(self.device)

    def peak_bytes(self) -> int | None:
        """Return the most bytes that torch's allocator had given to tensors at once."""
        return torch.cuda.max_memory_allocated(self.device)

    def memory(self) -> MemoryFacts | None:
        """Return what CUDA and torch's allocator say."""
        free, total = torch.cuda.mem_get_info(self.device)
        return MemoryFacts(total, free, torch.cuda.memory_allocated(self.device))

    def activities(self) -> list[ProfilerActivity]:
        """Return those of the host and of the GPU."""
        return [ProfilerActivity.CPU, ProfilerActivity.CUDA]

    def start_history(self, most: int) -> None:
        """Let torch's allocator keep events with stacks."""
        torch.cuda.memory._record_memory_history(max_entries=most, device=self.device)

    def stop_history(self) -> None:
        """Let it keep none."""
        torch.cuda.memory._record_memory_history(enabled=None, device=self.device)

    def write_history(self, path: Path) -> None:
        """Write a snapshot."""
        torch.cuda.memory._dump_snapshot(str(path))  # type: ignore[no-untyped-call]
