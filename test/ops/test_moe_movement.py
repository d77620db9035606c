"""Ops of experts that move rows, by Triton's kernels in Triton's interpreter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from piper_runtime.movement import TorchMovement
from piper_runtime.ops import (
    moe_permute,
    moe_permute_backward,
    moe_unpermute,
    moe_unpermute_rows,
    moe_unpermute_weights,
    routing,
)
from torch import Tensor

pytest.importorskip("triton")
from triton_module import load_triton

NARROW, SINGLE, DOUBLE = torch.bfloat16, torch.float32, torch.float64
OPS: dict[str, tuple[Callable[..., Tensor], str]] = {
    "permute": (moe_permute, "permute_rows"),
    "permute_backward": (moe_permute_backward, "unpermute_rows"),
    "unpermute": (moe_unpermute, "unpermute_rows"),
    "unpermute_rows": (moe_unpermute_rows, "permute_rows"),
    "unpermute_weights": (moe_unpermute_weights, "dot_rows"),
}
CPU = torch.device("cpu")


class Recorded:
    """A movement, and the names of what is called."""

    def __init__(self, movement: Any) -> None:
        self.movement, self.calls = movement, list[str]()

    def __getattr__(self, name: str) -> Any:
        self.calls.append(name)
        return getattr(self.movement, name)


@pytest.fixture(scope="module")
def kernels() -> Any:
    return load_triton(interpreted=True).TritonMovement()


@pytest.fixture
def by_triton(kernels: Any, monkeypatch: pytest.MonkeyPatch) -> Recorded:
    """Let ops that are called with tensors on the CPU move rows as they do on CUDA."""
    recorded = Recorded(kernels)
    monkeypatch.setattr(routing, "movement_for", {CPU: recorded}.__getitem__)
    return recorded


def arguments(
    name: str, tokens: int, choices: int, width: int, dtype: torch.dtype, kind: torch.dtype
) -> tuple[Any, ...]:
    """Return arguments of an op: rows of `dtype`, weights of `kind`."""
    generator = torch.Generator().manual_seed(tokens)

    def normal(*shape: int, dtype: torch.dtype = dtype) -> Tensor:
        return torch.randn(shape, generator=generator).to(dtype)

    slots = tokens * choices
    order = torch.randperm(slots, generator=generator)
    x, rows, weights = (
        normal(tokens, width),
        normal(slots, width),
        normal(tokens, choices, dtype=kind),
    )
    return {
        "permute": (x, order, choices),
        "permute_backward": (rows, order, choices),
        "unpermute": (rows, order, weights),
        "unpermute_rows": (x, order, weights),
        "unpermute_weights": (x, rows, order, choices, kind),
    }[name]


SIZES = [(7, 3, 5), (1, 1, 1), (5, 1, 64), (0, 2, 8), (3, 2, 1030), (4, 8, 16)]
DTYPES = [(SINGLE, SINGLE), (DOUBLE, DOUBLE), (NARROW, NARROW), (NARROW, SINGLE), (SINGLE, DOUBLE)]


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize(("dtype", "kind"), DTYPES)
@pytest.mark.parametrize("name", OPS)
def test_both_implementations_agree(
    by_triton: Recorded,
    name: str,
    dtype: torch.dtype,
    kind: torch.dtype,
    sizes: tuple[int, int, int],
) -> None:
    """Bit for bit, but for the order in which torch adds more than three terms, and for how bf16 is
    rounded: the interpreter cuts bits off.
    """
    op, method = OPS[name]
    args = arguments(name, *sizes, dtype, kind)
    found = op(*args)
    assert by_triton.calls == [method]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(routing, "movement_for", lambda device: TorchMovement())
        wanted = op(*args)
    assert found.is_contiguous()
    if wanted.dtype == NARROW and name != "permute":
        torch.testing.assert_close(found, wanted, rtol=2.0**-6, atol=1e-5)
    elif name == "unpermute_weights" or sizes[1] > 3:
        bound = 1e-12 if wanted.dtype == DOUBLE else 1e-4
        torch.testing.assert_close(found, wanted, rtol=bound, atol=bound)
    else:
        assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape)
        assert torch.equal(found, wanted)


@pytest.mark.parametrize("name", OPS)
def test_strided_arguments_are_taken_by_value(by_triton: Recorded, name: str) -> None:
    args = arguments(name, 5, 2, 3, SINGLE, SINGLE)
    strided = [
        arg.repeat_interleave(2, -1)[..., ::2] if isinstance(arg, Tensor) else arg for arg in args
    ]
    assert not any(arg.is_contiguous() for arg in strided if isinstance(arg, Tensor))
    assert torch.equal(OPS[name][0](*strided), OPS[name][0](*args))


def layer(x: Tensor, order: Tensor, weights: Tensor) -> Tensor:
    rows = moe_permute(x, order, weights.shape[1])
    return moe_unpermute(torch.tanh(rows), order, weights)


def layer_inputs() -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    x = torch.randn(2, 3, dtype=DOUBLE, requires_grad=True)
    weights = torch.randn(2, 3, dtype=DOUBLE, requires_grad=True)
    return x, torch.randperm(6), weights


def test_gradients_by_triton_are_derivatives(by_triton: Recorded) -> None:
    assert torch.autograd.gradcheck(layer, layer_inputs())
    assert set(by_triton.calls) == {"permute_rows", "unpermute_rows", "dot_rows"}


def test_a_compiled_layer_calls_the_kernels(by_triton: Recorded) -> None:
    """Ops are opaque to torch.compile: what is traced without data holds none of their insides."""
    inputs = layer_inputs()
    x, _, weights = inputs
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    found = compiled(*inputs)
    assert by_triton.calls == ["permute_rows", "unpermute_rows"]
    grads = torch.autograd.grad(found.sum(), (x, weights))
    assert sorted(by_triton.calls[2:]) == ["dot_rows", "permute_rows", "unpermute_rows"]
    wanted = layer(*inputs)
    torch.testing.assert_close(found, wanted)
    torch.testing.assert_close(grads, torch.autograd.grad(wanted.sum(), (x, weights)))


@pytest.mark.parametrize("name", OPS)
def test_torch_agrees_with_the_registration_by_triton(by_triton: Recorded, name: str) -> None:
    """Schema, and shapes without data; results are no aliases."""
    op = getattr(torch.ops.piper, OPS[name][0].__name__).default
    torch.library.opcheck(op, arguments(name, 5, 2, 3, SINGLE, SINGLE))
