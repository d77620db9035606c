"""Windows of torch's own tools: its profiler, and what it knows of memory."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from torch.profiler import profile, record_function

from piper_runtime.devices import device_for
from piper_runtime.instruction import Instruction
from piper_runtime.listing import Listing
from piper_runtime.observe.windows import Steps, Submit, Window
from piper_runtime.program import Program
from piper_runtime.transports.base import Transport

__all__ = ["MemoryWindow", "ProfileWindow"]

SUPPORTED = ("cpu", "cuda")
HISTORY = 1_000_000  # allocations and frees that CUDA keeps at most


class ProfileWindow(Window):
    """Lets ``torch.profiler`` watch the process of ``rank`` and writes its trace.

    Instructions of the compute stream are ranges in it, called ``PP:2F0 layer.4$F``.
    """

    what = "profile"
    memory = False

    def __init__(
        self,
        path: str | Path,
        steps: Steps,
        *,
        done: int,
        rank: int,
        program: Program,
        transport: Transport,
    ) -> None:
        """Check the rank; raises ValueError."""
        super().__init__(path, steps, done=done)
        mesh = program.manifest.mesh
        if not 0 <= rank < mesh.world_size:
            raise ValueError(
                f"{self.what} expected a rank below {mesh.world_size}, those of mesh {mesh}, "
                f"got {rank}"
            )
        self.device = transport.device
        self.here = rank in transport.ranks
        self._program = program
        self._profile: profile | None = None
        self.check_device()

    def check_device(self) -> None:
        """Check that the device can be watched; torch's profiler watches every one."""

    def wants(self, step: int) -> bool:
        """Return whether a step belongs to the window, in the process of the rank."""
        return self.here and super().wants(step)

    def close(self, last: int) -> None:
        """Finish, in the process of the rank."""
        if self.here:
            super().close(last)

    def wrap(self, submit: Submit) -> Submit:
        """Name what compute instructions do."""
        mesh, listing = self._program.manifest.mesh, Listing(self._program)

        def named(instruction: Instruction) -> None:
            if instruction.thunk is not None:
                coordinate = mesh.coordinate(instruction.rank.home.index)
                name = _name(instruction, listing, coordinate)
                instruction.thunk = partial(_in_range, name, instruction.thunk)
            submit(instruction)

        return named

    def open(self) -> None:
        """Start the profiler."""
        self._profile = profile(
            activities=device_for(self.device).activities(),
            profile_memory=self.memory,
            record_shapes=self.memory,
        )
        self._profile.start()

    def discard(self) -> None:
        """Stop the profiler."""
        assert self._profile is not None
        self._profile.stop()

    def write(self) -> None:
        """Stop the profiler and write its trace."""
        assert self._profile is not None
        self._profile.stop()
        self._profile.export_chrome_trace(str(self.path))
        self._say("was written: open it in ui.perfetto.dev")


class MemoryWindow(ProfileWindow):
    """Records every allocation of the process of ``rank``.

    On a CPU it writes the profiler's trace with a counter of the bytes that were allocated since
    the window began; on CUDA the allocator's snapshot, with stacks, for pytorch.org/memory_viz.

    Raises ValueError for any other device: torch does not tell what it allocates there.
    """

    what = "memory snapshot"
    memory = True

    def check_device(self) -> None:
        """Raise ValueError for a device of which torch does not tell what it allocates."""
        if self.device.type not in SUPPORTED:
            raise ValueError(
                f"memory snapshot expected a device of {' or '.join(SUPPORTED)}, got {self.device}"
            )

    def open(self) -> None:
        """Start to record."""
        device = device_for(self.device)
        if device.keeps_history:
            device.start_history(HISTORY)
        else:
            super().open()

    def discard(self) -> None:
        """Stop to record."""
        device = device_for(self.device)
        if device.keeps_history:
            device.stop_history()
        else:
            super().discard()

    def write(self) -> None:
        """Write what was recorded."""
        device = device_for(self.device)
        if device.keeps_history:
            device.write_history(self.path)
            device.stop_history()
            self._say("was written: open it in pytorch.org/memory_viz")
            return
        super().write()
        raw = json.loads(self.path.read_text())
        raw["traceEvents"] += [
            _counter(event) for event in raw["traceEvents"] if event.get("name") == "[memory]"
        ]
        self.path.write_text(json.dumps(raw))


def _name(instruction: Instruction, listing: Listing, coordinate: int) -> str:
    if instruction.kind != "run":
        return f"{instruction.kind} {instruction.label}".strip()
    chunk = listing.chunk(coordinate, instruction.label.removeprefix("chunk "))
    cell = listing.line(coordinate, instruction.line).cell
    return f"PP:{cell} {chunk}" if cell else chunk


def _in_range(name: str, thunk: Callable[..., Any], *operands: Any) -> Any:
    with record_function(name):
        return thunk(*operands)


def _counter(event: dict[str, Any]) -> dict[str, Any]:
    return {
        "ph": "C",
        "name": "allocated",
        "pid": event["pid"],
        "ts": event["ts"],
        "args": {"bytes": event["args"]["Total Allocated"]},
    }
