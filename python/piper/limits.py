"""What programs may take of a device: checked when they are compiled, before anything runs."""

from __future__ import annotations

from dataclasses import dataclass, fields

from piper.strategy.directive import check_count

__all__ = ["Limits"]


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Upper bounds on every rank's program; None is no bound.

    `memory` are bytes of storages that are there at once: states, gradients, the batch, and what
    instructions make until it is freed. It leaves out what the optimizer keeps and what an
    instruction needs inside: tensors between the ops of a kernel, workspaces, copies of
    collectives. `piper simulate` estimates these too.

    `sms` are the streaming multiprocessors that communication may hold at once, of which every
    communicator of a rank may hold as many as `piper.stream` gives to its stream; each must be
    given some.

    `communicators` is how many a rank may be a member of.

    Raises:
        ValueError: a limit that is not an int of at least 1.
    """

    memory: int | None = None
    sms: int | None = None
    communicators: int | None = None

    def __post_init__(self) -> None:
        """Check the fields."""
        for name, value in self._given().items():
            check_count(f"limit of {name}", value)

    def options(self) -> str:
        """The limits as options of ``piper-lower`` or ``piper-verify``, or nothing."""
        given = " ".join(f"max-{name}={value}" for name, value in self._given().items())
        return f"{{{given}}}" if given else ""

    def _given(self) -> dict[str, int]:
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if value is not None}
