"""Inductor's decompositions are for its own kernels: eager ones call the ops of the model."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from mlp_program import program_texts
from op_log import OpLog
from piper_runtime import Program
from piper_runtime.kernels import bind_kernels
from piper_runtime.kernels.inductor import compile_kernel
from piper_runtime.kernels.source import read_kernels

CPU = torch.device("cpu")
KERNEL, OP = "embedding_backward", "embedding_dense_backward"
TEXT = f"""
import torch

aten = torch.ops.aten


def {KERNEL}(a0: float64[4, 8, 16], a1: int64[4, 8]):
    return aten.{OP}.default(a0, a1, 32, -1, False)
"""


class TakenError(Exception):
    """Raised instead of compiling, once Inductor's graph is there."""


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> list[set[str]]:
    """The ops of every graph that Inductor is given; nothing is compiled."""
    given: list[set[str]] = []

    def take(graph: torch.fx.GraphModule, *_: Any, **__: Any) -> None:
        nodes = [node for node in graph.graph.nodes if node.op == "call_function"]
        given.append({node.target.overloadpacket.__name__ for node in nodes})
        raise TakenError

    monkeypatch.setattr("torch._inductor.compile_fx.compile_fx_inner", take)
    return given


def called() -> set[str]:
    """The ops that an eager kernel calls."""
    program = Program(program_texts())
    loaded = program.load(CPU)
    bind_kernels(program, loaded, backend="eager", device=CPU, coordinates=[0, 1])
    arguments = torch.ones(4, 8, 16, dtype=torch.float64), torch.zeros(4, 8, dtype=torch.int64)
    ops = OpLog()
    with ops:
        getattr(loaded.modules[0].k, KERNEL)(*arguments)
    return ops.names


def test_only_inductor_decomposes(graphs: list[set[str]]) -> None:
    assert called() == {OP}
    [kernel] = read_kernels(TEXT, {KERNEL})
    with pytest.raises(TakenError):
        compile_kernel(kernel, CPU)
    [ops] = graphs
    assert OP not in ops
    assert len(ops) > 2
    assert called() == {OP}  # also after Inductor was at work in this process
