"""stream: how urgent communication is, and how much of a device it may hold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from piper.strategy.directive import Directive, check_count
from piper.strategy.mesh import Mesh


@dataclass(frozen=True, repr=False)
class Stream(Directive):
    """What a transport is asked to give to the stream `name`: a mesh axis, or `AXIS.gather`.

    Transfers between coordinates run on the stream of the unrolled axis (pp), sums over ranks on
    that of the first axis summed over (dp; pp where there is no other), gathers of sharded states
    on that of the first axis that shards them and `.gather` (dp.gather), exchanges of rows on that
    of the axis along which `shard` puts states (ep). A stream has a queue of its own on each
    communicator.

    Of two streams that can go on, that of higher `priority` goes first. `sms` are the streaming
    multiprocessors that one operation on one communicator holds, at most, until it is done; with
    `piper.Limits(sms=...)` compiling adds them up. None leaves either to the transport. A transport
    that cannot do what is asked refuses the program when it starts: `local` and `gloo` do.

    Raises:
        ValueError: neither option; a priority that is no int, or SMs below 1.
    """

    name: str
    priority: int | None = None
    sms: int | None = None

    def __post_init__(self) -> None:
        """Check the fields."""
        if self.priority is None and self.sms is None:
            raise ValueError(f"stream {self.name!r} must set priority, sms or both, got neither")
        if self.priority is not None and type(self.priority) is not int:
            raise ValueError(f"stream priority must be an int or None, got {self.priority!r}")
        if self.sms is not None:
            check_count("stream sms", self.sms)

    def op(self) -> str:
        """See `Directive`."""
        options = (f" {name} = {value}" for name, value in self._options().items())
        return f"piper.do.stream @{self.name}{''.join(options)}"

    def facts(self) -> Mapping[str, object]:
        """See `Directive`."""
        return {f"{name} of {self.name!r}": value for name, value in self._options().items()}

    def check_mesh(self, mesh: Mesh) -> None:
        """See `Directive`; whether anything runs on the stream is known once it is compiled."""
        if self.name.removesuffix(".gather") not in mesh.names:
            known = ", ".join(mesh.names) or "there is none"
            raise self.error(
                f"name must be that of a mesh axis ({known}), perhaps with .gather behind it, "
                f"got {self.name!r}"
            )

    def _options(self) -> dict[str, int]:
        options = {"priority": self.priority, "sms": self.sms}
        return {name: value for name, value in options.items() if value is not None}


def stream(name: str, *, priority: int | None = None, sms: int | None = None) -> Stream:
    """Give communication on the stream `name` a priority or a number of SMs; see `Stream`."""
    return Stream(name, priority, sms)
