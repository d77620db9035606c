"""Binding the kernels of a loaded program to a backend."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass

import torch

from piper_runtime.kernels.cache import KernelCache, cache_folder
from piper_runtime.kernels.compile import compile_missing, default_jobs
from piper_runtime.kernels.inductor import load_kernel, settings_for
from piper_runtime.kernels.source import kernels_used, read_kernels
from piper_runtime.program import KERNELS, LoadedProgram, Program

__all__ = ["BACKENDS", "KernelReport", "bind_kernels", "default_backend"]

BACKENDS = ("eager", "inductor")


@dataclass(frozen=True)
class KernelReport:
    """What binding did: the backend, kernels compiled here and found in the cache, seconds."""

    backend: str
    compiled: tuple[str, ...] = ()
    cached: tuple[str, ...] = ()
    seconds: float = 0.0

    def __str__(self) -> str:
        """Return ``kernels inductor: 9 compiled, 0 from /home/me/.cache/piper, in 41 s``."""
        if self.backend == "eager":
            return "kernels eager"
        found = f"{len(self.compiled)} compiled, {len(self.cached)} from {cache_folder()}"
        return f"kernels {self.backend}: {found}, in {self.seconds:.0f} s"


def default_backend(device: torch.device) -> str:
    """Return the backend for ``device`` where none is asked for."""
    return "inductor" if device.type == "cuda" else "eager"


def bind_kernels(
    program: Program,
    loaded: LoadedProgram,
    *,
    backend: str | None,
    device: torch.device,
    coordinates: Collection[int],
    deterministic: bool = False,
    jobs: int | None = None,
    say: Callable[[str], None] | None = None,
) -> KernelReport:
    """Make the rank programs at ``coordinates`` call the kernels of a backend.

    ``eager`` leaves them as their text says. ``inductor`` compiles each kernel that one of these
    programs calls once, unless the cache has it, in at most ``jobs`` processes; ``say`` is told
    what that came to. With ``deterministic`` it makes them of deterministic algorithms. Raises ValueError for an unknown backend and KernelError, with its name, for a
    kernel that cannot be compiled.
    """
    backend = default_backend(device) if backend is None else backend
    if backend not in BACKENDS:
        raise ValueError(f"kernels expected one of {', '.join(BACKENDS)}, got {backend!r}")
    if backend == "eager":
        return KernelReport(backend)
    start, say = time.perf_counter(), say or _keep_quiet
    used = kernels_used([loaded.modules[coordinate] for coordinate in sorted(coordinates)])
    found = read_kernels(program.texts[KERNELS], used)
    sources = [kernel for kernel in found if kernel.num_results]
    cache = KernelCache(cache_folder(), device, settings_for(deterministic=deterministic))
    compiled = compile_missing(sources, cache, jobs=jobs or default_jobs())
    for kernel in sources:
        path, libraries = cache.path(kernel), cache.libraries
        function = load_kernel(kernel, path, libraries=libraries, device=device)
        setattr(loaded.modules[0].k, kernel.name, function)
    cached = [kernel.name for kernel in sources if kernel.name not in compiled]
    seconds = time.perf_counter() - start
    report = KernelReport(backend, tuple(compiled), tuple(cached), seconds)
    say(str(report))
    return report


def _keep_quiet(line: str) -> None:
    """Say nothing."""
