"""Data movement against plain indexing in double precision: torch's ops here, Triton's kernels in
Triton's interpreter. The kernels themselves are compiled for sm_90 without a GPU.
"""

# mypy: disable-error-code="import-untyped"

from __future__ import annotations

import importlib.util
from itertools import accumulate, pairwise
from math import prod
from types import ModuleType
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from piper_runtime.movement import Packing, TorchMovement, movement_for
from torch import Tensor

pytest.importorskip("triton")
NARROW, SINGLE, DOUBLE = torch.bfloat16, torch.float32, torch.float64
SETTINGS = settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def load_triton(*, interpreted: bool) -> ModuleType:
    """Execute the module of Triton kernels anew, as they are run or as they are compiled."""
    spec = importlib.util.find_spec("piper_runtime.movement.triton_movement")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_INTERPRET", "1" if interpreted else "0")
        spec.loader.exec_module(module)
    return module


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


def assume_castable(movement: Any, source: torch.dtype, target: torch.dtype) -> None:
    """Leave out a cast that Triton's interpreter, unlike its compiler, gets wrong altogether."""
    interpreted = not isinstance(movement, TorchMovement)
    assume(not (interpreted and source == DOUBLE and target == NARROW))


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
    assume_castable(movement, torch.promote_types(part, whole), whole)
    sizes = [prod(shape) for shape in shapes]
    flat = flat_of(sizes, whole, offset)
    parts = [drawn(*shape, dtype=part, seed=2 + i) for i, shape in enumerate(shapes)]
    given = torch.cat([p.reshape(-1) for p in parts]) if parts else flat.clone()
    wide = torch.promote_types(part, whole)
    wide = SINGLE if wide == NARROW else wide
    expected = given.to(wide) + flat.to(wide) if add and parts else given
    movement.pack(parts, Packing(flat, shapes), add=add)
    check(movement, flat, expected.to(whole), expected.dtype)


@SETTINGS
@given(SHAPES, DTYPES, DTYPES, st.integers(0, 3))
def test_unpack(
    movement: Any,
    shapes: list[tuple[int, ...]],
    part: torch.dtype,
    whole: torch.dtype,
    offset: int,
) -> None:
    assume_castable(movement, whole, part)
    sizes = [prod(shape) for shape in shapes]
    flat = flat_of(sizes, whole, offset)
    parts = [torch.zeros(shape, dtype=part) for shape in shapes]
    movement.unpack(Packing(flat, shapes), parts)
    for got, (begin, end) in zip(parts, pairwise([0, *accumulate(sizes)]), strict=True):
        check(movement, got.reshape(-1), flat[begin:end].to(part), whole)


def reference(x: Tensor, index: Tensor, weights: Tensor | None) -> Tensor:
    """Return the sum over k of weighted rows, in double precision."""
    x = torch.cat([x, x.new_zeros(1, x.shape[1])])  # where -1 points to
    rows = x.double()[index.long()]
    return (rows if weights is None else rows * weights.double()[..., None]).sum(1)


@SETTINGS
@given(
    st.integers(0, 9),
    st.integers(0, 7),
    st.integers(1, 3),
    st.sampled_from([1, 5, 64, 1030]),
    DTYPES,
    st.booleans(),
    st.sampled_from([torch.int32, torch.int64]),
    st.integers(0, 1000),
)
def test_rows(
    movement: Any,
    n: int,
    m: int,
    k: int,
    width: int,
    dtype: torch.dtype,
    weighted: bool,
    kind: torch.dtype,
    seed: int,
) -> None:
    generator = torch.Generator().manual_seed(seed)
    x = drawn(n, width, dtype=dtype, seed=seed)
    index = torch.randint(-1, max(n, 1), (m, k), generator=generator).clamp(max=n - 1).to(kind)
    weights = drawn(m, k, seed=seed + 1) if weighted else None
    bound = 2.0**-6 if dtype == NARROW else 1e-5
    got = movement.unpermute_rows(x, index, weights)
    assert got.dtype == dtype
    assert got.shape == (m, width)
    torch.testing.assert_close(got.double(), reference(x, index, weights), rtol=bound, atol=bound)
    first = None if weights is None else weights[:, 0]
    got = movement.permute_rows(x, index[:, 0], first)
    wanted = reference(x, index[:, :1], None if weights is None else weights[:, :1])
    torch.testing.assert_close(got.double(), wanted, rtol=bound, atol=bound)


