"""One process per rank and GPU over NCCL, launched by torchrun.

Every communicator is a process group of its own, made in manifest order on every rank and connected
at once, so that no rank waits for another when it first communicates. NCCL itself demands that all
ranks of several communicators use them in one order; Piper's programs do.
"""

from __future__ import annotations

import os
from datetime import timedelta
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from piper_runtime.devices import CudaDevice, Stream
from piper_runtime.errors import ProgramError
from piper_runtime.failures.hang import Programs
from piper_runtime.instruction import HOST
from piper_runtime.manifest import Manifest
from piper_runtime.mesh import CommSpec
from piper_runtime.transports.streams import StreamTransport

if TYPE_CHECKING:
    from torch._C._distributed_c10d import ProcessGroupNCCL

__all__ = ["NcclTransport", "check_communicators", "check_connections", "group_options"]

ERROR_HANDLING = "TORCH_NCCL_ASYNC_ERROR_HANDLING"
BLOCKING = ("TORCH_NCCL_BLOCKING_WAIT", "NCCL_BLOCKING_WAIT", "CUDA_LAUNCH_BLOCKING")
CONNECTIONS = "CUDA_DEVICE_MAX_CONNECTIONS"
DEFAULT_CONNECTIONS, MOST_CONNECTIONS = 8, 32  # of CUDA
# Streams that share a connection wait for each other. A communicator takes one stream for itself
# and one inside of its group, and torch has no more than 32 of one priority that differ.
MOST_COMMUNICATORS = (MOST_CONNECTIONS - 1) // 2


class NcclTransport(StreamTransport):
    """The rank of this process, on the GPU that LOCAL_RANK says; see ``StreamTransport``.

    The streams of communicators with a priority come before all others; ``sms`` limits the
    channels, and so the streaming multiprocessors, that an operation of one may hold.
    """

    name = "nccl"

    def __init__(self, *, timeout: float = 300.0) -> None:
        """Take the GPU and make an idle transport; ``start`` joins the process group.

        Raises RuntimeError without CUDA or NCCL, or if the environment makes the host wait, and
        ValueError if there are fewer GPUs than processes.
        """
        used: bool = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
        if not used:  # else CUDA has read it
            os.environ.setdefault(CONNECTIONS, str(MOST_CONNECTIONS))
        if not torch.cuda.is_available():
            raise RuntimeError("transport nccl expected a CUDA device, got none: use gloo or local")
        if not dist.is_nccl_available():
            raise RuntimeError(
                f"transport nccl expected torch with NCCL, got {torch.__version__} without: use "
                "gloo or local"
            )
        blocking = [name for name in BLOCKING if os.environ.get(name, "0") not in ("", "0")]
        if blocking:
            raise RuntimeError(
                f"transport nccl expected {blocking[0]} to be unset, as the host must not wait for "
                f"the device, got {os.environ[blocking[0]]!r}"
            )
        index, count = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
        if index >= count:
            raise ValueError(
                f"transport nccl expected a GPU for each process, got LOCAL_RANK {index} and "
                f"{count} of them: start fewer processes, or use gloo"
            )
        # Else torch ends the process by itself, without a word of which instruction it was.
        os.environ.setdefault(ERROR_HANDLING, "0")
        torch.cuda.set_device(index)
        device = CudaDevice(torch.device("cuda", index))
        super().__init__(device, timeout=timeout)
        self._highest = device.num_priorities - 1

    def start(self, manifest: Manifest) -> None:
        """Join the world and connect one group per communicator.

        Raises ProgramError for communicators that NCCL cannot have, RuntimeError for too few
        connections of streams to the GPU, and what ``StreamTransport`` does.
        """
        check_communicators(manifest)
        check_connections(manifest)
        super().start(manifest)

    def _prepare(self, programs: Programs, manifest: Manifest) -> None:
        """Make the streams; raises RuntimeError if that of the host shares a connection."""
        super()._prepare(programs, manifest)
        if HOST in self._lanes.by_name:
            check_connections(manifest, host=True)

    def _new_group(self, spec: CommSpec, members: tuple[int, ...]) -> dist.ProcessGroup:
        """Make a group; no stream of its own is used for collectives, one is for messages.

        ``use_local_synchronization`` is not: torch 2.13 names such a group after how many groups
        the rank is in, which differs between ranks. Without it only members wait for each other,
        too, as torch makes no barrier unless ``TORCH_DIST_INIT_BARRIER`` is 1.
        """
        group: dist.ProcessGroup = dist.new_group(
            list(members),
            backend="nccl",
            timeout=self._timeout,
            pg_options=group_options(spec, self._timeout),
            group_desc=spec.name,
            device_id=self.device,
        )
        return group

    def _new_stream(self, name: str, spec: CommSpec) -> Stream:
        return self._device.stream(priority=self._highest if spec.priority else 0)


