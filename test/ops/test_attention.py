"""Attention and its gradients against its definition, in parts, in few bytes, and what is refused."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from piper_runtime.ops import attention_blocks, attention_op
from piper_runtime.ops.attention import attention, attention_with_lse, merge
from piper_runtime.ops.attention_blocks import Attended
from piper_runtime.ops.attention_fused import Fused, backward_fused, choose_fused, forward_fused
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

BATCH, HEADS = 2, 4
FLOOR = 1e-12
# How far results are from those of fp64 for the same operands, relative to the largest. In bf16 a
# rounding of the result is 2**-9, of the operands of the second product 2**-9 each; in fp32 all of
# them, and of the sums between, are 2**-24.
NARROW = {torch.bfloat16: 2**-6, torch.float32: 2**-20}

Operands = tuple[Tensor, Tensor, Tensor]


def make(
    *,
    groups: int = HEADS,
    queries: int = 6,
    keys: int = 6,
    size: int = 8,
    width: int = 8,
    dtype: torch.dtype = torch.float64,
) -> Operands:
    generator = torch.Generator().manual_seed(0)
    shapes = (
        (BATCH, HEADS, queries, size),
        (BATCH, groups, keys, size),
        (BATCH, groups, keys, width),
    )
    q, k, v = (
        torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for shape in shapes
    )
    return q.requires_grad_(), k.requires_grad_(), v.requires_grad_()


def make_mask(kind: str | None, queries: int, keys: int) -> Tensor | None:
    """A random mask of each example, which hides all keys from the first query of the first."""
    if kind is None:
        return None
    generator = torch.Generator().manual_seed(1)
    seen = torch.rand(BATCH, 1, queries, keys, generator=generator) > 0.4
    seen[0, :, 0] = False
    if kind == "bool":
        return seen
    added = torch.randn(BATCH, 1, queries, keys, generator=generator, dtype=torch.float64)
    return added.masked_fill(~seen, -math.inf)


def defined(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, *, causal: bool, offset: int
) -> tuple[Tensor, Tensor]:
    """Output and log-sum-exp as they are defined, with a scale of 0.4."""
    heads = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(heads, 1), v.repeat_interleave(heads, 1)
    scores = q @ k.transpose(-1, -2) * 0.4
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else scores + mask
    if causal:
        rows, columns = torch.arange(q.shape[2])[:, None], torch.arange(k.shape[2])
        scores = scores.masked_fill(columns > rows + offset, -math.inf)
    blind = (scores == -math.inf).all(-1, keepdim=True)
    chances = scores.masked_fill(blind, 0).softmax(-1).masked_fill(blind, 0)
    lse = torch.where(blind[..., 0], -math.inf, scores.masked_fill(blind, 0).logsumexp(-1))
    return chances @ v, lse


def loss_of(out: Tensor, lse: Tensor | None) -> Tensor:
    """A sum that reads every output with a weight of its own."""
    weights = torch.linspace(-1, 1, out.numel(), dtype=torch.float64).view(out.shape)
    total = (out * weights).sum()
    if lse is None:
        return total
    return total + (torch.where(lse == -math.inf, 0, lse) * weights[..., 0]).sum()


def far(found: Tensor, expected: Tensor) -> float:
    """The largest difference; queries that see no key must agree on that."""
    assert found.shape == expected.shape
    assert torch.equal(found.isinf(), expected.isinf())
    gap = torch.where(expected.isinf(), 0, found.double() - expected.double())
    return float(gap.detach().abs().max())


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of two queries of one head, so that there are many."""
    monkeypatch.setattr(attention_blocks, "_SCORES_ON_CPU", 10)
    monkeypatch.setattr(attention_blocks, "_LEAST_ROWS", 2)


SIZES = [
    pytest.param({}, id="plain"),
    pytest.param({"groups": 2}, id="grouped"),
    pytest.param({"groups": 1, "queries": 5, "keys": 7}, id="one group"),
    pytest.param({"queries": 7, "keys": 5, "width": 3}, id="few keys"),
    pytest.param({"groups": 2, "size": 12, "queries": 1}, id="one query"),
]
MASKS = ("B1SL", "11SL", "B11L", "BHS1")
CASES = list(itertools.product((False, True), (0, 2, -3), (None, "bool", "added")))


