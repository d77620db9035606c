"""One time for all processes: how far the clock of each is ahead of that of the first.

Processes of one machine read the same clock. Between machines, all that is known is what happened
before what. In a barrier, every process enters before any process leaves:

    clock of a   --[enter ........ leave]--          leave of b - enter of a  >=  b ahead of a
    clock of b   -------[enter .. leave]---          leave of a - enter of b  >=  a ahead of b

Each barrier bounds the difference of two clocks on both sides, and so does each message, which is
sent before it is received. What is consistent with all of these is an interval per clock; its
middle is taken, and half its width is the largest error.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from math import inf
from typing import Any

__all__ = ["Clock", "Clocks", "Order", "read_clocks"]

BARRIERS = 8
BOOT_ID = "/proc/sys/kernel/random/boot_id"
CLOCKS = "/proc/self/ns/time"

Order = tuple[int, int, int, int]
"""A process and a time of its clock, before another process and a time of that one's clock."""


@dataclass(frozen=True, slots=True)
class Clock:
    """Nanoseconds by which a process's clock is ahead of the first's, and how wrong that may be."""

    ahead: int
    error: int


@dataclass(frozen=True)
class Clocks:
    """What is known of the clocks: which machine each process is on, and what was before what."""

    machines: tuple[str, ...]
    orders: tuple[Order, ...]

    def solve(self, messages: Iterable[Order] = ()) -> list[Clock]:
        """Return the clock of each process; with ``messages``, none is received before it is sent.

        If clocks have drifted so far apart since that the messages contradict the barriers, the
        barriers alone count.
        """
        names = list(dict.fromkeys(self.machines))
        places = [names.index(machine) for machine in self.machines]
        bounds = _bounds(len(names), places, [*self.orders, *messages])
        if any(bounds[place][place] < 0 for place in range(len(names))):
            bounds = _bounds(len(names), places, self.orders)
        return [_middle(bounds, place) for place in places]


def read_clocks(
    gather: Callable[[Any], list[Any]], now: Callable[[], int] = time.perf_counter_ns
) -> Clocks:
    """Let every process say where it runs and, if not all are on one machine, meet some times.

    ``gather`` returns the values that all processes pass, in order, after all have passed theirs.
    """
    machines = tuple(gather(_machine()))
    if len(set(machines)) == 1:
        return Clocks(machines, ())
    stays = []
    for _ in range(BARRIERS):
        entered = now()
        gather(None)
        stays.append((entered, now()))
    everyone = gather(stays)
    firsts = [machines.index(machine) for machine in dict.fromkeys(machines)]
    return Clocks(
        machines,
        tuple(
            (one, entered, other, left)
            for one, other in product(firsts, firsts)
            for (entered, _), (_, left) in zip(everyone[one], everyone[other], strict=True)
        ),
    )


def _machine() -> str:
    """Return what differs between machines that do not share a clock."""
    try:
        with open(BOOT_ID) as file:
            return f"{file.read().strip()} {os.readlink(CLOCKS)}"
    except OSError:  # no Linux
        return socket.gethostname()


def _bounds(count: int, places: Sequence[int], orders: Iterable[Order]) -> list[list[float]]:
    """Return how far each machine's clock may be ahead of each other's: ``bounds[of][to]``.

    What follows along a chain of machines is included (the shortest path between them).
    """
    bounds = [[0.0 if of == to else inf for to in range(count)] for of in range(count)]
    for before, earlier, after, later in orders:
        of, to = places[before], places[after]
        bounds[of][to] = min(bounds[of][to], later - earlier)
    for by, of, to in product(range(count), repeat=3):
        bounds[of][to] = min(bounds[of][to], bounds[of][by] + bounds[by][to])
    return bounds


def _middle(bounds: Sequence[Sequence[float]], place: int) -> Clock:
    most, least = bounds[0][place], -bounds[place][0]
    return Clock(round((most + least) / 2), round((most - least) / 2))