def check_communicators(manifest: Manifest) -> None:
    """Raise ProgramError for priorities, SM budgets or numbers of communicators NCCL has not."""
    levels: dict[int, str] = {}
    for spec in manifest.comms:
        if spec.sms is not None and spec.sms < 1:
            raise ProgramError(f"communicator {spec.name!r} expected sms above 0, got {spec.sms}")
        if spec.priority is None or spec.priority == 0:
            continue
        if spec.priority < 0:
            raise ProgramError(
                f"communicator {spec.name!r} expected a priority of at least 0, that of compute, "
                f"which is the lowest that CUDA has, got {spec.priority}"
            )
        levels.setdefault(spec.priority, spec.name)
    if len(levels) > 1:
        (low, one), (high, other), *_ = sorted(levels.items())
        raise ProgramError(
            f"communicators expected one priority above 0, as groups of NCCL have two, got {low} "
            f"of {one!r} and {high} of {other!r}"
        )
    count, where = _most_communicators(manifest)
    if count > MOST_COMMUNICATORS:
        raise ProgramError(
            f"{where} expected at most {MOST_COMMUNICATORS} communicators, as a GPU has "
            f"{MOST_CONNECTIONS} connections and each takes two beside that of compute, got {count}"
        )


def check_connections(manifest: Manifest, *, host: bool = False) -> None:
    """Raise RuntimeError if streams would share a connection to the GPU.

    One more is that on which the ``host`` copies what it waits for.
    """
    count, where = _most_communicators(manifest)
    needed = 1 + 2 * count + host
    connections = int(os.environ.get(CONNECTIONS, str(DEFAULT_CONNECTIONS)))
    if connections < needed:
        raise RuntimeError(
            f"{where} expected {CONNECTIONS} of at least {needed}, for compute{' and the host' * host} "
            f"and two streams of each of {count} communicators, got {connections}: set it before CUDA "
            "is first used"
        )


def _most_communicators(manifest: Manifest) -> tuple[int, str]:
    """Return how many communicators a rank has at most, and which rank that is."""
    mesh = manifest.mesh
    counts = [
        sum(coordinate in spec.coordinates for spec in manifest.comms)
        for coordinate in range(mesh.num_coordinates)
    ]
    return max(counts), mesh.describe(mesh.first_rank(counts.index(max(counts))))


def group_options(spec: CommSpec, timeout: timedelta) -> ProcessGroupNCCL.Options:
    """Return the options of a communicator's group; raises RuntimeError for what torch lacks."""
    from torch._C._distributed_c10d import ProcessGroupNCCL

    options = ProcessGroupNCCL.Options(is_high_priority_stream=bool(spec.priority))
    options._timeout = timeout
    if spec.sms is not None:
        config = getattr(options, "config", None)
        if not hasattr(config, "max_ctas"):
            raise RuntimeError(
                f"communicator {spec.name!r} with sms={spec.sms} expected torch with limits of "
                f"NCCL's channels (config.max_ctas), got {torch.__version__} without"
            )
        options.config.min_ctas = 1
        options.config.max_ctas = spec.sms
    return options
