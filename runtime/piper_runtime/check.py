"""Check mode: calls whose instructions are compared with those of a single process."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch import Tensor

from piper_runtime.checked_call import CheckedCall
from piper_runtime.gaps import Summary
from piper_runtime.instruction import Instruction
from piper_runtime.manifest import Manifest
from piper_runtime.oracle import Oracle, Shards
from piper_runtime.transports.base import Transport

__all__ = ["Checker", "make_checker", "refuse_unchecked"]


class Checker:
    """Compares the values of calls with an oracle's; ``summary`` counts over all of them."""

    def __init__(self, oracle: Oracle, manifest: Manifest, transport: Transport) -> None:
        """Let messages say what they carry."""
        self.summary = Summary()
        self._oracle, self._manifest, self._transport = oracle, manifest, transport
        transport.identify = True

    def begin(
        self, entry_point: str, *, shards: Shards, states: Mapping[str, Tensor]
    ) -> Callable[[Instruction], None]:
        """Run a call in the oracle; what is returned checks the instructions that it is given."""
        if len(self._transport.ranks) == 1:
            mesh, axes = self._manifest.mesh, self._manifest.data_axes
            first: dict[int, Mapping[str, Tensor]] = {}
            for rank, shard in enumerate(self._transport.gather(shards[0])):
                first.setdefault(mesh.index(rank, axes), shard)
            shards = [first[index] for index in sorted(first)]
        expected = self._oracle.expect(entry_point, states=states, shards=shards)
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

    Raises ValueError if only some do, and what ``refuse_unchecked`` does.
    """
    checks = transport.gather(oracle is not None)
    if len(set(checks)) > 1:
        ranks = [rank for rank, theirs in enumerate(checks) if theirs]
        raise ValueError(f"check expected on all ranks or none, got it on ranks {ranks}")
    if oracle is None:
        return None
    refuse_unchecked(manifest)
    return Checker(oracle, manifest, transport)


def refuse_unchecked(manifest: Manifest) -> None:
    """Raise ValueError for what the single process, with which ranks are compared, does not have.

    That is values that are kept in a wider dtype than that in which chunks compute, local parts of
    states, of which it has the whole ones, and a loss scale, which it does not multiply by.
    """
    if manifest.loss_scale is not None:
        raise ValueError(
            "check mode expected a program without a loss scale, got one of "
            f"{manifest.loss_scale!r}: compile without update(loss_scale=)"
        )
    for spec in manifest.buckets:
        if spec.compute_dtype not in (None, spec.dtype):
            raise ValueError(
                f"check mode expected values of the dtype that chunks compute in, got bucket "
                f"{spec.name!r} of {spec.dtype}, computed in {spec.compute_dtype}"
            )
        if spec.varying_axes:
            raise ValueError(
                f"check mode expected ranks with whole members of buckets, or parts by ZeRO, got "
                f"bucket {spec.name!r}, which piper.shard shares out along {spec.varying_axes[0]!r}"
            )
