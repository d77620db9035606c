"""One rank compiles, the others get what it made: through the store that all processes share.

    rank 0   compile | cut into pieces, write them, then the head      the store: PREFIX/N/0, 1, ...
    others   wait for the head ................. | read, check, use               PREFIX/N/head

The texts travel as compressed JSON and the constants as safetensors; nothing is pickled. N counts
the compilations of a process, so all ranks must compile the same programs in the same order.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from itertools import zip_longest
from typing import Any, Protocol

import torch.distributed as dist
from piper_runtime.tensorfile import pack_tensors, unpack_tensors
from torch import Tensor
from torch.distributed.rendezvous import rendezvous

__all__ = ["Artifact", "ShareError", "is_shared", "open_store", "share"]

Artifact = tuple[Mapping[str, str], Mapping[str, Tensor]]
"""The texts of a program and its constants, by name."""

PREFIX = "piper_compile"
VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
PIECE = 4 << 20  # bytes; a store takes no value above 8 MiB
POLL = 0.1


class ShareError(RuntimeError):
    """Another rank could not compile, or did not, or compiled something else."""


class Store(Protocol):
    """What is needed of a store of ``torch.distributed``."""

    def set(self, key: str, value: Any) -> None:
        """Write a value."""

    def get(self, key: str) -> bytes:
        """Read a value, waiting for one."""

    def check(self, keys: list[str]) -> bool:
        """Return whether all keys have a value."""

    def add(self, key: str, amount: int) -> int:
        """Add to a counter and return its new value."""


def is_shared() -> bool:
    """Return whether a launcher, such as torchrun, started this process as one of several."""
    return all(name in os.environ for name in VARIABLES) and int(os.environ["WORLD_SIZE"]) > 1


@contextmanager
def open_store(*, timeout: float) -> Iterator[Store]:
    """Open the store of all processes.

    torchrun keeps it, or the process group; else rank 0 does, and waits at the end until all others
    are through. Raises ShareError if they are not within ``timeout`` seconds.
    """
    if dist.is_initialized():
        yield dist.distributed_c10d._get_default_store()
        return
    wait = timedelta(seconds=timeout)
    store, rank, world_size = next(rendezvous("env://", timeout=wait))
    yield store
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        deadline, count = time.monotonic() + timeout, store.add(f"{PREFIX}/through", 1)
        while rank == 0 and count % world_size:
            _wait(deadline, f"rank 0 waited {timeout:.0f} s for the other ranks to compile as well")
            count = store.add(f"{PREFIX}/through", 0)


def share(
    make: Callable[[], Artifact], store: Store, *, rank: int, about: str, timeout: float
) -> Artifact:
    """Return what ``make`` returns on rank 0; other ranks wait for it and do not call ``make``.

    ``about`` is a text that all ranks must have in common. Raises what ``make`` raises on rank 0,
    and ShareError on the others if it does, if nothing comes within ``timeout`` seconds or if
    ``about`` is not that of rank 0.
    """
    number = store.add(f"{PREFIX}/calls/{rank}", 1)
    key = f"{PREFIX}/{number}"
    if rank == 0:
        return _publish(make, store, key, about)
    deadline, waited = time.monotonic() + timeout, f"rank {rank} waited {timeout:.0f} s"
    while not store.check([f"{key}/head"]):
        _wait(deadline, f"{waited} for rank 0 to compile: every rank must call piper.compile")
    head = json.loads(store.get(f"{key}/head"))
    if "error" in head:
        raise ShareError(f"rank 0 could not compile:\n{head['error']}")
    _check_about(head["about"], about, rank)
    data = b"".join(store.get(f"{key}/{index}") for index in range(head["pieces"]))
    if hashlib.sha256(data).hexdigest() != head["hash"]:
        raise ShareError(f"rank {rank} expected a program of hash {head['hash']}, got another one")
    texts: dict[str, str] = json.loads(zlib.decompress(data[: head["texts"]]))
    return texts, unpack_tensors(data[head["texts"] :])


def _publish(make: Callable[[], Artifact], store: Store, key: str, about: str) -> Artifact:
    """Make the artifact and write it, or the error."""
    try:
        texts, constants = make()
    except BaseException as error:
        store.set(f"{key}/head", json.dumps({"error": f"{type(error).__name__}: {error}"}))
        raise
    packed = zlib.compress(json.dumps(dict(texts)).encode())
    data = packed + pack_tensors(constants)
    pieces = range(0, len(data), PIECE)
    for index, start in enumerate(pieces):
        store.set(f"{key}/{index}", data[start : start + PIECE])
    digest = hashlib.sha256(data).hexdigest()
    head = {"pieces": len(pieces), "texts": len(packed), "about": about, "hash": digest}
    store.set(f"{key}/head", json.dumps(head))
    return texts, constants


def _check_about(theirs: str, ours: str, rank: int) -> None:
    """Raise ShareError with the first lines that differ."""
    for expected, got in zip_longest(theirs.splitlines(), ours.splitlines(), fillvalue="nothing"):
        if expected != got:
            raise ShareError(
                f"rank {rank} expected the strategy of rank 0: {expected.strip()!r}, "
                f"got {got.strip()!r}"
            )


def _wait(deadline: float, error: str) -> None:
    """Sleep a little, or raise ShareError behind the deadline."""
    if time.monotonic() > deadline:
        raise ShareError(error)
    time.sleep(POLL)
