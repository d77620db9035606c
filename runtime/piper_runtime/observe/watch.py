"""``Watch``: who looks on while a trainer steps: metrics, and windows of steps."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from piper_runtime.failures.faults import hooked
from piper_runtime.observe.clocks import Clocks, read_clocks
from piper_runtime.observe.compare import compare_ranks
from piper_runtime.observe.memory import MemoryMeter
from piper_runtime.observe.metrics import Metrics
from piper_runtime.observe.profiler import MemoryWindow, ProfileWindow
from piper_runtime.observe.result import StepResult
from piper_runtime.observe.spans import Recorder
from piper_runtime.observe.windows import Steps, Submit, TraceWindow, Window
from piper_runtime.program import Program
from piper_runtime.transports.base import Transport

__all__ = ["Watch"]


class Watch:
    """Runs steps under the eyes of metrics and windows, as long as there are any.

    The first step, whose memory is counted, is under them, too. While there is nothing to see,
    ``looks`` is false, no observer is set and ``submit`` is the transport's own.
    """

    def __init__(
        self,
        program: Program,
        transport: Transport,
        metrics: Metrics | None,
        meter: MemoryMeter,
    ) -> None:
        """Check that all ranks have the same metrics; raises ValueError."""
        self.submit: Submit = transport.submit
        self._program, self._transport = program, transport
        self._metrics, self._meter = metrics, meter
        self._windows: list[Window] = []
        self._clocks: Clocks | None = None
        self._last = 0
        every = None if metrics is None else metrics.every
        odd = [rank for rank, theirs in enumerate(transport.gather(every)) if theirs != every]
        if odd:
            raise ValueError(
                f"metrics expected the same on all ranks, got others on ranks "
                f"{transport.ranks[0]} and {odd[0]}"
            )

    @property
    def looks(self) -> bool:
        """Whether anybody looks on."""
        return self._metrics is not None or bool(self._windows) or self._meter.is_due

    def run(self, step: int, action: Callable[[], StepResult]) -> StepResult:
        """Run a step, and add to its result what was seen."""
        windows = [window for window in self._windows if window.wants(step)]
        measured = self._metrics is not None and self._metrics.measures(step)
        transport, before = self._transport, self._transport.observer
        recorder = None
        if measured or any(window.records for window in windows):
            recorder = transport.observer = Recorder(before)
        for window in windows:
            window.begin()
            self.submit = window.wrap(self.submit)
        if self._meter.counts and (measured or self._meter.is_due):
            self.submit = hooked(self.submit, [self._meter.start().attach])
        start = time.perf_counter_ns()
        try:
            result = action()
        finally:
            end = time.perf_counter_ns()
            transport.observer, self.submit = before, transport.submit
        self._last = step
        spans = [] if recorder is None else recorder.spans(step)
        if measured:
            result = compare_ranks(
                result,
                spans,
                transport=transport,
                mesh=self._program.manifest.mesh,
                clocks=self.clocks(),
            )
        if self._metrics is not None and 0 in transport.ranks:
            self._metrics.write(result)
        for window in windows:
            window.end(spans, (step, start, end))
        return result

    def clocks(self) -> Clocks:
        """Return how the clocks of all processes differ: now, if they can drift apart."""
        if self._clocks is None or self._clocks.orders:
            self._clocks = read_clocks(self._transport.gather)
        return self._clocks

    def trace(self, path: str | Path, steps: Steps, *, done: int) -> AbstractContextManager[None]:
        """Return what records instructions while it is open, after ``done`` steps."""
        program, transport = self._program, self._transport
        window = TraceWindow(
            path, steps, done=done, program=program, transport=transport, clocks=self.clocks
        )
        return self._watching(window, done)

    def profile(
        self, path: str | Path, steps: Steps, *, rank: int, done: int
    ) -> AbstractContextManager[None]:
        """Return what runs torch's profiler while it is open."""
        program, transport = self._program, self._transport
        window = ProfileWindow(
            path, steps, done=done, rank=rank, program=program, transport=transport
        )
        return self._watching(window, done)

    def snapshot_memory(
        self, path: str | Path, steps: Steps, *, rank: int, done: int
    ) -> AbstractContextManager[None]:
        """Return what records allocations while it is open."""
        program, transport = self._program, self._transport
        window = MemoryWindow(
            path, steps, done=done, rank=rank, program=program, transport=transport
        )
        return self._watching(window, done)

    @contextmanager
    def _watching(self, window: Window, done: int) -> Iterator[None]:
        """Let a window look on while the block runs."""
        if isinstance(window, ProfileWindow) and any(
            isinstance(other, ProfileWindow) for other in self._windows
        ):
            raise ValueError(
                f"{window.what} {window.path} expected to be torch's only window, got a second one"
            )
        self._windows.append(window)
        self._last = done
        try:
            yield
        except BaseException:
            window.cancel()
            raise
        else:
            window.close(self._last)
        finally:
            self._windows.remove(window)

    def close(self) -> None:
        """Close the file of the metrics."""
        if self._metrics is not None:
            self._metrics.close()
