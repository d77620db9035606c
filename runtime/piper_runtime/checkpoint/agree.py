"""Doing something in every process, and failing in every process."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from piper_runtime.errors import CheckpointError
from piper_runtime.transports.base import Transport

__all__ = ["agree"]

T = TypeVar("T")


def agree(transport: Transport, action: Callable[[], T]) -> T:
    """Run ``action`` in every process; all raise CheckpointError if one of them fails."""
    try:
        result = action()
    except Exception as error:
        text = str(error) or type(error).__name__
        transport.gather(text)
        raise error if isinstance(error, CheckpointError) else CheckpointError(text) from error
    for rank, failure in enumerate(transport.gather(None)):
        if failure is not None:
            raise CheckpointError(f"{failure} (on rank {rank})")
    return result
