"""Data movement against plain indexing in double precision: torch's ops here, Triton's kernels in
Triton's interpreter. The kernels themselves are compiled for sm_90 without a GPU.
"""

# mypy: disable-error-code="import-untyped"

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod
from types import MappingProxyType
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from piper_runtime.movement import Packing, TorchMovement, movement_for
from torch import Tensor
from triton_module import load_triton

pytest.importorskip("triton")
NARROW, SINGLE, DOUBLE = torch.bfloat16, torch.float32, torch.float64
SETTINGS = settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(scope="module", params=["torch", "triton"])
def movement(request: pytest.FixtureRequest) -> Any:
    if request.param == "torch":
        return TorchMovement()
    return load_triton(interpreted=True).TritonMovement()


def drawn(*shape: int, dtype: torch.dtype = SINGLE, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def flat_of(sizes: list[int], dtype: torch.dtype, offset: int) -> Tensor:
    """Return a flat tensor that starts ``offset`` elements behind its storage."""
    return drawn(sum(sizes) + offset, dtype=dtype, seed=1)[offset:]


def check(movement: Any, got: Tensor, wanted: Tensor, source: torch.dtype) -> None:
    """Check that values are equal, where Triton's interpreter rounds as torch and GPUs do: it cuts
    bits off when it makes bfloat16.
    """
    if wanted.dtype == NARROW != source and not isinstance(movement, TorchMovement):
        assert got.dtype == wanted.dtype
        torch.testing.assert_close(got, wanted, rtol=2.0**-7, atol=0)
    else:
        assert torch.equal(got, wanted)


SHAPES = st.lists(
    st.sampled_from([(3,), (4, 8), (1024,), (1025,), (), (2, 0), (16, 64), (3, 5, 7)]), max_size=5
)
DTYPES = st.sampled_from([NARROW, SINGLE, DOUBLE])


@SETTINGS
@given(SHAPES, DTYPES, DTYPES, st.booleans(), st.integers(0, 3))
def test_pack(
    movement: Any,
    shapes: list[tuple[int, ...]],
    part: torch.dtype,
    whole: torch.dtype,
    add: bool,
    offset: int,
) -> None:
    sizes = [prod(shape) for shape in shapes]
    flat = flat_of(sizes, whole, offset)
    parts = [drawn(*shape, dtype=part, seed=2 + i) for i, shape in enumerate(shapes)]
    given = torch.cat([p.reshape(-1) for p in parts]) if parts else flat.clone()
    wide = torch.promote_types(part, whole)
    wide = SINGLE if wide == NARROW else wide
    expected = given.to(wide) + flat.to(wide) if add and parts else given
    movement.pack(parts, Packing(flat, shapes), add=add)
    check(movement, flat, expected.to(whole), expected.dtype)


Rows = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]


def make_rows(
    tokens: int,
    choices: int,
    width: int,
    *,
    dtype: torch.dtype = SINGLE,
    kind: torch.dtype = SINGLE,
    seed: int = 0,
) -> Rows:
    """Return tokens, rows, an order of rows, the token of each row, and weights of dtype `kind`."""
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(tokens * choices, generator=generator)
    owners = torch.arange(tokens).repeat_interleave(choices)[order]
    values = drawn(tokens, width, dtype=dtype, seed=seed)
    rows = drawn(tokens * choices, width, dtype=dtype, seed=seed + 1)
    return values, rows, order, owners, drawn(tokens, choices, dtype=kind, seed=seed + 2)


def check_near(got: Tensor, wanted: Tensor, dtype: torch.dtype) -> None:
    """Check against fp64, for sums of a thousand products at most.

    bf16 has 8 bits, and Triton's interpreter cuts off the others where torch and GPUs round.
    """
    assert (got.dtype, got.shape) == (dtype, wanted.shape)
    assert got.is_contiguous()
    rtol, atol = {NARROW: (2.0**-7, 1e-5), SINGLE: (1e-5, 1e-5), DOUBLE: (1e-13, 1e-13)}[dtype]
    scale = float(wanted.abs().max()) if wanted.numel() else 0.0
    torch.testing.assert_close(got.double(), wanted, rtol=rtol, atol=atol * max(1.0, scale))


