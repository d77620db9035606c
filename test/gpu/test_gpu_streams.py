"""Streams, events and memory of a device: order, overlap, peaks."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from piper_runtime.devices import CudaDevice, Device, device_for

MIB = 2**20
SLEEP_CYCLES = 100_000_000  # some 50 ms
OVERLAP = 0.85  # of the sum of the times of two things, at most, if they run side by side


def test_a_stream_waits_for_an_event(device: torch.device) -> None:
    """What another stream writes late is read, and the host does not wait for it."""
    on = device_for(device)
    first, second = on.stream(), on.stream()
    source, target = on.empty((MIB,), torch.float32), on.empty((MIB,), torch.float32)
    source.zero_()
    on.synchronize()

    def write() -> None:
        if device.type == "cuda":
            torch.cuda._sleep(SLEEP_CYCLES)  # type: ignore[no-untyped-call]
        source.fill_(1.0)

    first.run(write)
    written = first.record()
    second.wait(written)
    second.run(lambda: _copy(source, target))
    if device.type == "cuda":
        assert not written.done()
        assert not second.idle()
    on.synchronize()
    assert written.done()
    assert first.idle()
    assert second.idle()
    assert bool((target == 1.0).all())


def _copy(source: torch.Tensor, target: torch.Tensor) -> None:
    target.copy_(source)


def test_events_measure_time(device: torch.device) -> None:
    on = device_for(device)
    stream = on.current_stream()
    start = stream.record(timed=True)
    value = torch.ones(256, 256, device=device)
    for _ in range(20):
        value = value @ value / 256
    end = stream.record(timed=True)
    on.synchronize()
    assert 0 < end.nanoseconds_since(start) < 60_000_000_000


def test_a_copy_runs_beside_compute(gpu: torch.device) -> None:
    on = CudaDevice(gpu)
    host = torch.empty(512 * MIB, dtype=torch.uint8, pin_memory=True)
    target = on.empty((512 * MIB,), torch.uint8)
    matrix = torch.randn(4096, 4096, device=gpu, dtype=torch.bfloat16)

    def copy() -> None:
        target.copy_(host, non_blocking=True)

    def compute(times: int) -> None:
        for _ in range(times):
            matrix @ matrix

    for _ in range(2):  # the first round loads kernels
        times = [milliseconds(on, [copy]), milliseconds(on, [partial(compute, 10)])]
    long = partial(compute, max(1, round(10 * times[0] / times[1])))  # as long as the copy
    alone = milliseconds(on, [copy]) + milliseconds(on, [long])
    together = milliseconds(on, [copy, long])
    print(f"\ncopy and compute one by one {alone:.1f} ms, side by side {together:.1f} ms")
    assert together < OVERLAP * alone


def milliseconds(on: Device, works: list[Callable[[], None]]) -> float:
    """The time of work on streams of its own, all begun at once."""
    on.synchronize()
    main = on.current_stream()
    start = main.record(timed=True)
    for work in works:
        stream = on.stream()
        stream.wait(start)
        stream.run(work)
        main.wait(stream.record())
    end = main.record(timed=True)
    on.synchronize()
    return end.nanoseconds_since(start) / 1e6


def test_priorities_are_those_that_cuda_has(gpu: torch.device) -> None:
    on = CudaDevice(gpu)
    assert on.num_priorities >= 2
    for priority in range(on.num_priorities):
        stream = on.stream(priority=priority)
        with stream.entered():
            assert torch.cuda.current_stream(gpu).priority == -priority
    with pytest.raises(ValueError, match="priority of a stream expected 0 to"):
        on.stream(priority=on.num_priorities)


def test_the_peak_is_what_tensors_took_at_once(gpu: torch.device) -> None:
    on = CudaDevice(gpu)
    on.reset_peak()
    before = on.peak_bytes()
    facts = on.memory()
    assert before is not None
    assert facts is not None
    assert facts.allocated == before <= facts.total
    first = on.empty((64 * MIB,), torch.uint8)
    del first
    second = on.empty((32 * MIB,), torch.uint8)
    assert on.peak_bytes() == before + 64 * MIB
    on.reset_peak()
    assert on.peak_bytes() == before + 32 * MIB
    del second
