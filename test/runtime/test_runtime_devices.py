"""Devices: a CPU whose streams do nothing, and what CUDA is asked for, without a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from piper_runtime.devices import CpuDevice, CudaDevice, MemoryFacts, device_for
from piper_runtime.devices.cpu import CpuEvent
from torch.profiler import ProfilerActivity

# The CPU.


def test_a_cpu_is_found() -> None:
    for name in ("cpu", torch.device("cpu")):
        on = device_for(name)
        assert isinstance(on, CpuDevice)
        assert on.device == torch.device("cpu")


def test_everything_on_a_cpu_is_done_when_it_is_issued() -> None:
    on = device_for("cpu")
    stream, other = on.stream(), on.current_stream()
    value = on.empty((3,), torch.float64)
    stream.run(lambda: _fill(value))
    event = stream.record()
    other.wait(event)
    assert value.tolist() == [7.0, 7.0, 7.0]
    assert value.dtype == torch.float64
    assert event.done()
    assert stream.idle()
    assert other.idle()
    on.synchronize()
    with stream.entered():
        assert event.done()


def _fill(value: torch.Tensor) -> None:
    value.fill_(7.0)


def test_events_of_a_cpu_measure_the_time_between_them() -> None:
    stream = device_for("cpu").current_stream()
    first = stream.record(timed=True)
    second = stream.record(timed=True)
    assert isinstance(first, CpuEvent)
    assert second.nanoseconds_since(first) == -first.nanoseconds_since(second) >= 0


def test_a_cpu_has_one_priority_and_no_peak() -> None:
    on = device_for("cpu")
    with pytest.raises(ValueError, match=r"priority of a stream expected 0 on cpu, .*, got 1"):
        on.stream(priority=1)
    on.reset_peak()
    assert on.peak_bytes() is None
    assert on.memory() is None
    assert on.activities() == [ProfilerActivity.CPU]


def test_a_cpu_keeps_no_history(tmp_path: Path) -> None:
    on = device_for("cpu")
    assert not on.keeps_history
    message = "history of memory expected a CUDA device, got cpu"
    with pytest.raises(RuntimeError, match=message):
        on.start_history(1)
    with pytest.raises(RuntimeError, match=message):
        on.stop_history()
    with pytest.raises(RuntimeError, match=message):
        on.write_history(tmp_path / "history")


def test_other_devices_are_refused() -> None:
    with pytest.raises(ValueError, match="device expected cpu or cuda, got meta"):
        device_for("meta")


# CUDA.


def test_cuda_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(RuntimeError, match="device cuda expected a CUDA device, got none"):
        device_for("cuda")


class FakeEvent:
    """As `torch.cuda.Event`; it is done when its stream is."""

    def __init__(self, enable_timing: bool = False) -> None:
        self.enable_timing, self.stream = enable_timing, FakeStream()

    def record(self, stream: FakeStream) -> None:
        self.stream = stream

    def query(self) -> bool:
        return self.stream.done

    def elapsed_time(self, end: FakeEvent) -> float:
        assert self.enable_timing
        assert end.enable_timing
        return 0.25


class FakeStream:
    """As `torch.cuda.Stream`."""

    def __init__(self, device: torch.device | None = None, priority: int = 0) -> None:
        self.device, self.priority, self.done = device, priority, False
        self.waits: list[FakeEvent] = []

    @staticmethod
    def priority_range() -> tuple[int, int]:
        return 0, -2

    def query(self) -> bool:
        return self.done

    def wait_event(self, event: FakeEvent) -> None:
        self.waits.append(event)


class FakeCuda:
    """Stands for `torch.cuda`."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.default = FakeStream()
        self.entered: list[FakeStream] = []
        self.log: list[Any] = []
        for name, value in {
            "is_available": lambda: True,
            "device_count": lambda: 2,
            "current_device": lambda: 1,
            "Stream": FakeStream,
            "Event": FakeEvent,
            "stream": self.stream,
            "current_stream": lambda device: self.default,
            "synchronize": lambda device: self.log.append(("synchronize", device)),
            "reset_peak_memory_stats": lambda device: self.log.append(("reset", device)),
            "max_memory_allocated": lambda device: 123,
            "memory_allocated": lambda device: 45,
            "mem_get_info": lambda device: (600, 1000),
        }.items():
            patch.setattr(torch.cuda, name, value)

    @contextmanager
    def stream(self, stream: FakeStream) -> Iterator[None]:
        self.entered.append(stream)
        yield
        self.entered.pop()


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    return FakeCuda(monkeypatch)


