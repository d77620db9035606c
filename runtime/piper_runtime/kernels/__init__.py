"""Backends of kernels: ``eager`` runs their text op by op, ``inductor`` compiles each one.

Read first: ``binding`` (what happens when a program is loaded), then ``compile`` and ``cache``.
"""

from piper_runtime.kernels.binding import BACKENDS, KernelReport, bind_kernels, default_backend
from piper_runtime.kernels.cache import cache_folder
from piper_runtime.kernels.errors import KernelError

__all__ = [
    "BACKENDS",
    "KernelError",
    "KernelReport",
    "bind_kernels",
    "cache_folder",
    "default_backend",
]
