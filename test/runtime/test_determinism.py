"""Deterministic mode: what holds while a program runs, what it finds, what it demands."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from mlp_program import TiedMlp, make_batch, make_sgd, program_texts, sealed
from piper_runtime import InstructionError, LocalTransport, Program, Trainer
from piper_runtime.determinism import check_environment, deterministic

PLAIN = """\
def embedding(ids, w):
    return aten.embedding.default(w, ids)
"""
# Without accumulation put_ has a deterministic form on no device.
PUT = """\
def embedding(ids, w):
    v0 = aten.embedding.default(w, ids)  # model.py:7
    v1 = ids.view(32)[:1]; del ids  # model.py:8
    return aten.put.default(v0, v1, v0.view(512)[:1]); del v0, v1
"""
NOTED = """\
SEEN = []


def embedding(ids, w):
    SEEN.append((torch.are_deterministic_algorithms_enabled(), torch.backends.cudnn.benchmark))
    return aten.embedding.default(w, ids)
"""


def trainer_of(kernel: str, **options: Any) -> Trainer:
    """A trainer of the hand-written program with another kernel ``embedding``."""
    texts = program_texts()
    assert PLAIN in texts["kernels.py"]
    texts["kernels.py"] = texts["kernels.py"].replace(PLAIN, kernel)
    return Trainer(Program(sealed(texts)), model=TiedMlp(), optimizer=make_sgd, **options)


def seen(trainer: Trainer) -> list[tuple[bool, bool]]:
    """What the kernel has noted."""
    package = f"piper_program_{trainer.program.manifest.hash[:16]}"
    noted: list[tuple[bool, bool]] = sys.modules[f"{package}.kernels"].__dict__["SEEN"]
    return noted


@pytest.fixture(autouse=True)
def settings() -> Iterator[None]:
    """Torch as it is by default, before and after."""
    assert not torch.are_deterministic_algorithms_enabled()
    yield
    torch.use_deterministic_algorithms(False)
    torch.backends.cudnn.benchmark = False


# What is found.


def test_an_op_without_a_deterministic_form_is_named_with_its_chunk_and_source_line() -> None:
    trainer_of(PUT).step(make_batch(0))
    trainer = trainer_of(PUT, deterministic=True)
    with pytest.raises(InstructionError) as caught:
        trainer.step(make_batch(0))
    first, origin, op = str(caught.value).splitlines()
    assert first.startswith("rank 0 (pp 0, dp 0), program_pp0.py:")
    assert "`x0_0 = r.run(embed_F, ids_0, pe, mb=0)`, chunk embed_F, microbatch 0: " in first
    assert "RuntimeError: put_ does not have a deterministic implementation" in first
    assert origin == "from 0F0 (embed)"
    number = trainer.program.texts["kernels.py"].splitlines().index(PUT.splitlines()[3]) + 1
    statement = "return aten.put.default(v0, v1, v0.view(512)[:1])"
    assert op == f"in kernels.py:{number}: `{statement}`, from model.py:8"
    assert not torch.are_deterministic_algorithms_enabled()


def test_errors_outside_of_kernels_have_no_line_of_them() -> None:
    trainer = trainer_of(PLAIN, fault="rank=0 instruction='recv pp$1.0 mb 3' action=raise")
    with pytest.raises(InstructionError) as caught:
        trainer.step(make_batch(0))
    assert "kernels.py" not in str(caught.value)


def test_lines_without_a_source_have_none() -> None:
    broken = PLAIN.replace("(w, ids)", "(ids, w)")
    with pytest.raises(InstructionError, match=r"in kernels\.py:\d+: `return aten\.[^`]*`$"):
        trainer_of(broken).step(make_batch(0))


# While it holds.


def test_it_holds_while_a_program_runs_and_not_before_or_after() -> None:
    torch.backends.cudnn.benchmark = True
    trainer = trainer_of(NOTED, deterministic=True)
    calls: list[Callable[[], object]] = [
        lambda: trainer.step(make_batch(0)),
        lambda: trainer.evaluate(make_batch(0)),
        lambda: trainer.stepper(make_batch(0)).finish(),
    ]
    for call in calls:
        seen(trainer).clear()
        call()
        assert set(seen(trainer)) == {(True, False)}
        assert not torch.are_deterministic_algorithms_enabled()
        assert torch.backends.cudnn.benchmark
    plain = trainer_of(NOTED)
    plain.step(make_batch(0))
    assert set(seen(plain)) == {(False, True)}


def test_between_the_instructions_of_a_stepper_it_does_not_hold() -> None:
    stepper = trainer_of(NOTED, deterministic=True).stepper(make_batch(0))
    for _ in stepper:
        assert not torch.are_deterministic_algorithms_enabled()


@pytest.mark.parametrize("warn_only", [False, True])
def test_what_was_set_before_is_restored(warn_only: bool) -> None:
    torch.use_deterministic_algorithms(True, warn_only=warn_only)
    with deterministic(True):
        assert not torch.is_deterministic_algorithms_warn_only_enabled()
    assert torch.are_deterministic_algorithms_enabled()
    assert torch.is_deterministic_algorithms_warn_only_enabled() == warn_only


def test_a_deterministic_step_has_the_same_bits() -> None:
    losses = [
        [trainer.step(make_batch(step)).loss for step in range(3)]
        for trainer in (trainer_of(PLAIN), trainer_of(PLAIN, deterministic=True))
    ]
    assert losses[0] == losses[1]


# What it demands.


class Gpu(LocalTransport):
    """A transport on a device that is not there."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
        self.device = torch.device("cuda")


