"""One compiled program for all tests that only look at it."""

import logging

import piper
import pytest
import torch
from piper_runtime import Program
from toy import build

# pytest would record torch's structured trace log, which makes a capture several times slower.
logging.getLogger("torch.__trace").propagate = False
torch.set_num_threads(1)


@pytest.fixture(scope="session")
def program() -> Program:
    return piper.compile(*build())


@pytest.fixture(scope="session")
def levels(program) -> dict[str, str]:
    """The text of each level by name: strategy, step, chunks, cluster, programs."""
    return {
        name.removeprefix("ir/").removesuffix(".mlir"): text
        for name, text in program.texts.items()
        if name.startswith("ir/")
    }
