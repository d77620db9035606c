"""The watchdog of a process: says where its rank is, looks where others are, and ends a hang.

A thread looks a few times per second, and never at single instructions:

    every period    publish the rank's counters; adopt a failure that another rank has published
                    look whether the ranks of this machine, and the next rank, have ended
    after a stall   find out who is behind, publish the report, and let this rank fail with it
    after a failure if the rank does not stop by itself within some seconds, end the process

What ranks say lies in the store that all processes share: ``now/R`` what the counters of rank R
are, ``left/R`` how its process ended, and ``report`` the first failure.
"""

from __future__ import annotations

import faulthandler
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from piper_runtime.errors import RemoteError, StallError
from piper_runtime.failures.counters import (
    ACTIVITY,
    CALL,
    ENTRY,
    STEP,
    Activity,
    Address,
    Counters,
    Peer,
)
from piper_runtime.failures.hang import Programs, Status, explain, find_blame

__all__ = ["Watchdog"]

PERIOD = 0.5
SILENCE = 15.0  # seconds without a sign of life of a process on another machine
GRACE = 5.0  # seconds in which a rank stops by itself after a failure


class Store(Protocol):
    """What is needed of a store of ``torch.distributed``."""

    def set(self, key: str, value: str) -> None:
        """Write a value."""

    def get(self, key: str) -> bytes:
        """Read a value, waiting for one."""

    def check(self, keys: list[str]) -> bool:
        """Return whether all keys have a value."""

    def compare_set(self, key: str, expected: str, value: str) -> bytes:
        """Write a value if the key has none; return what it has then."""


