"""The heap of a process: it keeps what is freed, as torch's allocator on CUDA does.

A microbatch takes the memory that the one before has left. The runtime frees much of it at once,
and glibc gives the free end of a heap back to the system, which then clears each page anew.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping

__all__ = ["keep_freed_memory"]

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # see mallopt(3)
NEVER = -1
# What is larger gets pages of its own. It is the most that glibc takes, and where its threshold,
# which adapts until one is set, ends once a tensor of that size was freed.
LARGEST = 1 << 25
CHOICES = ("MALLOC_", "GLIBC_TUNABLES")


def keep_freed_memory(environment: Mapping[str, str] = os.environ) -> bool:
    """Let glibc keep what this process frees, from now on; return whether it does.

    Nothing is done where there is no glibc, or if a variable such as ``MALLOC_TRIM_THRESHOLD_``
    says how the heap is to be.
    """
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "gnu_get_libc_version"):
        return False
    if any(name.startswith(CHOICES) for name in environment):
        return False
    return bool(libc.mallopt(M_MMAP_THRESHOLD, LARGEST) and libc.mallopt(M_TRIM_THRESHOLD, NEVER))
