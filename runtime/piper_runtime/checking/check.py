"""Check mode: calls whose instructions are compared with those of a single process."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch import Tensor

from piper_runtime.checking.checked_call import CheckedCall
from piper_runtime.checking.gaps import Summary
from piper_runtime.checking.oracle import Oracle, Shards
from piper_runtime.instruction import Instruction
from piper_runtime.manifest import Manifest
from piper_runtime.states.held import Held
from piper_runtime.states.whole import gather_buckets
from piper_runtime.transports.base import Transport

__all__ = ["Checker", "make_checker"]


class Checker:
    """Compares the values of calls with an oracle's; ``summary`` counts over all of them."""

    def __init__(self, oracle: Oracle, manifest: Manifest, transport: Transport) -> None:
        """Let messages say what they carry."""
        self.summary = Summary()
        self._oracle, self._manifest, self._transport = oracle, manifest, transport
        transport.identify = True

    def begin(
        self, entry_point: str, *, shards: Shards, held: Held, loss_scale: float
    ) -> Callable[[Instruction], None]:
        """Run a call in the oracle; what is returned checks the instructions that it is given."""
        if len(self._transport.ranks) == 1:
            mesh, axes = self._manifest.mesh, self._manifest.data_axes
            first: dict[int, Mapping[str, Tensor]] = {}
            for rank, shard in enumerate(self._transport.gather(shards[0])):
                first.setdefault(mesh.index(rank, axes), shard)
            shards = [first[index] for index in sorted(first)]
        expected = self._oracle.expect(
            entry_point, states=_whole_states(held), shards=shards, loss_scale=loss_scale
        )
        call = CheckedCall(
            expected,
            manifest=self._manifest,
            shards=shards,
            bound=self._oracle.bound,
            summary=self.summary,
        )
        return call.attach


def make_checker(oracle: Oracle | None, manifest: Manifest, transport: Transport) -> Checker | None:
    """Return the checker of all ranks, if they check.

    Raises ValueError if only some do.
    """
    checks = transport.gather(oracle is not None)
    if len(set(checks)) > 1:
        ranks = [rank for rank, theirs in enumerate(checks) if theirs]
        raise ValueError(f"check expected on all ranks or none, got it on ranks {ranks}")
    return None if oracle is None else Checker(oracle, manifest, transport)


def _whole_states(held: Held) -> dict[str, Tensor]:
    """Return all states by every name, whole and of the dtype in which ranks keep them."""
    found = dict(held.loose)
    specs = held.manifest.buckets
    for state, value in gather_buckets(
        specs, "value", manifest=held.manifest, homes=held.homes, transport=held.transport
    ):
        found |= dict.fromkeys(state.names, value)
    return found