def check(sizes: dict[str, Any]) -> None:
    """Compare values and gradients of every kind of attention of one size with their definition."""
    operands = make(**sizes)
    queries, keys = operands[0].shape[2], operands[1].shape[2]
    for causal, offset, kind in CASES:
        mask = make_mask(kind, queries, keys)
        options: dict[str, Any] = {"causal": causal, "offset": offset}
        found = attention_with_lse(*operands, scale=0.4, mask=mask, **options)
        expected = defined(*operands, mask, **options)
        assert far(found[0], expected[0]) < FLOOR
        assert far(found[1], expected[1]) < FLOOR
        for with_lse in (False, True):
            gradients, wanted = (
                torch.autograd.grad(
                    loss_of(out, lse if with_lse else None), operands, retain_graph=True
                )
                for out, lse in (found, expected)
            )
            for gradient, value in zip(gradients, wanted, strict=True):
                assert far(gradient, value) < FLOOR


@pytest.mark.parametrize("shape", MASKS)
@pytest.mark.parametrize("kind", ["bool", "added"])
@pytest.mark.parametrize("width", [8, 4])
def test_masks_broadcast(shape: str, kind: str, width: int) -> None:
    """In fused kernels and in blocks."""
    q, k, v = make(groups=2, keys=5, width=width)
    whole = {"B": BATCH, "H": HEADS, "S": 6, "L": 5, "1": 1}
    generator = torch.Generator().manual_seed(2)
    mask = torch.randn([whole[dim] for dim in shape], generator=generator, dtype=torch.float64)
    mask = mask > -1 if kind == "bool" else mask
    found = attention_with_lse(q, k, v, causal=False, scale=0.4, mask=mask)
    expected = defined(q, k, v, mask, causal=False, offset=0)
    gradients = torch.autograd.grad(loss_of(found[0], None), (q, k, v))
    wanted = torch.autograd.grad(loss_of(expected[0], None), (q, k, v))
    for ours, value in zip((*found, *gradients), (*expected, *wanted), strict=True):
        assert far(ours, value) < FLOOR


@pytest.mark.parametrize("sizes", SIZES)
def test_values_and_gradients_are_as_defined(sizes: dict[str, Any]) -> None:
    check(sizes)


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.usefixtures("small_blocks")
def test_blocks_are_as_defined(sizes: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention_op, "choose_fused", lambda *args, **options: None)
    check(sizes)


@pytest.mark.parametrize("groups", [HEADS, 2])
@pytest.mark.parametrize(("queries", "keys"), [(6, 6), (5, 7), (7, 5)])
def test_it_is_what_torch_computes(groups: int, queries: int, keys: int) -> None:
    """With torch's default scale, and its meaning of causal where lengths differ."""
    q, k, v = make(groups=groups, queries=queries, keys=keys, width=3)
    found = attention(q, k, v, causal=True)
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        expected = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    assert far(found, expected) < FLOOR
    gradients = torch.autograd.grad(loss_of(found, None), (q, k, v))
    wanted = torch.autograd.grad(loss_of(expected, None), (q, k, v))
    assert all(far(a, b) < FLOOR for a, b in zip(gradients, wanted, strict=True))


@pytest.mark.parametrize("width", [8, 4])
def test_gradients_are_those_of_finite_differences(width: int) -> None:
    operands = make(groups=2, queries=3, keys=4, size=8, width=width)
    mask = make_mask("added", 3, 4)

    def both(*operands: Tensor) -> tuple[Tensor, Tensor]:
        out, lse = attention_with_lse(*operands, causal=True, offset=1, mask=mask)
        return out, torch.where(lse == -math.inf, 0, lse)

    def plain(*operands: Tensor) -> Tensor:
        return attention(*operands, causal=True)

    assert torch.autograd.gradcheck(both, operands)
    assert torch.autograd.gradcheck(plain, operands)


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("offset", [0, 1])
@pytest.mark.parametrize("dtype", NARROW, ids=["bf16", "fp32"])
def test_narrow_dtypes_are_near_fp64(
    dtype: torch.dtype, sizes: dict[str, Any], offset: int
) -> None:
    """By fused kernels and by blocks, which an offset and another width of values ask for."""
    narrow = make(dtype=dtype, **sizes)
    q, k, v = wide = [tensor.detach().double().requires_grad_() for tensor in narrow]
    found, lse = attention_with_lse(*narrow, causal=True, scale=0.4, offset=offset)
    expected, _ = defined(q, k, v, None, causal=True, offset=offset)
    assert found.dtype == dtype
    assert lse.dtype == torch.float32
    gradients = torch.autograd.grad(loss_of(found, None), narrow)
    wanted = torch.autograd.grad(loss_of(expected, None), wide)
    for ours, value in zip((found, *gradients), (expected, *wanted), strict=True):
        assert far(ours, value) <= NARROW[dtype] * max(1.0, float(value.detach().abs().max()))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("cut", [0, 1, 4, 6])