GOOD = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8", "NCCL_ALGO": "Ring", "NCCL_PROTO": "Simple"}


def set_variables(monkeypatch: pytest.MonkeyPatch, **changes: str | None) -> None:
    for name, value in {**GOOD, **changes}.items():
        if value is None:
            monkeypatch.delenv(name, raising=False)
        else:
            monkeypatch.setenv(name, value)


@pytest.mark.parametrize(
    ("name", "got", "allowed"),
    [
        ("CUBLAS_WORKSPACE_CONFIG", None, ":4096:8, :16:8"),
        ("CUBLAS_WORKSPACE_CONFIG", ":0:0", ":4096:8, :16:8"),
        ("NCCL_ALGO", None, "Ring, Tree"),
        ("NCCL_ALGO", "Ring,Tree", "Ring, Tree"),
        ("NCCL_ALGO", "NVLS", "Ring, Tree"),
        ("NCCL_PROTO", "^LL", "Simple, LL, LL128"),
    ],
)
def test_variables_that_leave_a_choice_are_refused(
    name: str, got: str | None, allowed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_variables(monkeypatch, **{name: got})
    message = (
        f"deterministic mode on nccl expected {name} to be one of {allowed}, "
        f"set before the process starts, got {got or 'nothing'}"
    )
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        trainer_of(PLAIN, transport=Gpu("nccl"), deterministic=True)


def test_variables_that_fix_the_order_of_sums_will_do(monkeypatch: pytest.MonkeyPatch) -> None:
    set_variables(monkeypatch)
    check_environment(Gpu("nccl"))
    set_variables(monkeypatch, CUBLAS_WORKSPACE_CONFIG=":16:8", NCCL_ALGO="tree", NCCL_PROTO="ll")
    check_environment(Gpu("nccl"))


def test_only_what_is_used_must_be_set(monkeypatch: pytest.MonkeyPatch) -> None:
    set_variables(monkeypatch, NCCL_ALGO=None, NCCL_PROTO=None)
    check_environment(Gpu("local"))
    set_variables(monkeypatch, **dict.fromkeys(GOOD))
    check_environment(LocalTransport())
    with pytest.raises(ValueError, match="deterministic mode on local expected CUBLAS_WORKSPACE"):
        check_environment(Gpu("local"))


class Others(LocalTransport):
    """A transport with another process, which is not deterministic, or is if this one is not."""

    def gather(self, value: Any) -> list[Any]:
        return [value, not value] if isinstance(value, bool) and self.differs else [value]

    differs = False


@pytest.mark.parametrize(("here", "ranks"), [(True, r"\[0\]"), (False, r"\[1\]")])
def test_all_ranks_are_deterministic_or_none(
    here: bool, ranks: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("piper_runtime.trainer.make_checker", _differ)
    with pytest.raises(ValueError, match=f"deterministic expected on all .* on ranks {ranks}"):
        trainer_of(PLAIN, transport=Others(), deterministic=here)


def _differ(oracle: object, manifest: object, transport: Others) -> None:
    """In place of the check that comes before, which has a question of the same kind."""
    transport.differs = True