def test_what_is_permuted_comes_back(movement: Any) -> None:
    """A token of two experts, weighted by 1/4 and 3/4, is itself again."""
    x = drawn(5, 16)
    order = torch.randperm(10, generator=torch.Generator().manual_seed(0))
    y = movement.permute_rows(x, order // 2)
    slots = torch.empty(10, dtype=torch.int64).scatter_(0, order, torch.arange(10)).view(5, 2)
    weights = torch.tensor([0.25, 0.75]).expand(5, 2)
    torch.testing.assert_close(movement.unpermute_rows(y, slots, weights), x)


def test_weights_of_padding_do_not_matter(movement: Any) -> None:
    y = torch.ones(1, 3)
    out = movement.unpermute_rows(y, torch.tensor([[0, -1]]), torch.tensor([[1.0, float("nan")]]))
    assert torch.equal(out, y)


def test_narrow_terms_are_added_in_single_precision(movement: Any) -> None:
    """512 ones in bfloat16, added in bfloat16, would be 256."""
    slots = torch.zeros(1, 512, dtype=torch.int32)
    assert float(movement.unpermute_rows(torch.ones(1, 1, dtype=NARROW), slots)) == 512


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
    with pytest.raises(ValueError, match=message):
        movement.unpack(packing, parts)


@pytest.mark.parametrize(
    ("x", "index", "weights", "message"),
    [
        (torch.zeros(2), torch.zeros(1, 1).long(), None, r"expected a floating \(n, d\), got"),
        (
            torch.zeros(2, 1),
            torch.zeros(1).long(),
            None,
            "int32 or int64 of 2 dims, got torch.int64",
        ),
        (torch.zeros(2, 1), torch.zeros(1, 1), None, "int32 or int64 of 2 dims, got torch.float32"),
        (
            torch.zeros(2, 1),
            torch.zeros(1, 1).long(),
            torch.zeros(1, 2),
            r"weights expected the shape of the indices, \(1, 1\), got \(1, 2\)",
        ),
    ],
)
def test_odd_rows(
    movement: Any, x: Tensor, index: Tensor, weights: Tensor | None, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        movement.unpermute_rows(x, index, weights)


def test_odd_packings() -> None:
    with pytest.raises(
        ValueError, match=r"expected shape \(5,\), the sum of its parts, got \(4,\)"
    ):
        Packing(torch.zeros(4), [(2,), (3,)])


def test_blocks_lie_in_one_part() -> None:
    table = Packing(torch.zeros(7), [(5,), (0,), (2,)]).blocks(4)
    assert table.tolist() == [[0, 0, 0, 4], [0, 4, 4, 1], [2, 0, 5, 2]]


def test_unpacking_writes_to_what_it_is_given() -> None:
    triton = load_triton(interpreted=True).TritonMovement()
    with pytest.raises(ValueError, match=r"part 0 expected to be contiguous, got strides \(1, 3\)"):
        triton.unpack(Packing(torch.zeros(6), [(3, 2)]), [torch.zeros(2, 3).t()])


def test_the_device_decides() -> None:
    assert isinstance(movement_for(torch.device("cpu")), TorchMovement)
    chosen = type(movement_for(torch.device("cuda")))
    assert chosen.__module__ == "piper_runtime.movement.triton_movement"


# Compiled for an H100, without one.


def compile_kernel(name: str, signature: dict[str, str], constants: dict[str, Any]) -> str:
    """Return the PTX of a kernel for sm_90."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    kernel = getattr(load_triton(interpreted=False), name)
    for option in constants:
        signature[option] = "constexpr"
    pointers = [i for i, kind in enumerate(signature.values()) if kind.startswith("*")]
    attributes = {(i,): [["tt.divisibility", 16]] for i in pointers}
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


@pytest.mark.parametrize("aligned", [True, False])
def test_unpacking_compiles_and_stores_wide_where_parts_are_aligned(aligned: bool) -> None:
    import triton.language as tl

    options = {"PART": tl.bfloat16, "ALIGNED": aligned, "BLOCK": 1024}
    ptx = compile_kernel("unpack_kernel", dict(MOVED), options)
    assert ("st.global.v" in ptx) == aligned


@pytest.mark.parametrize("weighted", [True, False])
def test_gathering_compiles(weighted: bool) -> None:
    import triton.language as tl

    types = {"x": "*bf16", "index": "*i64", "weights": "*fp32", "out": "*bf16", "width": "i32"}
    options = {"K": 2, "WEIGHTED": weighted, "WIDE": tl.float32, "BLOCK": 1024}
    ptx = compile_kernel("gather_kernel", types, options)
    assert ".target sm_90" in ptx
    assert "cvt.rn.bf16" in ptx  # rounded to nearest