def test_parts_merged_are_the_whole(causal: bool, cut: int) -> None:
    """Also if a part is empty, or a query sees no key of one; with gradients through the merge."""
    q, k, v = make(groups=2)
    whole = attention_with_lse(q, k, v, causal=causal)
    first = attention_with_lse(q, k[:, :, :cut], v[:, :, :cut], causal=causal)
    second = attention_with_lse(q, k[:, :, cut:], v[:, :, cut:], causal=causal, offset=-cut)
    for merged in (merge(*first, *second), merge(*second, *first)):
        assert far(merged[0], whole[0]) < FLOOR
        assert far(merged[1], whole[1]) < FLOOR
        gradients = torch.autograd.grad(loss_of(*merged), (q, k, v), retain_graph=True)
        wanted = torch.autograd.grad(loss_of(*whole), (q, k, v), retain_graph=True)
        assert all(far(a, b) < FLOOR for a, b in zip(gradients, wanted, strict=True))


def test_queries_without_keys_merge_to_queries_without_keys() -> None:
    q, k, v = make()
    part = attention_with_lse(q, k, v, causal=True, offset=-9)
    out, lse = merge(*part, *part)
    assert not out.any()
    assert (lse == -math.inf).all()
    gradients = torch.autograd.grad(loss_of(out, lse), (q, k, v))
    assert not any(gradient.any() for gradient in gradients)


def test_gradients_of_parts_add_up_to_those_of_the_whole() -> None:
    """Given output and log-sum-exp of all keys, each part of the keys has a backward pass of its
    own.
    """
    q, k, v = make(groups=2)
    out, lse = attention_with_lse(q, k, v, causal=True, scale=0.4)
    grad = torch.ones_like(out)
    wanted = torch.autograd.grad(out, (q, k, v), grad)
    with torch.no_grad():
        parts = [
            attention_op.attention_backward(
                grad, q, k[:, :, part], v[:, :, part], out, lse, None, None, True, 0.4, -part.start
            )
            for part in (slice(0, 2), slice(2, 6))
        ]
    assert far(parts[0][0] + parts[1][0], wanted[0]) < FLOOR
    for i in (1, 2):
        assert far(torch.cat([parts[0][i], parts[1][i]], 2), wanted[i]) < FLOOR


