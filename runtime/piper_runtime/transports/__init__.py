"""Transports: who drains the instruction queues of the ranks."""

from __future__ import annotations

import os

from piper_runtime.transports.base import Transport

__all__ = ["Transport", "transport_from"]


def transport_from(choice: Transport | str | None, *, timeout: float | None = None) -> Transport:
    """Return a transport: itself, by name (local, gloo), or for None from the environment.

    A process that torchrun started with a ``WORLD_SIZE`` above one gets gloo, any other local.
    ``timeout``, seconds, is that of gloo; local, where no process waits for another, has none.
    """
    from piper_runtime.transports.gloo import GlooTransport
    from piper_runtime.transports.local import LocalTransport

    if isinstance(choice, Transport):
        if timeout is not None:
            raise ValueError(f"timeout expected in the transport {choice.name}, got {timeout} here")
        return choice
    if choice is None:
        choice = "gloo" if int(os.environ.get("WORLD_SIZE", "1")) > 1 else "local"
    if choice == "local":
        return LocalTransport()
    if choice == "gloo":
        return GlooTransport() if timeout is None else GlooTransport(timeout=timeout)
    raise ValueError(f"transport expected 'local' or 'gloo', got {choice!r}")
