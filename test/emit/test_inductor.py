"""Kernels of a real model through Inductor: compiled once, found again, and right."""

from __future__ import annotations

import re
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import piper
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from gpt import GPT, Config
from piper_runtime import Program, Trainer
from piper_runtime.kernels import KernelError
from piper_runtime.program import seal
from torch import Tensor, nn

pytestmark = pytest.mark.slow  # a minute of compiling

LAYERS = 12
CONFIG = Config(layers=LAYERS, width=32, heads=2, context=16, vocabulary=64)


def loss_fn(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    return F.cross_entropy(model(batch["ids"]).flatten(0, 1), batch["labels"].flatten())


def make_adamw(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=1e-3)


def make_batch(seed: int = 0) -> dict[str, Tensor]:
    ids = torch.randint(0, 64, (4, 17), generator=torch.Generator().manual_seed(seed))
    return {"ids": ids[:, :-1].contiguous(), "labels": ids[:, 1:].contiguous()}


@pytest.fixture(scope="module")
def program() -> Program:
    torch.manual_seed(0)
    strategy = piper.Strategy(
        mesh={"pp": 2},
        directives=[
            piper.annotate({"embed": "embed", "layers.*": "layer", "head": "head"}),
            piper.split(microbatches=2),
            piper.place(stages=2, axis="pp"),
            piper.order("1F1B"),
            piper.update(make_adamw),
        ],
    )
    return piper.compile(GPT(CONFIG), loss_fn, strategy, make_batch())


@pytest.fixture(scope="module")
def compiler(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """An empty cache, and a C++ compiler that keeps a log, which is returned."""
    folder = tmp_path_factory.mktemp("compiler")
    log, script, real = folder / "log", folder / "g++", shutil.which("g++")
    script.write_text(f'#!/bin/sh\necho "$@" >> {log}\nexec {real} "$@"\n')
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    log.touch()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PIPER_CACHE", str(folder / "cache"))
        patch.setenv("CXX", str(script))
        yield log


@pytest.fixture(scope="module")
def compiled(program: Program, compiler: Path) -> Trainer:
    return Trainer(program, transport="local", kernels="inductor")


def compilations(log: Path) -> list[str]:
    """Return the calls that made something: the others ask for the compiler's version."""
    return [line for line in log.read_text().splitlines() if ".cpp" in line]


def layers_of(program: Program, chunk: str) -> set[str]:
    """Return the kernels that chunks with such a name launch."""
    module = program.load(torch.device("cpu")).modules[0]
    return {
        name
        for function, value in vars(module).items()
        if re.fullmatch(chunk, function)
        for name in value.__code__.co_names
        if name in vars(module.k)
    }


def test_a_model_of_twelve_layers_has_two_kernels_for_them(
    program: Program, compiled: Trainer
) -> None:
    train = layers_of(program, r"layer_\d+_[FB]")
    evaluate = layers_of(program, r"layer_\d+_F_eval")
    assert len(train) == 2
    assert len(evaluate) == 1
    others = {"arange", "embedding", "head", "count", "head backward", "embedding backward"}
    others |= {"head of an evaluation"}
    report = compiled.kernels
    assert len(report.compiled) == len(set(report.compiled)) == 3 + len(others)
    assert train | evaluate <= set(report.compiled)
    assert not report.cached


SECOND_START = """
import sys
import torch
from piper_runtime import Trainer

torch.set_num_threads(1)
trainer = Trainer(
    sys.argv[1],
    transport="local",
    kernels="inductor",
    init=lambda name, shape, dtype, generator: torch.zeros(shape, dtype=dtype),
    optimizer=lambda parameters: torch.optim.SGD(parameters, lr=1.0),
)
print(len(trainer.kernels.compiled), *sorted(trainer.kernels.cached))
"""


def test_the_second_start_compiles_nothing(
    program: Program, compiled: Trainer, compiler: Path, tmp_path: Path
) -> None:
    before = compilations(compiler)
    assert before
    program.save(tmp_path)
    command = [sys.executable, "-c", SECOND_START, str(tmp_path)]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert printed.split() == ["0", *sorted(compiled.kernels.compiled)]
    assert compilations(compiler) == before


def test_compiled_kernels_train_like_eager_ones(program: Program, compiled: Trainer) -> None:
    """With poisoned memory, so that a result that aliases another one would show."""
    eager = Trainer(program, transport="local", kernels="eager")
    assert compiled.transport.poison
    for step in range(3):
        batch = make_batch(step)
        assert compiled.step(batch).loss == pytest.approx(eager.step(batch).loss, rel=1e-5)
    for name, wanted in eager.gradients().items():
        torch.testing.assert_close(compiled.gradients()[name], wanted, rtol=1e-3, atol=1e-5)
    assert compiled.evaluate(make_batch(9)) == pytest.approx(
        eager.evaluate(make_batch(9)), rel=1e-4
    )


def test_a_kernel_that_inductor_refuses_is_named(program: Program, compiler: Path) -> None:
    texts = dict(program.texts)
    name = layers_of(program, "layer_0_F").pop()
    head, colon, body = texts["kernels.py"].partition(f"def {name}(")
    body = body.replace("    return ", "    torch.ops.no.such_op()\n    return ", 1)
    texts["kernels.py"] = head + colon + body
    broken = Program(seal(texts, {}), model=program.model)
    with pytest.raises(KernelError, match=f"kernel '{name}' could not be compiled .*such_op"):
        Trainer(broken, transport="local", kernels="inductor", optimizer=make_adamw)