class _Largest(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records the most elements of a tensor that any op makes."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.numel = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if isinstance(result, Tensor) and result._base is None:
            self.numel = max(self.numel, result.numel())
        return result


@pytest.mark.usefixtures("small_blocks")
def test_blocks_never_make_a_matrix_of_all_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    most = 1 << 10
    monkeypatch.setattr(attention_blocks, "_SCORES_ON_CPU", most)
    q, k, v = (tensor.detach() for tensor in make(queries=64, keys=64, size=4, width=4))
    options: dict[str, Any] = {"causal": True, "scale": 0.4, "offset": 0}
    with _Largest() as forward:
        out, lse = attention_blocks.forward_in_blocks(q, k, v, None, **options)
    given = Attended(out, q, k, v, out, lse)
    with _Largest() as backward:
        attention_blocks.backward_in_blocks(given, None, None, **options)
    operand = q.numel()
    assert max(forward.numel, backward.numel) <= max(most, operand) < HEADS * 64 * 64


def test_causal_blocks_leave_out_what_nobody_sees() -> None:
    """At most a block more than half of the products are computed."""
    q, k, v = (tensor.detach() for tensor in make(queries=4096, keys=4096, size=2, width=2))
    counts = []
    for causal in (False, True):
        with FlopCounterMode(display=False) as counter:
            attention_blocks.forward_in_blocks(q, k, v, None, causal=causal, scale=1.0, offset=0)
        counts.append(counter.get_total_flops())
    assert counts[1] < 0.6 * counts[0]


@pytest.mark.parametrize("kind", [None, "bool"])
@pytest.mark.parametrize("sizes", SIZES)
def test_torch_agrees_with_what_the_op_says_of_itself(
    sizes: dict[str, Any], kind: str | None
) -> None:
    """Its schema, its gradient, and shapes and strides without data."""
    operands = make(**sizes)
    mask = make_mask(kind, operands[0].shape[2], operands[1].shape[2])
    arguments = (*operands, mask, kind is None, 0.4, 0)
    torch.library.opcheck(
        torch.ops.piper.attention.default,
        arguments,
        test_utils=(
            "test_schema",
            "test_autograd_registration",
            "test_faketensor",
            "test_aot_dispatch_static",
        ),
    )


def test_flops_are_counted_as_torch_counts_them() -> None:
    """The formula of its fused attention, which takes no notice of causality."""
    q, k, v = make(groups=2, queries=5, keys=7, width=3)
    with FlopCounterMode(display=False) as counter:
        out = attention(q, k, v, causal=True, offset=1)
    scores = BATCH * HEADS * 5 * 7
    assert counter.get_total_flops() == scores * 2 * (8 + 3)
    with FlopCounterMode(display=False) as counter:
        out.sum().backward()  # type: ignore[no-untyped-call]
    assert counter.get_total_flops() == scores * 2 * (3 * 8 + 2 * 3)


BAD: dict[str, tuple[type[Exception], str, Callable[[Tensor, Tensor, Tensor], object]]] = {
    "dtypes": (
        TypeError,
        "attention expected q, k and v of one floating dtype, got",
        lambda q, k, v: attention(q, k.float(), v, causal=True),
    ),
    "integers": (
        TypeError,
        "attention expected q, k and v of one floating dtype, got",
        lambda q, k, v: attention(q.long(), k.long(), v.long(), causal=True),
    ),
    "dims": (
        ValueError,
        r"attention expected q, k and v of four dims, got \[4, 6, 8\]",
        lambda q, k, v: attention(q[0], k, v, causal=True),
    ),
    "sizes": (
        ValueError,
        r"attention expected q\[B,H,S,D\], k\[B,G,L,D\], v\[B,G,L,E\], got",
        lambda q, k, v: attention(q, k[..., :4], v, causal=True),
    ),
    "lengths": (
        ValueError,
        r"attention expected q\[B,H,S,D\], k\[B,G,L,D\], v\[B,G,L,E\], got",
        lambda q, k, v: attention(q, k, v[:, :, :4], causal=True),
    ),
    "groups": (
        ValueError,
        "attention expected the heads of k to divide the 4 of q, got 3",
        lambda q, k, v: attention(q, k[:, :3], v[:, :3], causal=True),
    ),
    "mask dtype": (
        TypeError,
        "attention expected a mask of torch.bool or torch.float64, got torch.float32",
        lambda q, k, v: attention(q, k, v, causal=True, mask=torch.zeros(1, 1, 6, 6)),
    ),
    "mask shape": (
        ValueError,
        r"attention expected a mask that broadcasts to \[2, 4, 6, 6\], got \[6, 5\]",
        lambda q, k, v: attention(q, k, v, causal=True, mask=torch.ones(6, 5).bool()),
    ),
    "mask gradient": (
        ValueError,
        "attention expected a mask that needs no gradient, got one that does",
        lambda q, k, v: attention(
            q, k, v, causal=True, mask=q.new_zeros(1, 1, 6, 6) + q[0, 0, 0, 0]
        ),
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_what_does_not_fit_is_refused(case: str) -> None:
    error, message, call = BAD[case]
    with pytest.raises(error, match=message):
        call(*make())


def test_a_fused_kernel_is_chosen_only_where_it_fits() -> None:
    def choose(**options: Any) -> Fused | None:
        causal, offset = options.pop("causal", True), options.pop("offset", 0)
        mask = options.pop("mask", None)
        return choose_fused(*make(**options), mask, causal=causal, offset=offset)

    assert choose() == Fused("cpu", 6, True)
    assert choose(causal=False) == Fused("cpu", 6, False)
    assert choose(keys=9) == Fused("cpu", 6, True)
    assert choose(offset=5) == Fused("cpu", 6, False)  # every query sees every key
    assert choose(offset=1) is None
    assert choose(offset=-1) is None
    assert choose(width=4) is None
    assert choose(keys=0) is None
    assert choose(mask=make_mask("bool", 6, 6)) is None
    assert choose(mask=make_mask("bool", 6, 6), causal=False) == Fused("cpu", 6, False)


# What the kernels of GPUs are called with, of tensors without data.


def _meta(dtype: torch.dtype, **sizes: Any) -> Iterator[Tensor]:
    return (tensor.detach().to("meta", dtype) for tensor in make(**sizes))


@pytest.mark.parametrize(
    ("plan", "dtype", "sizes"),
    [
        (Fused("flash", 6, True), torch.bfloat16, {}),
        (Fused("flash", 6, True), torch.bfloat16, {"groups": 2, "keys": 9}),
        (Fused("flash", 6, True), torch.bfloat16, {"size": 12, "width": 8}),
        (Fused("efficient", 6, True), torch.float32, {}),
        (Fused("efficient", 6, True), torch.float32, {"groups": 2, "keys": 9, "width": 16}),
    ],
)
def test_calls_of_gpu_kernels_have_the_right_shapes(
    plan: Fused, dtype: torch.dtype, sizes: dict[str, Any]
) -> None:
    q, k, v = _meta(dtype, **sizes)
    out, lse = forward_fused(plan, q, k, v, None, scale=0.4)
    assert out.shape == (*q.shape[:3], v.shape[3])
    assert lse.shape == q.shape[:3]
    gradients = backward_fused(plan, Attended(out, q, k, v, out, lse), None, scale=0.4)
    assert [gradient.shape for gradient in gradients] == [q.shape, k.shape, v.shape]
