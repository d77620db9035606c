"""Random small sets of programs, as IR: what `piper-verify` and the abstract machine both take.

Communicators, their streams and how often each is used are drawn first; then every coordinate
issues its ends in an order of its own, between runs of a chunk, so that some sets finish and some
do not. All values have one type, but for what a sum over the manual axis makes, which nobody but
outputs use.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import combinations, permutations
from typing import Any, TypeVar

from hypothesis import strategies as st
from piper_runtime.mesh import Axis, CommSpec

__all__ = ["ProgramSet", "program_sets"]

T = TypeVar("T")
Draw = Callable[[st.SearchStrategy[T]], T]

MOST_RUNS = 3
STREAMS = ("early", "late", "sums")
"""What communicators are for, which is in no order with each other but by events."""


@dataclass(frozen=True)
class ProgramSet:
    """Programs as the text of a module, and the mesh and communicators that they are on."""

    text: str
    axes: tuple[Axis, ...]
    comms: tuple[CommSpec, ...]


@st.composite
def program_sets(draw: Draw[Any], *, careless: bool = False) -> ProgramSet:
    """Sets whose ends agree and that wait wherever they must; if `careless`, some waits are missing
    and some values are used once freed.
    """
    size = draw(st.sampled_from((1, 2, 3, 3)))
    axes = [Axis("pp", size, "unrolled")]
    if draw(st.booleans()):
        axes.append(Axis("dp", 2, "manual"))
    possible = list(_possible_comms(size, has_manual=len(axes) > 1))
    comms: list[CommSpec] = []
    counts: dict[str, int] = {}
    for _ in range(draw(st.integers(1, 4)) if possible else 0):
        members, over = draw(st.sampled_from(possible))
        comms.append(CommSpec(f"c{len(comms)}", over, members))
        counts[comms[-1].name] = draw(st.integers(1, 3))
    programs = [
        _Writer(draw, at, comms, careless=careless).write(dict(counts)) for at in range(size)
    ]
    streams = [draw(st.sampled_from(STREAMS)) for _ in comms]
    return ProgramSet(_module(axes, comms, streams, programs), tuple(axes), tuple(comms))


def _possible_comms(
    size: int, *, has_manual: bool
) -> Iterator[tuple[tuple[int, ...], tuple[str, ...]]]:
    """Coordinates and axes: of messages in both directions, and of sums over any group."""
    for pair in [*permutations(range(size), 2)] * 2:
        yield pair, ()
    for over in ((), ("dp",)) if has_manual else ((),):
        for count in range(1 if over else 2, size + 1):
            for group in combinations(range(size), count):
                yield group, over


def _module(
    axes: Sequence[Axis],
    comms: Sequence[CommSpec],
    streams: Sequence[str],
    programs: Sequence[str],
) -> str:
    manual = len(axes) > 1
    layouts = ["#piper.layout<dp = partial>", "#piper.layout<dp = replicated>"]
    types = [f"tensor<4xf32, {layout}>" if manual else "tensor<4xf32>" for layout in layouts]
    mesh = ", ".join(f"{axis.name} = {axis.size} {axis.role}" for axis in axes)
    lines = [f"!p = {types[0]}", f"!r = {types[1]}", f"piper.mesh @mesh [{mesh}]"]
    lines += [f"piper.stream @{stream}" for stream in sorted(set(streams))]
    for comm, stream in zip(comms, streams, strict=True):
        over = ", ".join(f'"{axis}"' for axis in comm.axes)
        where = f"axes [{over}] coordinates {list(comm.coordinates)} for @{stream}"
        lines.append(f"piper.comm @{comm.name} {where}")
    for count in range(1, 3):
        arguments = ", ".join(f"%x{index}: !p" for index in range(count))
        lines.append(
            f"piper.chunk @f{count}$F pass = F stage = 0 ({arguments}) -> !p {{ return %x0 : !p }}"
        )
    return "\n".join([*lines, *programs, ""])


@dataclass
class _Value:
    """A value of a program, which `stream` made (None: compute) at `position`."""

    name: str
    kind: str
    stream: str | None
    position: int
    event: str | None = None
    readers: list[str] = field(default_factory=list)
    """The events of communication that reads it."""


class _Writer:
    """Writes the program of one coordinate."""

    def __init__(
        self, draw: Draw[Any], at: int, comms: Sequence[CommSpec], *, careless: bool
    ) -> None:
        self._draw, self._at, self._careless = draw, at, careless
        self._comms = [comm for comm in comms if at in comm.coordinates]
        self._lines: list[str] = []
        self._values: list[_Value] = []
        self._events: list[str] = []
        self._records: list[tuple[str, int]] = []
        self._last_free = -1
        self._names = 0

    def write(self, left: dict[str, int]) -> str:
        """The text, with as many ends on each communicator as `left` says."""
        self._input()
        total = {comm.name: left[comm.name] for comm in self._comms}
        runs = self._draw(st.integers(0, MOST_RUNS))
        while runs or any(left[comm.name] for comm in self._comms):
            actions: list[Any] = [comm for comm in self._comms if left[comm.name]]
            actions += [None] if runs else []
            comm = self._draw(st.sampled_from(actions))
            if comm is None:
                runs -= 1
                self._run()
            else:
                self._communicate(comm, total[comm.name] - left[comm.name])
                left[comm.name] -= 1
            if self._draw(st.integers(0, 3)) == 0:
                self._free()
        for value in list(self._values):
            self._output(value)
        body = "".join(f"  {line}\n" for line in self._lines)
        return f"piper.program @train$pp{self._at} of @train$cluster at {self._at} {{\n{body}}}"

    # Instructions.

    def _input(self) -> None:
        self._make('input "x" mb 0 : !p', "p")

    def _run(self) -> None:
        operands = [self._pick("p") for _ in range(self._draw(st.integers(1, 2)))]
        after = self._after(operands, None)
        names = ", ".join(value.name for value in operands)
        types = ", ".join("!p" for _ in operands)
        self._make(f"run @f{len(operands)}$F({names}) mb 0{after} : ({types}) -> !p", "p")

    def _output(self, value: _Value) -> None:
        after = self._after([value], None)
        self._lines.append(f'output "o{self._next()}" {value.name}{after} : !{value.kind}')

    def _free(self) -> None:
        if len(self._values) < 2:
            return
        read = [value for value in self._values[1:] if value.readers]
        value = self._draw(st.sampled_from(read or self._values[1:]))
        after = self._after([value], None, more=value.readers)
        if not (self._careless and self._rarely()):
            self._values.remove(value)
        self._last_free = len(self._lines)
        self._lines.append(f"free {value.name}{after} : !{value.kind}")

    def _communicate(self, comm: CommSpec, number: int) -> None:
        label = f'as "{comm.name}#{number}"'
        if len(comm.coordinates) == 1 or comm.axes or self._is_group(comm):
            self._all_reduce(comm, label)
        elif comm.coordinates[0] == self._at:
            value = self._pick("p")
            after = self._after([value], comm.name)
            tail = f"mb 0 {label} on @{comm.name}{after} : !p"
            value.readers.append(self._event(f"send {value.name} to {comm.coordinates[1]} {tail}"))
        else:
            after = self._after([], comm.name, takes_buffer=True)
            tail = f"mb 0 {label} on @{comm.name}{after} : !p"
            self._receive(f"recv from {comm.coordinates[0]} {tail}", "p", comm.name)

    def _all_reduce(self, comm: CommSpec, label: str) -> None:
        value = self._pick("p")
        after = self._after([value], comm.name, takes_buffer=True)
        over = ", ".join(f'"{axis}"' for axis in comm.axes)
        across = ' across "pp"' if len(comm.coordinates) > 1 else ""
        kind = "r" if comm.axes else "p"
        event = self._receive(
            f"all_reduce {value.name} over [{over}]{across} {label} on @{comm.name}{after} "
            f": !p -> !{kind}, !piper.event",
            kind,
            comm.name,
        )
        value.readers.append(event)

    @staticmethod
    def _is_group(comm: CommSpec) -> bool:
        """Whether a pair sums; which of both is settled by the name, so that all ends agree."""
        ascending = comm.coordinates == tuple(sorted(comm.coordinates))
        return len(comm.coordinates) > 2 or (ascending and int(comm.name[1:]) % 3 == 0)

    # Values and events.

    def _next(self) -> int:
        self._names += 1
        return self._names

    def _make(self, text: str, kind: str) -> None:
        name = f"%v{self._next()}"
        self._values.append(_Value(name, kind, None, len(self._lines)))
        self._lines.append(f"{name} = {text}")

    def _receive(self, text: str, kind: str, stream: str) -> str:
        number = self._next()
        name, event = f"%v{number}", f"%e{number}"
        self._values.append(_Value(name, kind, stream, len(self._lines), event))
        self._events.append(event)
        self._lines.append(f"{name}, {event} = {text}")
        return event

    def _event(self, text: str) -> str:
        event = f"%e{self._next()}"
        self._events.append(event)
        self._lines.append(f"{event} = {text}")
        return event

    def _pick(self, kind: str) -> _Value:
        """A value, most often a late one: the first is an input, which is never freed."""
        known = [value for value in self._values if value.kind == kind]
        back: int = self._draw(st.integers(0, 2))
        return known[max(-len(known), -1 - back)]

    def _after(
        self,
        operands: Sequence[_Value],
        stream: str | None,
        *,
        more: Sequence[str] = (),
        takes_buffer: bool = False,
    ) -> str:
        """The events that an instruction of `stream` has to list, and at times one more."""
        needed = [*more]
        for value in operands:
            if value.stream is not None:
                needed.append(str(value.event))
            elif stream is not None:
                needed.append(self._record(behind=value.position))
        if takes_buffer and self._last_free >= 0:
            needed.append(self._record(behind=self._last_free))
        if self._careless:
            needed = [event for event in needed if not self._rarely()]
        if self._events and self._draw(st.integers(0, 3)) == 0:
            needed.append(self._draw(st.sampled_from(self._events)))
        listed = ", ".join(dict.fromkeys(needed))
        return f" after {listed}" if listed else ""

    def _record(self, *, behind: int) -> str:
        """The event of a record behind a line, perhaps one that is there already."""
        known = [event for event, position in self._records if position > behind]
        if known and self._draw(st.booleans()):
            return self._draw(st.sampled_from(known))  # type: ignore[no-any-return]
        self._records.append((f"%e{self._names + 1}", len(self._lines)))
        return self._event("record")

    def _rarely(self) -> bool:
        return bool(self._draw(st.integers(0, 6)) == 6)
