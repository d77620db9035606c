"""Transports: who drains the instruction queues of the ranks."""

from __future__ import annotations

import os

import torch
import torch.distributed as dist

from piper_runtime.transports.base import Transport

__all__ = ["Transport", "transport_from"]


def transport_from(choice: Transport | str | None, *, timeout: float | None = None) -> Transport:
    """Return a transport: itself, by name (local, gloo, nccl), or for None from the environment.

    A process that torchrun started with a ``WORLD_SIZE`` above one gets nccl where torch finds a
    GPU, else gloo; any other local. ``timeout``, seconds, is that of gloo and nccl; local, where no
    process waits for another, has none. Raises ValueError for another name, and RuntimeError for
    nccl without a GPU.
    """
    if isinstance(choice, Transport):
        if timeout is not None:
            raise ValueError(f"timeout expected in the transport {choice.name}, got {timeout} here")
        return choice
    choice = _from_environment() if choice is None else choice
    if choice == "local":
        from piper_runtime.transports.local import LocalTransport

        return LocalTransport()
    limit = {} if timeout is None else {"timeout": timeout}
    if choice == "gloo":
        from piper_runtime.transports.gloo import GlooTransport

        return GlooTransport(**limit)
    if choice == "nccl":
        from piper_runtime.transports.nccl import NcclTransport

        return NcclTransport(**limit)
    raise ValueError(f"transport expected 'local', 'gloo' or 'nccl', got {choice!r}")


def _from_environment() -> str:
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        return "local"
    return "nccl" if torch.cuda.is_available() and dist.is_nccl_available() else "gloo"
