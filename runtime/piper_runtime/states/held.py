"""What a checkpoint is taken of: the state that the ranks of this process hold."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from piper_runtime.home import Home
from piper_runtime.manifest import Manifest, StateSpec
from piper_runtime.names import dtype_of
from piper_runtime.states.state import Bucket
from piper_runtime.transports.base import Transport

__all__ = ["Held"]


@dataclass(frozen=True)
class Held:
    """State of the ranks of this process.

    ``loose`` are states that no bucket holds, by every name: each process has them. ``updated`` are
    the buckets that have an optimizer.
    """

    manifest: Manifest
    transport: Transport
    homes: Mapping[int, Home]
    loose: Mapping[str, Tensor]
    updated: Collection[str]

    @property
    def is_first(self) -> bool:
        """Whether this is the process of rank 0."""
        return 0 in self.homes

    def buckets(self) -> Iterator[tuple[int, Bucket]]:
        """Yield rank and bucket of all that this process holds."""
        for rank, home in self.homes.items():
            for bucket in home.buckets.values():
                yield rank, bucket

    def states(self) -> list[StateSpec]:
        """Return the states of a checkpoint, which are those of a state dict of the model.

        Constants come with the program, buffers that are not persistent with the model.
        """
        return [state for state in self.manifest.states if state.saved_names]

    def value_dtypes(self) -> dict[str, torch.dtype]:
        """Return, by state, the dtype in which its value is kept."""
        dtypes = {state.name: state.dtype for state in self.states()}
        for spec in self.manifest.buckets:
            dtypes |= dict.fromkeys(spec.members, spec.dtype)
        return {name: dtype_of(dtype) for name, dtype in dtypes.items()}
