"""Program counters: which instruction each stream of a rank is at, for others to read.

A rank writes one number when an instruction starts, and one when a message is done. The numbers lie
in memory that the other processes of the machine map, too, so that they can read them while the
rank sleeps, and after it was killed:

    cell     0      1     2            3          4             5 ...
             call   step  entry point  activity   compute       the other streams, by name
             a stream's cell: 0 nothing yet, 2n + 1 instruction n is at its head, 2n + 2 n is done
"""

from __future__ import annotations

import enum
import mmap
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from piper_runtime.instruction import COMPUTE

__all__ = ["Activity", "Address", "Counters", "Peer", "head_of", "is_done"]

CALL, STEP, ENTRY, ACTIVITY, FIRST_STREAM = range(5)
WIDTH = 4  # bytes of a cell
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
PROCESSES = "/proc/self/ns/pid"
DEAD = ("Z", "X")


class Activity(enum.IntEnum):
    """What the thread that runs the rank program does."""

    IDLE = 0
    """It is not in a call of an entry point."""
    ISSUING = 1
    """It runs the rank program."""
    DRAINING = 2
    """It is through, and waits for the streams."""
    SHARING = 3
    """It meets all other ranks, to share outputs or states."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where the counters of a process are: for processes of one machine, else nowhere."""

    machine: str
    process: int
    started: str
    file: int


class Counters:
    """The counters of this process; ``streams`` are those that its rank has beside compute."""

    def __init__(self, streams: Iterable[str]) -> None:
        """Allocate the cells, all zero."""
        self.streams = (COMPUTE, *sorted(set(streams) - {COMPUTE}))
        self.slots = {name: FIRST_STREAM + i for i, name in enumerate(self.streams)}
        self._size = WIDTH * (FIRST_STREAM + len(self.streams))
        self._file = -1
        if hasattr(os, "memfd_create"):
            self._file = os.memfd_create("piper_counters", os.MFD_CLOEXEC)
            os.ftruncate(self._file, self._size)
        self.cells = memoryview(mmap.mmap(self._file, self._size)).cast("I")

    def begin(self, *, step: int, entry: int) -> None:
        """Say that a call of an entry point begins: no stream has done anything of it."""
        self.cells[ACTIVITY] = Activity.IDLE
        for slot in range(FIRST_STREAM, len(self.cells)):
            self.cells[slot] = 0
        self.cells[CALL] += 1
        self.cells[STEP], self.cells[ENTRY] = step, entry
        self.cells[ACTIVITY] = Activity.ISSUING

    @property
    def activity(self) -> Activity:
        """What the thread that runs the rank program does."""
        return Activity(self.cells[ACTIVITY])

    @activity.setter
    def activity(self, value: Activity) -> None:
        self.cells[ACTIVITY] = value

    def address(self) -> Address:
        """Return where others find these counters."""
        try:
            machine = f"{BOOT_ID.read_text().strip()} {os.readlink(PROCESSES)}"
            return Address(machine, os.getpid(), _read_process(os.getpid())[1], self._file)
        except OSError:  # no Linux
            return Address("", os.getpid(), "", -1)


class Peer:
    """Another process of this machine: its counters, and whether it lives."""

    def __init__(self, address: Address) -> None:
        """Map the counters of a living process; raises OSError if that is not possible."""
        self._address = address
        path = f"/proc/{address.process}/fd/{address.file}"
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            self.cells = memoryview(mmap.mmap(file.fileno(), size, prot=mmap.PROT_READ)).cast("I")

    @staticmethod
    def find(address: Address, here: Address) -> Peer | None:
        """Return the process at ``address`` if it is on this machine and can be read."""
        if not address.machine or address.machine != here.machine or address.file < 0:
            return None
        try:
            return Peer(address)
        except OSError:
            return None

    def state(self) -> str:
        """Return the state of the process as the kernel calls it (T: stopped), "" if it ended."""
        try:
            state, started = _read_process(self._address.process)
        except OSError:
            return ""
        return state if started == self._address.started and state not in DEAD else ""


def is_done(cell: int, number: int) -> bool:
    """Return whether instruction ``number`` of a stream is done when its cell is ``cell``."""
    return cell >= 2 * number + 2


def head_of(cell: int) -> int | None:
    """Return the number of the instruction at the head of a stream, None if that is done."""
    return (cell - 1) // 2 if cell % 2 else None


def _read_process(process: int) -> tuple[str, str]:
    """Return the state of a process and when it started; raises OSError if there is none."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return fields[0], fields[19]
