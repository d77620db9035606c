"""Programs with a planted mistake, and what check mode says of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import piper
import pytest
from piper_runtime import CheckError, InstructionError, Program
from piper_runtime.program import seal
from torch import Tensor, nn


def planted(
    program: Program,
    file: str,
    *changes: tuple[str, str],
    constants: Mapping[str, Tensor] | None = None,
) -> Program:
    """The program with replaced pieces of one file, each of which occurs once in training.

    Patterns are regular expressions. Frees are removed: a value may be used later now.
    """
    text, found = program.texts[file], program.constants if constants is None else constants
    head, mark, tail = text.partition("def eval(")
    for pattern, new in changes:
        matches = re.findall(pattern, head)
        assert len(matches) == 1, (pattern, matches)
        head = re.sub(pattern, new, head)
    head = re.sub(r"    r\.free\(.*\n", "", head)
    texts = seal({**program.texts, file: head + mark + tail}, found)
    return Program(texts, constants=found, model=program.model, optimizer=program.optimizer)


def scaled_kernel(program: Program, file: str, chunk: str, *, by: float = 1.001) -> Program:
    """The program in which the first result of a chunk's first kernel is too large."""
    [kernel] = re.findall(
        rf"def {chunk}\(.*\n(?:    .*\n)*?    .* = k\.(\w+)\(", program.texts[file]
    )
    pattern = rf"(def {kernel}\((?:.*\n)*?    return )(\w+)"
    return planted(program, "kernels.py", (pattern, rf"\1(\2 * {by})"))


def said_of(program: Program, loss_fn: Callable[..., Any], batch: Any, model: nn.Module) -> str:
    """What check mode says of a program whose values are wrong."""
    with pytest.raises(InstructionError) as caught:
        piper.check(program, loss_fn, batch, model=model)
    assert isinstance(caught.value.__cause__, CheckError), caught.value
    return str(caught.value)