@pytest.mark.usefixtures("cuda")
def test_a_gpu_is_found_by_its_number() -> None:
    assert device_for("cuda").device == torch.device("cuda", 1)
    assert device_for("cuda:0").device == torch.device("cuda", 0)
    with pytest.raises(ValueError, match="device expected a number below 2, got cuda:2"):
        device_for("cuda:2")


@pytest.mark.usefixtures("cuda")
def test_a_higher_priority_is_a_lower_number_for_cuda() -> None:
    on = device_for("cuda:0")
    assert isinstance(on, CudaDevice)
    assert on.num_priorities == 3
    streams = [on.stream(priority=priority) for priority in range(3)]
    assert [stream.stream.priority for stream in streams] == [0, -1, -2]  # type: ignore[attr-defined]
    for priority in (-1, 3):
        message = f"priority of a stream expected 0 to 2, which cuda:0 has, got {priority}"
        with pytest.raises(ValueError, match=message):
            on.stream(priority=priority)


def test_work_is_issued_to_the_stream_that_is_entered(cuda: FakeCuda) -> None:
    on = device_for("cuda:0")
    stream: Any = on.stream()
    seen: list[FakeStream] = []
    stream.run(lambda: seen.append(cuda.entered[-1]))
    assert seen == [stream.stream]
    assert not cuda.entered
    current: Any = on.current_stream()
    assert current.stream is cuda.default


@pytest.mark.usefixtures("cuda")
def test_a_stream_waits_for_the_event_of_another() -> None:
    on = device_for("cuda:0")
    first, second = on.stream(), on.stream()
    event: Any = first.record()
    second.wait(event)
    assert second.stream.waits == [event.event]  # type: ignore[attr-defined]
    assert not event.event.enable_timing
    assert not event.done()
    assert not first.idle()
    first.stream.done = True  # type: ignore[attr-defined]
    assert event.done()
    assert first.idle()


@pytest.mark.usefixtures("cuda")
def test_timed_events_measure_nanoseconds() -> None:
    stream = device_for("cuda:0").stream()
    start, end = stream.record(timed=True), stream.record(timed=True)
    assert end.nanoseconds_since(start) == 250_000


def test_memory_is_that_of_the_device(cuda: FakeCuda) -> None:
    on = device_for("cuda:0")
    on.reset_peak()
    on.synchronize()
    assert cuda.log == [("reset", on.device), ("synchronize", on.device)]
    assert on.peak_bytes() == 123
    assert on.memory() == MemoryFacts(total=1000, free=600, allocated=45)
    assert on.activities() == [ProfilerActivity.CPU, ProfilerActivity.CUDA]


@pytest.mark.usefixtures("cuda")
def test_a_gpu_keeps_a_history(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    calls: list[Any] = []
    monkeypatch.setattr(
        torch.cuda.memory, "_record_memory_history", lambda **options: calls.append(options)
    )
    monkeypatch.setattr(torch.cuda.memory, "_dump_snapshot", calls.append)
    on = device_for("cuda:1")
    assert on.keeps_history
    on.start_history(5)
    on.write_history(tmp_path / "snapshot")
    on.stop_history()
    device = torch.device("cuda", 1)
    assert calls == [
        {"max_entries": 5, "device": device},
        str(tmp_path / "snapshot"),
        {"enabled": None, "device": device},
    ]