@SETTINGS
@given(
    st.integers(0, 5),
    st.integers(1, 3),
    st.sampled_from([0, 1, 5, 64, 1030]),
    DTYPES,
    DTYPES,
    st.integers(0, 1000),
)
def test_rows(
    movement: Any,
    tokens: int,
    choices: int,
    width: int,
    dtype: torch.dtype,
    kind: torch.dtype,
    seed: int,
) -> None:
    """All three against loops that add up in fp64."""
    values, rows, order, owners, weights = make_rows(
        tokens, choices, width, dtype=dtype, kind=kind, seed=seed
    )
    by_row = weights.reshape(-1)[order].double()[:, None]
    how = {"order": order, "choices": choices}
    assert torch.equal(movement.permute_rows(values, **how), values[owners])
    got = movement.permute_rows(values, weights=weights, **how)
    check_near(got, by_row * values[owners].double(), dtype)
    for scale, weighed in ((torch.ones(()), None), (by_row, weights)):
        wanted = torch.zeros(tokens, width, dtype=DOUBLE)
        wanted.index_add_(0, owners, scale * rows.double())
        check_near(movement.unpermute_rows(rows, weights=weighed, **how), wanted, dtype)
    products = (values[owners].double() * rows.double()).sum(1)
    wanted = torch.zeros(tokens * choices, dtype=DOUBLE).index_put_((order,), products)
    got = movement.dot_rows(values, rows, dtype=kind, **how)
    check_near(got, wanted.view(tokens, choices), kind)


def test_parts_that_are_strided_are_packed(movement: Any) -> None:
    flat, part = torch.zeros(6), torch.arange(6.0).view(2, 3)
    movement.pack([part.t()], Packing(flat, [(3, 2)]))
    assert torch.equal(flat, part.t().reshape(-1))


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ([torch.zeros(2)], "parts expected to be 2, got 1"),
        ([torch.zeros(2), torch.zeros(2)], r"part 1 expected shape \(3,\), got \(2,\)"),
        (
            [torch.zeros(2), torch.zeros(3, dtype=DOUBLE)],
            "part 1 expected dtype torch.float32, got torch.float64",
        ),
    ],
)
def test_odd_parts(movement: Any, parts: list[Tensor], message: str) -> None:
    packing = Packing(torch.zeros(5), [(2,), (3,)])
    with pytest.raises(ValueError, match=message):
        movement.pack(parts, packing)


ORDER = torch.arange(6)
ODD_ROWS: list[tuple[Callable[[Any], object], str]] = [
    (
        lambda move: move.permute_rows(torch.zeros(3), order=ORDER, choices=2),
        r"tokens expected floating \(3, D\), got torch.float32 \(3,\)",
    ),
    (
        lambda move: move.permute_rows(torch.zeros(4, 1), order=ORDER, choices=2),
        r"tokens expected floating \(3, D\), got torch.float32 \(4, 1\)",
    ),
    (
        lambda move: move.permute_rows(torch.zeros(3, 1).long(), order=ORDER, choices=2),
        r"tokens expected floating \(3, D\), got torch.int64 \(3, 1\)",
    ),
    (
        lambda move: move.unpermute_rows(torch.zeros(3, 1), order=ORDER, choices=2),
        r"rows expected floating \(6, D\), got torch.float32 \(3, 1\)",
    ),
    (
        lambda move: move.unpermute_rows(torch.zeros(6, 1), order=ORDER.int(), choices=2),
        r"order expected int64 of 1 dim, got torch.int32 \(6,\)",
    ),
    (
        lambda move: move.unpermute_rows(torch.zeros(6, 1), order=ORDER.view(3, 2), choices=2),
        r"order expected int64 of 1 dim, got torch.int64 \(3, 2\)",
    ),
    (
        lambda move: move.unpermute_rows(torch.zeros(6, 1), order=ORDER, choices=4),
        "choices expected to divide the number of slots 6, got 4",
    ),
    (
        lambda move: move.permute_rows(torch.zeros(6, 1), order=ORDER, choices=0),
        "choices expected to divide the number of slots 6, got 0",
    ),
    (
        lambda move: move.permute_rows(
            torch.zeros(3, 1), order=ORDER, choices=2, weights=torch.zeros(2, 3)
        ),
        r"weights expected \(3, 2\), got torch.float32 \(2, 3\)",
    ),
    (
        lambda move: move.dot_rows(
            torch.zeros(3, 1), torch.zeros(6, 2), order=ORDER, choices=2, dtype=SINGLE
        ),
        "rows expected the width of tokens 1, got 2",
    ),
]


