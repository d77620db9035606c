"""What NCCL and CUDA can be asked for, what is refused, and what torch is told; without a GPU."""

from __future__ import annotations

import os
from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from piper_runtime import NcclTransport, Trainer
from piper_runtime.devices import CpuDevice, Stream
from piper_runtime.errors import ProgramError
from piper_runtime.failures.hang import Programs
from piper_runtime.manifest import Manifest
from piper_runtime.mesh import CommSpec
from piper_runtime.transports import nccl, transport_from
from piper_runtime.transports.nccl import check_communicators, check_connections, group_options
from piper_runtime.transports.streams import _specs_of_streams
from stream_model import compiled


def test_without_a_gpu_it_says_what_to_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    message = "transport nccl expected a CUDA device, got none: use gloo or local"
    with pytest.raises(RuntimeError, match=message):
        NcclTransport()
    with pytest.raises(RuntimeError, match=message):
        transport_from("nccl")
    with pytest.raises(RuntimeError, match=message):
        Trainer(compiled(), transport="nccl")


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Let torch say that it has one GPU and NCCL."""
    monkeypatch.setenv(nccl.CONNECTIONS, "32")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: True)
    return monkeypatch


def test_more_processes_than_gpus_are_refused(gpu: pytest.MonkeyPatch) -> None:
    gpu.setenv("LOCAL_RANK", "1")
    with pytest.raises(ValueError, match="a GPU for each process, got LOCAL_RANK 1 and 1 of them"):
        NcclTransport()


def test_torch_without_nccl_is_refused(gpu: pytest.MonkeyPatch) -> None:
    gpu.setattr(torch.distributed, "is_nccl_available", lambda: False)
    with pytest.raises(RuntimeError, match=r"transport nccl expected torch with NCCL, .* use"):
        NcclTransport()


@pytest.mark.parametrize("name", nccl.BLOCKING)
def test_an_environment_that_makes_the_host_wait_is_refused(
    gpu: pytest.MonkeyPatch, name: str
) -> None:
    gpu.setenv(name, "1")
    with pytest.raises(RuntimeError, match=f"transport nccl expected {name} to be unset, .* '1'"):
        NcclTransport()


def test_torchrun_gets_nccl_where_there_is_a_gpu(gpu: pytest.MonkeyPatch) -> None:
    gpu.setenv("WORLD_SIZE", "2")
    gpu.setenv("LOCAL_RANK", "1")
    with pytest.raises(ValueError, match="transport nccl expected a GPU for each process"):
        transport_from(None)


def manifest_with(*specs: CommSpec) -> Manifest:
    return replace(compiled().manifest, comms=specs)


def comm(name: str, **options: Any) -> CommSpec:
    return CommSpec(name, (), (0, 1), **options)


def test_two_priorities_are_honoured_and_others_refused() -> None:
    check_communicators(manifest_with(comm("a"), comm("b", priority=0), comm("c", priority=3)))
    check_communicators(manifest_with(comm("a", priority=2, sms=4), comm("b", priority=2)))
    with pytest.raises(ProgramError, match=r"one priority above 0, .*, got 1 of 'b' and 2 of 'a'"):
        check_communicators(manifest_with(comm("a", priority=2), comm("b", priority=1)))
    with pytest.raises(ProgramError, match=r"'a' expected a priority of at least 0, .*, got -1"):
        check_communicators(manifest_with(comm("a", priority=-1)))


def test_a_budget_of_no_sms_is_refused() -> None:
    with pytest.raises(ProgramError, match="communicator 'a' expected sms above 0, got 0"):
        check_communicators(manifest_with(comm("a", sms=0)))


def test_more_communicators_than_streams_are_refused() -> None:
    most = [comm(f"c{i}") for i in range(nccl.MOST_COMMUNICATORS)]
    other = CommSpec("other", (), (0,))
    check_communicators(manifest_with(*most))
    message = r"rank 0 \(pp 0, dp 0\) expected at most 15 communicators, .* compute, got 16"
    with pytest.raises(ProgramError, match=message):
        check_communicators(manifest_with(*most, other))


def test_fewer_connections_than_streams_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    four = manifest_with(*[comm(f"c{i}") for i in range(4)])
    monkeypatch.delenv(nccl.CONNECTIONS, raising=False)
    message = (
        r"rank 0 \(pp 0, dp 0\) expected CUDA_DEVICE_MAX_CONNECTIONS of at least 9, for compute and "
        r"two streams of each of 4 communicators, got 8: set it before CUDA is first used"
    )
    with pytest.raises(RuntimeError, match=message):
        check_connections(four)
    monkeypatch.setenv(nccl.CONNECTIONS, "9")
    check_connections(four)
    with pytest.raises(RuntimeError, match="at least 10, for compute and the host and two streams"):
        check_connections(four, host=True)
    monkeypatch.setenv(nccl.CONNECTIONS, "1")
    with pytest.raises(RuntimeError, match="got 1: set it before"):
        check_connections(four)


@pytest.mark.parametrize("initialized", [False, True])
def test_all_connections_are_asked_for_before_cuda_is_used(
    gpu: pytest.MonkeyPatch, initialized: bool
) -> None:
    gpu.setenv(nccl.CONNECTIONS, "8")  # so that it is as it was when the test is over
    gpu.delenv(nccl.CONNECTIONS)
    gpu.setattr(torch.cuda, "is_initialized", lambda: initialized)
    gpu.setenv("LOCAL_RANK", "1")
    with pytest.raises(ValueError, match="expected a GPU for each process"):
        NcclTransport()
    assert os.environ.get(nccl.CONNECTIONS) == (None if initialized else "32")


class Options:
    """As torch's: ``config`` is there if torch was built with it."""

    has_limits = True

    def __init__(self, is_high_priority_stream: bool = False) -> None:
        self.is_high_priority_stream = is_high_priority_stream
        self._timeout = timedelta(seconds=600)
        if self.has_limits:
            self.config = SimpleNamespace(min_ctas=0, max_ctas=0)


