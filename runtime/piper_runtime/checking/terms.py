"""What values are, by the chunk or exchange that made them: their names, and those of messages."""

from __future__ import annotations

import re

from piper_runtime.checking.known import Term
from piper_runtime.checking.oracle import exchange_name
from piper_runtime.errors import CheckError
from piper_runtime.instruction import Instruction

__all__ = ["check_sent", "labelled_term", "term_name"]

_LABEL = re.compile(r"([^#]*)#(\d+)(?:\.(\w+)#0)?")


def check_sent(instruction: Instruction, terms: tuple[Term, ...]) -> None:
    """Raise CheckError if the label of a message names another than these terms."""
    term = labelled_term(instruction)
    if terms and term is not None and terms != (term,):
        raise CheckError(f"expected to send {term_name(term)}, got {term_name(terms[0])}")


def labelled_term(instruction: Instruction) -> Term | None:
    """Return what a message carries by its label; None if that names nothing of a microbatch.

    That is a result of a chunk, ``layer.0$F#1``, or what ranks made of it in an exchange,
    ``layer.0$F#1.all_gather#0``.
    """
    message, microbatch = instruction.message, instruction.microbatch
    assert message is not None
    label = _LABEL.fullmatch(message.label)
    if label is None or microbatch is None:
        return None
    name, index, kind = label.groups()
    chunk = re.sub(r"\W", "_", name)
    if kind is None:
        return chunk, int(index), microbatch
    return exchange_name(kind, chunk, int(index)), 0, microbatch


def term_name(term: Term) -> str:
    """Return a term in words."""
    chunk, index, microbatch = term
    if " " in chunk:
        return f"{chunk}, microbatch {microbatch}"
    return f"result {index} of chunk {chunk}, microbatch {microbatch}"
