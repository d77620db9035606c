"""Compiling several kernels at a time, each in the first process that is free."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from piper_runtime.kernels.cache import KernelCache
from piper_runtime.kernels.errors import KernelError
from piper_runtime.kernels.source import KernelSource
from piper_runtime.observe.progress import phase

__all__ = ["WORKER", "compile_missing", "default_jobs"]

WORKER = (sys.executable, "-m", "piper_runtime.kernels.worker")
MAX_JOBS = 16  # a process takes half a gigabyte
WAIT_SECONDS = 0.05  # between looks at what another process compiles


def default_jobs() -> int:
    """Return how many processes may compile for this one: its share of the machine's cores."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    processes = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    return max(1, min(MAX_JOBS, (cores or 1) // processes))


def compile_missing(
    sources: Sequence[KernelSource],
    cache: KernelCache,
    *,
    jobs: int,
    command: Sequence[str] = WORKER,
) -> list[str]:
    """Compile the kernels that the cache lacks, and return the names of those compiled here.

    A kernel that another process is compiling is waited for. The phase ``kernels`` shows how many
    of them are done. Raises KernelError for the first that fails; no other is started then.
    """
    pending = deque(source for source in sources if not cache.path(source).is_file())
    if not pending:
        return []
    with phase("kernels", total=len(pending)) as advance:
        pool = _Pool(pending, cache, advance, command)
        threads = [threading.Thread(target=pool.work) for _ in range(min(jobs, len(pending)))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if pool.errors:
            raise pool.errors[0]
    return pool.compiled


class _Pool:
    """What the threads that look after compiling processes share."""

    def __init__(
        self,
        pending: deque[KernelSource],
        cache: KernelCache,
        advance: Callable[[], None],
        command: Sequence[str],
    ) -> None:
        self.compiled: list[str] = []
        self.errors: list[BaseException] = []
        self._pending, self._cache, self._command = pending, cache, command
        self._advance, self._lock = advance, threading.Lock()

    def work(self) -> None:
        """Compile kernels in a process of this thread's own until none is left, or one failed."""
        worker = _Worker(self._command, self._cache)
        try:
            while not self.errors:
                try:
                    source = self._pending.popleft()
                except IndexError:
                    return
                if self._take(source, worker):
                    with self._lock:
                        self._advance()
                else:
                    self._pending.append(source)
                    time.sleep(WAIT_SECONDS)
        except BaseException as error:  # noqa: BLE001 (raised by the thread that waits)
            self.errors.append(error)
        finally:
            worker.close()

    def _take(self, source: KernelSource, worker: _Worker) -> bool:
        """Compile a kernel unless it is there; return whether it is now."""
        with self._cache.claim(source) as claimed:
            if not claimed or self._cache.path(source).is_file():
                return claimed
            self._cache.write(source, worker.compile(source))
            self.compiled.append(source.name)
            return True


class _Worker:
    """A compiling process, started when there is something to compile."""

    def __init__(self, command: Sequence[str], cache: KernelCache) -> None:
        self._command, self._cache = command, cache
        self._process: subprocess.Popen[str] | None = None

    def compile(self, source: KernelSource) -> str:
        """Return the compiled text of a kernel; raises KernelError."""
        if self._process is None:
            self._process = self._start()
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        job = {
            "device": str(self._cache.device),
            "threads": torch.get_num_threads(),
            "name": source.name,
            "text": source.text,
            "num_results": source.num_results,
            "settings": self._cache.settings,
        }
        try:
            process.stdin.write(f"{json.dumps(job)}\n")
            process.stdin.flush()
            answer = process.stdout.readline()
        except BrokenPipeError:
            answer = ""
        if not answer:
            code = process.wait()
            raise _error(source, f"the compiling process ended with code {code}")
        result = json.loads(answer)
        if "error" in result:
            raise _error(source, result["error"])
        return str(result["compiled"])

    def close(self) -> None:
        """Let the process end."""
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()
            self._process.wait()

    def _start(self) -> subprocess.Popen[str]:
        environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(self._cache.libraries)}
        environment |= {"TORCHINDUCTOR_COMPILE_THREADS": "1", "PYTHONPATH": _python_path()}
        return subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )


def _python_path() -> str:
    """Return a search path on which the process finds this package and what this process has."""
    root = str(Path(__file__).parents[2])
    return os.pathsep.join(dict.fromkeys([root, *filter(None, sys.path)]))


def _error(source: KernelSource, why: str) -> KernelError:
    return KernelError(f"kernel {source.name!r} could not be compiled by inductor: {why}")
