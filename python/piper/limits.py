"""What programs may ask of a device: checked when they are compiled, before anything runs."""

from __future__ import annotations

from dataclasses import dataclass

from piper.strategy.directive import check_count

__all__ = ["Limits"]


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What every rank's program must fit into. A number is a bound, None is none.

    `memory` are bytes of storages that are there at once: states, gradients, the batch, and what
    instructions make until it is freed. It leaves out what the optimizer keeps and what an
    instruction needs inside: tensors between the ops of a kernel, workspaces, copies of
    collectives. `piper simulate` estimates these too.

    `sms` are the streaming multiprocessors that communication may hold at once, of which every
    communicator of a rank may hold as many as `piper.stream` gives to its stream; each must be
    given some.

    `communicators` is how many a rank may be a member of.

    `single_queue` is for devices that take up messages and collectives of all communicators of a
    rank one at a time, in the order in which the rank issues them. The programs finish there as
    well, and communicators that share ranks are issued in one order on all of these. Of what Piper
    orders itself this holds; what a user's own pass lowers and moves is refused if it does not.

    Raises:
        ValueError: a bound that is not an int of at least 1.
        TypeError: a `single_queue` that is no bool.
    """

    memory: int | None = None
    sms: int | None = None
    communicators: int | None = None
    single_queue: bool = False

    def __post_init__(self) -> None:
        """Check the fields."""
        for name, value in self._bounds().items():
            check_count(f"limit of {name}", value)
        if not isinstance(self.single_queue, bool):
            raise TypeError(f"single_queue must be True or False, got {self.single_queue!r}")

    def options(self) -> str:
        """The limits as options of ``piper-lower`` or ``piper-verify``, or nothing."""
        given = [f"max-{name}={value}" for name, value in self._bounds().items()]
        if self.single_queue:
            given.append("single-queue=true")
        return f"{{{' '.join(given)}}}" if given else ""

    def _bounds(self) -> dict[str, int]:
        bounds = {"memory": self.memory, "sms": self.sms, "communicators": self.communicators}
        return {name: value for name, value in bounds.items() if value is not None}
