"""Compiled kernels on disk, by content.

Below ``$PIPER_CACHE``, else ``$XDG_CACHE_HOME/piper``, else ``~/.cache/piper``:

    kernels/3f/3f2a....py     what the backend made of a kernel, as Python text
    kernels/3f/3f2a....lock   held by the process that compiles it
    inductor/                 the libraries that these texts load

The name of a file is the sha256 of the kernel's text with dtypes and shapes, the versions of torch
and Triton, the device, and the settings of the backend. Nothing is ever changed in place: the
folder may be deleted while nothing runs, and shared by processes.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import importlib.metadata
import json
import os
import platform
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path

import torch

from piper_runtime.kernels.source import KernelSource

__all__ = ["KernelCache", "cache_folder"]


def cache_folder() -> Path:
    """Return where compiled kernels are kept."""
    if given := os.environ.get("PIPER_CACHE"):
        return Path(given).absolute()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "piper"


class KernelCache:
    """The cache for one device and one set of settings."""

    def __init__(self, folder: Path, device: torch.device, settings: Mapping[str, object]) -> None:
        """Nothing is read or written before it is asked for."""
        self.folder = folder
        self.device = device
        self.settings = dict(settings)

    @property
    def libraries(self) -> Path:
        """Where the libraries lie that cached texts load."""
        return self.folder / "inductor"

    def path(self, source: KernelSource) -> Path:
        """Return the file of a kernel."""
        text = json.dumps([source.text, self._environment], sort_keys=True)
        key = hashlib.sha256(text.encode()).hexdigest()
        return self.folder / "kernels" / key[:2] / f"{key}.py"

    @contextlib.contextmanager
    def claim(self, source: KernelSource) -> Iterator[bool]:
        """Try to become the one process that compiles a kernel; yield whether that worked."""
        lock = self.path(source).with_suffix(".lock")
        lock.parent.mkdir(parents=True, exist_ok=True)
        with lock.open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
            else:
                yield True

    def write(self, source: KernelSource, compiled: str) -> None:
        """Add a compiled kernel; others see all of it or nothing."""
        path = self.path(source)
        draft = path.with_suffix(f".{os.getpid()}")
        draft.write_text(compiled)
        draft.replace(path)

    @cached_property
    def _environment(self) -> dict[str, object]:
        """All that a compiled kernel depends on beside its text."""
        return {
            "settings": self.settings,
            "torch": torch.__version__,
            "triton": _version("triton"),
            "python": platform.python_version(),
            "device": _describe(self.device),
        }


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _describe(device: torch.device) -> list[object]:
    """Return what distinguishes machine code for this device.

    On a CPU that is the machine with its instruction sets, and how many threads a kernel starts; on
    a GPU its model and its number, which compiled kernels contain.
    """
    if device.type == "cuda":
        return [str(device), torch.cuda.get_device_name(device), torch.version.cuda]
    threads = torch.get_num_threads()
    return [device.type, platform.machine(), _instruction_sets(), threads]


def _instruction_sets() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.is_file() else []
    flags = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    return flags or torch.backends.cpu.get_cpu_capability()