class Watchdog:
    """Watches the rank of this process, and with it all ranks.

    ``limit`` is how many seconds a rank may stand still in a call, ``fail`` is told of the failure
    to raise, and ``stopped`` returns whether it was raised since. ``addresses`` says where the
    counters of every rank are, ``poll`` brings those of this one up to date. The store is used by
    this thread and by those that fail.
    """

    def __init__(
        self,
        store: Store,
        *,
        rank: int,
        programs: Programs,
        counters: Counters,
        addresses: Sequence[Address],
        limit: float,
        fail: Callable[[BaseException], None],
        stopped: Callable[[], bool],
        poll: Callable[[], None] = lambda: None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """Find the other processes of this machine."""
        self._store, self._rank, self._programs = store, rank, programs
        self._counters, self._limit = counters, limit
        self._fail, self._stopped, self._now = fail, stopped, now
        self._poll = poll
        self._world = range(programs.mesh.world_size)
        peers = {r: Peer.find(a, addresses[rank]) for r, a in enumerate(addresses) if r != rank}
        self._peers = {r: peer for r, peer in peers.items() if peer is not None}
        self._heard: dict[int, tuple[str, float]] = {}
        self._seen: list[int] = list(counters.cells)
        self._changed = [now()] * len(self._seen)
        self._failed: float | None = None
        self._known = False  # whether a failure was known in the last period
        self._lock = threading.RLock()  # a signal may interrupt the thread that holds it
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="piper watchdog", daemon=True)

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def leave(self, how: str) -> None:
        """Say that this rank takes part no longer, and stop looking.

        The interpreter must not end while the thread is in the store: it would abort.
        """
        self._over.set()
        self._store.set(f"left/{self._rank}", how)
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(GRACE)

    def report(self, kind: str, text: str) -> None:
        """Publish a failure unless another one was published before."""
        entry = json.dumps({"rank": self._rank, "kind": kind, "text": text})
        self._store.compare_set("report", "", entry)

    def inquire(self, *, broken: bool = False) -> RuntimeError | None:
        """Return what another rank has published, or what can be said of one that has vanished.

        If a connection is ``broken``, a rank that has left counts as well, whatever it had done.
        """
        with self._lock:
            found = self._published()
            if found is None:
                self._find_vanished(broken)
                found = self._published()
            return found

    def look(self) -> None:
        """Do what is to be done in every period."""
        self._poll()
        now = self._now()
        self._sample(now)
        ages = [round(now - since, 3) for since in self._changed]
        self._store.set(f"now/{self._rank}", json.dumps({"cells": self._seen, "ages": ages}))
        if self._failed is None:
            failure = self.inquire() or self._stall(ages)
            if failure is not None and self._may_raise():
                self._failed = now
                self._fail(failure)
        elif now - self._failed > GRACE and not self._stopped():
            self._end_process()

    def failed(self) -> None:
        """Say that this rank fails: it has ``GRACE`` seconds to stop."""
        if self._failed is None:
            self._failed = self._now()

    # What a period does.

    def _run(self) -> None:
        while not self._over.wait(PERIOD):
            try:
                self.look()
            except RuntimeError as error:
                if not self._over.is_set():
                    text = f"the store that all ranks share is gone, and whoever kept it: {error}"
                    self._failed = self._failed or self._now()
                    self._fail(RemoteError(text))
                    if self._now() - self._failed > GRACE and not self._stopped():
                        self._end_process()

    def _may_raise(self) -> bool:
        """Return whether to raise what was published: not in the first period after another rank
        raised or found a stall, so that what it prints stands before tracebacks of the others.
        """
        known, self._known = self._known, True
        entry = self._entry()
        return known or entry["rank"] == self._rank or entry["kind"] == "vanished"

    def _sample(self, now: float) -> None:
        """Note which counters have changed since the last period."""
        cells = list(self._counters.cells)
        for slot, (old, new) in enumerate(zip(self._seen, cells, strict=True)):
            if old != new:
                self._changed[slot] = now
        self._seen = cells

    def _stall(self, ages: Sequence[float]) -> StallError | None:
        """Return the failure to raise if nothing has moved for too long, here and where it hangs.

        Only the report of the first rank that finds out is published, and printed at once.
        """
        still = min(ages)
        if self._seen[ACTIVITY] == Activity.IDLE or still < self._limit:
            return None
        statuses = {rank: self._status(rank) for rank in self._world}
        blame = find_blame(self._programs, statuses, self._rank)
        if blame.seconds < self._limit and not statuses[blame.rank].note:
            return None  # whoever is behind goes on
        entry = self._programs.entry_points[self._seen[ENTRY]]
        text = f"no progress for {still:.1f} s in step {self._seen[STEP]} ({entry})\n"
        text += explain(self._programs, statuses, blame)
        self.report("stalled", text)
        if self._entry()["rank"] == self._rank:
            print(f"piper: {text}", file=sys.stderr, flush=True)
        return StallError(self._entry()["text"])

    def _published(self) -> RuntimeError | None:
        """Return the failure that another rank has published, if there is one."""
        if not self._store.check(["report"]):
            return None
        entry = self._entry()
        if entry["rank"] == self._rank and entry["kind"] == "failed":
            return None
        kind = StallError if entry["kind"] == "stalled" else RemoteError
        return kind(entry["text"])

    def _entry(self) -> dict[str, Any]:
        entry: dict[str, Any] = json.loads(self._store.get("report"))
        return entry

    def _find_vanished(self, broken: bool) -> None:
        """Publish a report of a rank whose process has ended before the end, if there is one."""
        watched = self._world if broken else {*self._peers, (self._rank + 1) % len(self._world)}
        gone = {rank: how for rank in watched if (how := self._gone(rank))}
        early = [rank for rank, how in gone.items() if broken or self._matters(rank, how)]
        if not early:
            return
        statuses = {rank: self._status(rank) for rank in self._world}
        blame = find_blame(self._programs, statuses, early[0])
        self.report("vanished", explain(self._programs, statuses, blame))

    def _matters(self, rank: int, how: str) -> bool:
        """Return whether the end of a rank must end all: it was killed, or this one needs it."""
        if not how.startswith("left"):
            return True
        theirs = self._status(rank).cells
        behind = bool(theirs) and theirs[CALL] < self._seen[CALL]
        return behind and self._seen[ACTIVITY] != Activity.IDLE

    def _gone(self, rank: int) -> str:
        """Return how the process of another rank ended, or nothing if it lives."""
        if rank == self._rank or (rank in self._peers and self._peers[rank].state()):
            return ""
        if self._store.check([f"left/{rank}"]):
            return f"left: {self._store.get(f'left/{rank}').decode()}"
        if rank in self._peers:
            return "vanished: its process has ended"
        silence = self._silence(rank)
        return f"vanished: not heard of for {silence:.0f} s" if silence > SILENCE else ""

    def _silence(self, rank: int) -> float:
        """Return for how many seconds a rank of another machine has said nothing new."""
        if not self._store.check([f"now/{rank}"]):
            return 0.0
        text, now = self._store.get(f"now/{rank}").decode(), self._now()
        known, since = self._heard.setdefault(rank, (text, now))
        if known != text:
            since = now
            self._heard[rank] = (text, now)
        return now - since

    def _status(self, rank: int) -> Status:
        """Return what is known of a rank: what it said last, or what its memory says now."""
        if rank == self._rank:
            now = self._now()
            return Status(self._seen, [now - since for since in self._changed])
        gone = self._gone(rank)
        cells, ages, note = [], [], ""
        if self._store.check([f"now/{rank}"]):
            said = json.loads(self._store.get(f"now/{rank}"))
            cells, ages = said["cells"], said["ages"]
        if rank in self._peers:
            fresh = list(self._peers[rank].cells)
            known = len(cells) == len(fresh)
            ages = [ages[i] if known and cells[i] == v else 0.0 for i, v in enumerate(fresh)]
            cells = fresh
            note = "its process is stopped" if self._peers[rank].state() == "T" else ""
        return Status(cells, ages, gone, note)

    def _end_process(self) -> None:
        """End the process: its main thread is stuck where no exception reaches it."""
        name = self._programs.mesh.describe(self._rank)
        text = (
            f"piper: {name} did not stop within {GRACE:.0f} s of the failure, so it ends here, in"
        )
        print(text, file=sys.stderr, flush=True)
        faulthandler.dump_traceback(file=sys.stderr, all_threads=True)
        os._exit(1)