@pytest.mark.parametrize(("call", "message"), ODD_ROWS)
def test_odd_rows(movement: Any, call: Callable[[Any], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call(movement)


def test_odd_packings() -> None:
    with pytest.raises(
        ValueError, match=r"expected shape \(5,\), the sum of its parts, got \(4,\)"
    ):
        Packing(torch.zeros(4), [(2,), (3,)])


def test_blocks_lie_in_one_part() -> None:
    table = Packing(torch.zeros(7), [(5,), (0,), (2,)]).blocks(4)
    assert table.tolist() == [[0, 0, 0, 4], [0, 4, 4, 1], [2, 0, 5, 2]]


def test_the_device_decides() -> None:
    assert isinstance(movement_for(torch.device("cpu")), TorchMovement)
    chosen = type(movement_for(torch.device("cuda")))
    assert chosen.__module__ == "piper_runtime.movement.triton_movement"


# Compiled for an H100, without one.


def compile_kernel(
    name: str,
    signature: dict[str, str],
    constants: dict[str, Any],
    *,
    divisible: Mapping[str, int] = MappingProxyType({}),
) -> str:
    """Return the PTX of a kernel for sm_90, all pointers of which are aligned."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    kernel = getattr(load_triton(interpreted=False), name)
    for option in constants:
        signature[option] = "constexpr"
    aligned = {name: 16 for name, kind in signature.items() if kind.startswith("*")}
    aligned.update(divisible)
    attributes = {
        (index,): [["tt.divisibility", aligned[name]]]
        for index, name in enumerate(signature)
        if name in aligned and name not in constants
    }
    source = ASTSource(kernel, signature, constants, attributes)
    target, exact = GPUTarget("cuda", 90, 32), {"enable_fp_fusion": False}
    compiled = triton.compile(source, target=target, options=exact)
    assert compiled.asm["cubin"]
    return str(compiled.asm["ptx"])


MOVED = {"addresses": "*i64", "blocks": "*i64", "flat": "*fp32"}


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "triton"))


@pytest.mark.parametrize("aligned", [True, False])
def test_packing_compiles_and_loads_wide_where_parts_are_aligned(aligned: bool) -> None:
    import triton.language as tl

    options = {"PART": tl.bfloat16, "WIDE": tl.float32, "ADD": True, "BLOCK": 1024}
    options["ALIGNED"] = aligned
    ptx = compile_kernel("pack_kernel", dict(MOVED), options)
    assert ".target sm_90" in ptx
    assert ("ld.global.v4" in ptx) == aligned


# Dtypes of rows and of weights, and in which they are multiplied.
FLOATS = {
    "narrow": ("*bf16", "*fp32", "float32"),
    "mixed": ("*bf16", "*fp64", "float64"),
    "double": ("*fp64", "*fp64", "float64"),
}
WIDE_LOAD = "ld.global.v"


def compile_rows(name: str, kinds: str, operands: str, *, divisor: int = 16, **options: Any) -> str:
    """Return the PTX of a kernel of rows; `operands` are `rows`, `weights` or `index`.

    The width is known to be divisible by `divisor`, as the launcher finds out.
    """
    import triton.language as tl

    rows, weights, wide = FLOATS[kinds]
    types = {"rows": rows, "weights": weights, "index": "*i64"}
    arguments = load_triton(interpreted=False).__dict__[name].arg_names
    signature = {
        argument: types[kind] for argument, kind in zip(arguments, operands.split(), strict=False)
    }
    constants = {"CHOICES": 3, "WIDE": getattr(tl, wide), "BLOCK": 1024, **options}
    divisible = {"width": divisor}
    return compile_kernel(name, signature | {"width": "i32"}, constants, divisible=divisible)


@pytest.mark.parametrize("kinds", FLOATS)
@pytest.mark.parametrize("weighted", [True, False])
def test_permuting_compiles(kinds: str, weighted: bool) -> None:
    ptx = compile_rows("permute_kernel", kinds, "rows index weights rows", WEIGHTED=weighted)
    assert ".target sm_90" in ptx
    assert WIDE_LOAD in ptx
    # Rounded to nearest, and only what was multiplied.
    assert ("cvt.rn.bf16" in ptx) == (weighted and kinds != "double")


@pytest.mark.parametrize("kinds", FLOATS)
@pytest.mark.parametrize("weighted", [True, False])
def test_summing_rows_compiles(kinds: str, weighted: bool) -> None:
    ptx = compile_rows("unpermute_kernel", kinds, "rows index weights rows", WEIGHTED=weighted)
    assert WIDE_LOAD in ptx
    assert ("cvt.rn.bf16" in ptx) == (kinds != "double")
    assert "fma.rn" not in ptx  # products are rounded before they are added, as torch's are


@pytest.mark.parametrize("kinds", FLOATS)
def test_multiplying_rows_compiles(kinds: str) -> None:
    ptx = compile_rows("dot_kernel", kinds, "rows rows index weights")
    assert WIDE_LOAD in ptx
    assert "shfl.sync" in ptx  # the sum over the threads of a row


def test_rows_of_odd_width_are_loaded_element_by_element() -> None:
    """They start anywhere."""
    ptx = compile_rows(
        "permute_kernel", "narrow", "rows index weights rows", divisor=1, WEIGHTED=False
    )
    assert WIDE_LOAD not in ptx


@pytest.mark.parametrize(
    ("name", "operands", "options"),
    [
        ("permute_kernel", "rows index weights rows", {"WEIGHTED": True}),
        ("unpermute_kernel", "rows index weights rows", {"WEIGHTED": True}),
        ("dot_kernel", "rows rows index weights", {}),
    ],
)
def test_rows_of_one_element_compile(name: str, operands: str, options: dict[str, Any]) -> None:
    """Triton takes an argument that is 1 for a constant."""
    ptx = compile_rows(name, "narrow", operands, divisor=1, width=1, **options)
    assert WIDE_LOAD not in ptx
