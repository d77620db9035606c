"""One rank: `nccl` trains as `local` does, and groups of NCCL take what is asked of them.

A program of one rank opens no group of NCCL: what trains here are the streams. The groups of one
member below are opened by the tests themselves.

On a CPU the same code runs with streams that do nothing and gloo.
"""

from __future__ import annotations

from contextlib import closing
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from gpu_programs import SIZES, adamw, make_batch, make_model, program
from piper_runtime import LocalTransport, NcclTransport, Trainer
from piper_runtime.devices import Device, Stream, device_for
from piper_runtime.instruction import Instruction, Message
from piper_runtime.mesh import Comm, CommSpec
from piper_runtime.transports.nccl import group_options
from piper_runtime.transports.stream_exchange import exchange
from piper_runtime.transports.streams import StreamTransport
from torch import Tensor

STEPS = 3
LIMIT = timedelta(seconds=60)


class CpuTransport(StreamTransport):
    """Streams of a CPU."""

    name = "cpu"

    def __init__(self) -> None:
        super().__init__(device_for("cpu"), timeout=60.0)

    def _new_group(self, spec: CommSpec, members: tuple[int, ...]) -> dist.ProcessGroup:
        return _gloo(members)

    def _new_stream(self, name: str, spec: CommSpec) -> Stream:
        return self._device.stream()


def _gloo(members: tuple[int, ...]) -> dist.ProcessGroup:
    group: dist.ProcessGroup = dist.new_group(list(members), backend="gloo")
    return group


def transport_on(device: torch.device) -> StreamTransport:
    return NcclTransport() if device.type == "cuda" else CpuTransport()


def trained(device: torch.device, transport: Any) -> tuple[Trainer, list[float]]:
    sizes = SIZES[device.type]
    trainer = Trainer(
        program(sizes),
        transport=transport,
        model=make_model(sizes),
        optimizer=adamw,
        kernels="eager",
    )
    return trainer, [trainer.step(make_batch(sizes, step)).loss for step in range(STEPS)]


@pytest.mark.usefixtures("world")
def test_one_rank_trains_as_local_does(device: torch.device) -> None:
    """To the last bit on a CPU; on a GPU the embedding's gradient is added in any order."""
    _, expected = trained(device, LocalTransport(device=str(device), poison=False))
    trainer, found = trained(device, transport_on(device))
    with closing(trainer):
        assert found == pytest.approx(expected, rel=1e-4 if device.type == "cuda" else 0.0)


@pytest.mark.usefixtures("world")
def test_an_observer_is_told_what_the_device_did(device: torch.device) -> None:
    trainer, _ = trained(device, transport_on(device))
    spans: list[tuple[Instruction, int, int]] = []
    with closing(trainer):
        trainer.transport.observer = lambda *span: spans.append(span)
        trainer.step(make_batch(SIZES[device.type], 9))
    assert [span[0].number for span in spans] == list(range(len(spans)))
    assert all(start <= end for _, start, end in spans)
    busy = sum(end - start for i, start, end in spans if i.kind == "run")
    assert 0 < busy < 60_000_000_000


@pytest.mark.usefixtures("world")
def test_a_step_leaves_no_memory_behind(gpu: torch.device) -> None:
    """What streams use goes back when a step is over."""
    trainer, _ = trained(gpu, NcclTransport())
    with closing(trainer):
        before = torch.cuda.memory_allocated(gpu)
        trainer.step(make_batch(SIZES["cuda"], 9))
        assert torch.cuda.memory_allocated(gpu) == before


def test_more_ranks_than_gpus_are_refused(
    gpu: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCAL_RANK", str(torch.cuda.device_count()))
    with pytest.raises(ValueError, match="transport nccl expected a GPU for each process"):
        NcclTransport()


# Collectives of a group of one.


@pytest.fixture
def group(device: torch.device, world: None) -> dist.ProcessGroup:
    """A group with a priority and an SM budget, connected at once."""
    if device.type == "cpu":
        return _gloo((0,))
    spec = CommSpec("all", (), (0,), priority=1, sms=4)
    torch.cuda.set_device(0)
    made: dist.ProcessGroup = dist.new_group(
        [0],
        backend="nccl",
        timeout=LIMIT,
        pg_options=group_options(spec, LIMIT),
        group_desc=spec.name,
        device_id=torch.device("cuda", 0),
    )
    return made


KINDS = ["all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dim", [0, 1])
def test_collectives_run_on_the_stream_that_is_entered(
    device: torch.device, group: dist.ProcessGroup, kind: str, dim: int
) -> None:
    """The value is made on another stream, late: the result has it, so the collective waited."""
    on = device_for(device)
    maker, stream = on.stream(), on.stream()
    value = torch.zeros(4, 6, device=device)
    on.synchronize()
    maker.run(lambda: _fill_late(value))
    stream.wait(maker.record())
    result = _collective(kind, dim, value, group=group, on=on, stream=stream)
    on.synchronize()
    assert bool((result == 3.0).all())
    assert result.shape == value.shape


def _fill_late(value: Tensor) -> None:
    if value.is_cuda:
        torch.cuda._sleep(50_000_000)  # type: ignore[no-untyped-call]
    value.fill_(3.0)


def _collective(
    kind: str, dim: int, value: Tensor, *, group: dist.ProcessGroup, on: Device, stream: Stream
) -> Tensor:
    message = Message(Comm("all", (0,)), dim=dim, own=0)
    work = exchange(kind, message, group, (value,), device=on)
    stream.run(work.action)
    result: Tensor = work.result
    return result