def test_priority_and_sms_become_options_of_the_group(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._C import _distributed_c10d

    group = SimpleNamespace(Options=Options)
    monkeypatch.setattr(_distributed_c10d, "ProcessGroupNCCL", group, raising=False)
    limit = timedelta(seconds=7)
    options: Any = group_options(comm("a", priority=2, sms=6), limit)
    assert options.is_high_priority_stream
    assert (options.config.min_ctas, options.config.max_ctas) == (1, 6)
    assert options._timeout == limit
    plain: Any = group_options(comm("a"), limit)
    assert not plain.is_high_priority_stream
    assert plain.config.max_ctas == 0
    monkeypatch.setattr(Options, "has_limits", False)
    group_options(comm("a"), limit)
    with pytest.raises(RuntimeError, match=r"'a' with sms=6 expected torch with limits .*max_ctas"):
        group_options(comm("a", sms=6), limit)


class FakeGpu(CpuDevice):
    """A CPU that passes for a GPU with three priorities, and says which streams it made."""

    num_priorities = 3

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self.device, self.made = device, list[int]()

    def stream(self, *, priority: int = 0) -> Stream:
        self.made.append(priority)
        return super().stream()


def test_what_torch_is_asked_for(gpu: pytest.MonkeyPatch) -> None:
    """Groups are made on the process's own GPU, with a name; streams have one of two priorities."""
    used: list[int] = []
    gpu.setattr(torch.cuda, "set_device", used.append)
    gpu.setattr(nccl, "CudaDevice", FakeGpu)
    gpu.setenv(nccl.ERROR_HANDLING, "1")
    gpu.delenv(nccl.ERROR_HANDLING)
    transport = NcclTransport(timeout=40.0)
    assert used == [0]
    assert os.environ[nccl.ERROR_HANDLING] == "0"
    asked: list[Any] = []
    gpu.setattr(nccl, "group_options", lambda spec, timeout: (spec.name, timeout))
    gpu.setattr(torch.distributed, "new_group", lambda *a, **options: asked.append((a, options)))
    high, low = comm("high", priority=7), comm("low", priority=0)
    transport._new_group(high, (0, 2))
    limit = timedelta(seconds=100)  # the watchdog comes first
    expected = {
        "backend": "nccl",
        "timeout": limit,
        "pg_options": ("high", limit),
        "group_desc": "high",
        "device_id": torch.device("cuda", 0),
    }
    assert asked == [(([0, 2],), expected)]
    for spec in (high, low, comm("plain")):
        transport._new_stream(spec.name, spec)
    device: Any = transport._device
    assert device.made == [2, 0, 0]


def test_a_stream_of_two_priorities_is_refused() -> None:
    program = compiled()
    specs = [
        replace(spec, priority=1) if spec.name == "reduce.dp$0" else spec
        for spec in program.manifest.comms
    ]
    text = program.texts["program_pp0.py"]
    assert "stream='reduce.dp$0'" in text
    loaded = program.load(torch.device("cpu"))
    found = Programs(loaded).instructions(0, "train")
    for instruction in found:
        if instruction.stream == "reduce.dp$0":
            instruction.stream = "send$0.1"
    message = "stream 'send.0.1' expected communicators of one priority and SM budget, got 'send"
    with pytest.raises(ProgramError, match=message):
        _specs_of_streams(found, manifest_with(*specs))
    instruction = next(i for i in found if i.message is None)
    instruction.stream = "elsewhere"
    with pytest.raises(ProgramError, match="expected stream 'compute', got 'elsewhere'"):
        _specs_of_streams(found, program.manifest)
