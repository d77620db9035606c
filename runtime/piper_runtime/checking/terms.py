"""What values are, by the chunk or exchange that made them: their names, and those of messages."""

from __future__ import annotations

import re
from collections import deque

from piper_runtime.checking.known import Term
from piper_runtime.errors import CheckError
from piper_runtime.instruction import Instruction

__all__ = ["Messages", "term_name"]

EXCHANGES = ("all_reduce", "reduce_scatter", "all_gather", "all_to_all")

_Key = tuple[str, int, int, str, int | None]


class Messages:
    """What messages carry: the result ``layer.0$F#1`` that a label names.

    What ranks have exchanged and then send has a label that says only how, ``all_gather#0``. What
    that is the sender knows, if it is a rank of this process.
    """

    def __init__(self) -> None:
        """Start with nothing on its way."""
        self._sent: dict[_Key, deque[Term]] = {}

    def send(self, instruction: Instruction, terms: tuple[Term, ...]) -> None:
        """Take note of a message; raises CheckError if its label does not name these terms."""
        if not terms:
            return
        how, term = _exchange(instruction), _labelled(instruction)
        if term is not None and terms != (term,):
            raise CheckError(f"expected to send {term_name(term)}, got {term_name(terms[0])}")
        if not how:
            return
        if not terms[0][0].startswith(f"{how} "):
            raise CheckError(f"expected to send what {how} has made, got {term_name(terms[0])}")
        assert instruction.message is not None
        own, peer = instruction.rank.home.index, instruction.message.peer
        self._sent.setdefault(_key(instruction, own, peer), deque()).append(terms[0])

    def receive(self, instruction: Instruction) -> Term | None:
        """Return what a message carries; None if nobody says."""
        if not _exchange(instruction):
            return _labelled(instruction)
        assert instruction.message is not None
        own, peer = instruction.rank.home.index, instruction.message.peer
        sent = self._sent.get(_key(instruction, peer, own))
        return sent.popleft() if sent else None


def term_name(term: Term) -> str:
    """Return a term in words."""
    chunk, index, microbatch = term
    if " " in chunk:
        return f"{chunk}, microbatch {microbatch}"
    return f"result {index} of chunk {chunk}, microbatch {microbatch}"


def _key(instruction: Instruction, sender: int, receiver: int) -> _Key:
    assert instruction.message is not None
    message = instruction.message
    return message.comm.name, sender, receiver, message.label, instruction.microbatch


def _exchange(instruction: Instruction) -> str:
    """Return how ranks have exchanged what a message carries, nothing if it is of a chunk."""
    assert instruction.message is not None
    kind = instruction.message.label.partition("#")[0]
    return kind if kind in EXCHANGES else ""


def _labelled(instruction: Instruction) -> Term | None:
    message, microbatch = instruction.message, instruction.microbatch
    assert message is not None
    chunk, hash_, index = message.label.partition("#")
    if not hash_ or microbatch is None or chunk in EXCHANGES:
        return None
    return re.sub(r"\W", "_", chunk), int(index), microbatch
