"""Whatever a text says, piper-opt takes it or refuses it: it never ends by a signal."""

from __future__ import annotations

import re
from random import Random

import pytest
from compiled import Strategy, compiled
from levels import FLAGS, piper_opt
from piper.mlir import ir
from strategies import Case
from text_mutations import TEXT_MUTATIONS, mutate_text

TINY = Strategy(Case("ZBH1", pp=2, dp=2, microbatches=2), (2, 2), layers=2)
PASSES = {
    "step": [*FLAGS["chunks"], *FLAGS["cluster"], *FLAGS["programs"]],
    "chunks": [*FLAGS["cluster"], *FLAGS["programs"]],
    "cluster": ["--piper-verify", *FLAGS["programs"]],
    "programs": [
        "--piper-verify=single-queue max-communicators=100 max-memory=1000000000 max-sms=100"
    ],
}
FEW, MANY = 8, 150


def check_text(level: str, *, generic: bool, seeds: range) -> None:
    text = _generic(level) if generic else _text(level)
    for seed in seeds:
        for kind in TEXT_MUTATIONS:
            changed = mutate_text(text, kind, Random(seed))
            done = piper_opt(changed, *PASSES[level], "-o", "/dev/null")
            assert done.returncode in (0, 1), (kind, seed, done.returncode, done.stderr[-2000:])
            assert (done.returncode == 1) == ("error:" in done.stderr), (kind, seed, done.stderr)


def _text(level: str) -> str:
    """A level, at which streams state their SMs if all limits are checked."""
    text = compiled(TINY).level(level)
    return re.sub(r"(piper\.stream @\w+)", r"\1 sms = 2", text) if level == "programs" else text


def _generic(level: str) -> str:
    with ir.Context():
        module = ir.Module.parse(_text(level))
        return str(module.operation.get_asm(print_generic_op_form=True)) + "\n"


@pytest.mark.parametrize("level", PASSES)
def test_piper_opt_never_crashes(level: str) -> None:
    check_text(level, generic=False, seeds=range(FEW))


@pytest.mark.slow
@pytest.mark.parametrize("generic", [False, True])
@pytest.mark.parametrize("level", PASSES)
def test_piper_opt_never_crashes_at_length(level: str, generic: bool) -> None:
    check_text(level, generic=generic, seeds=range(FEW, MANY))


@pytest.mark.parametrize("level", PASSES)
def test_what_is_unchanged_passes(level: str) -> None:
    for text in (_text(level), _generic(level)):
        done = piper_opt(text, *PASSES[level], "-o", "/dev/null")
        assert done.returncode == 0, done.stderr
