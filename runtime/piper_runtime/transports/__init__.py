"""Transports: who drains the instruction queues of the ranks."""

from __future__ import annotations

import os

from piper_runtime.transports.base import Transport

__all__ = ["Transport", "transport_from"]


def transport_from(choice: Transport | str | None) -> Transport:
    """Return a transport: itself, by name (local, gloo), or for None from the environment.

    A process that torchrun started with a ``WORLD_SIZE`` above one gets gloo, any other local.
    """
    from piper_runtime.transports.gloo import GlooTransport
    from piper_runtime.transports.local import LocalTransport

    if isinstance(choice, Transport):
        return choice
    if choice is None:
        choice = "gloo" if int(os.environ.get("WORLD_SIZE", "1")) > 1 else "local"
    if choice == "local":
        return LocalTransport()
    if choice == "gloo":
        return GlooTransport()
    raise ValueError(f"transport expected 'local' or 'gloo', got {choice!r}")
