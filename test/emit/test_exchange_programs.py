"""Exchanges of rows in rank programs and kernels, from IR written by hand; and states in parts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from piper.emit import emit_kernels, emit_programs
from piper.emit.manifest import emit_bucket, emit_state
from piper.emit.symbols import Symbols
from piper.mlir import ir
from piper_runtime import InstructionError, LocalTransport, Program, Trainer
from piper_runtime.program import seal
from torch import Tensor

ROWS, COLUMNS, EP, RANKS = 8, 3, 2, 4

MODULE = """
#V = #piper.layout<edp = varying, ep = varying>
#R = #piper.layout<edp = replicated, ep = replicated>
#P = #piper.layout<edp = partial, ep = partial>
#Q = #piper.layout<edp = varying, ep = varying, bound = 16, expect = 8>
!x = tensor<8x3xf64>
!q = tensor<?x3xf64>
!c = tensor<2x2xi64>
!s = tensor<f64>
!xV = tensor<8x3xf64, #V>
!qV = tensor<?x3xf64, #Q>
!cV = tensor<2x2xi64, #V>
!sV = tensor<f64, #V>
!sP = tensor<f64, #P>
!sR = tensor<f64, #R>
piper.mesh @mesh [pp = 1 unrolled, edp = 2 manual, ep = 2 manual]
piper.stream @compute
piper.stream @ep
piper.stream @edp
piper.comm @exchange.ep$0 axes ["ep"] coordinates [0] for @ep
piper.comm @reduce.edp.ep$0 axes ["edp", "ep"] coordinates [0] for @edp
piper.kernel @router$0(%x: !x, %c: !c) -> (!x, !c) {
  %0 = torch "aten.neg.default"(%x) facts <pure> : (!x) -> !x
  %1 = torch "aten.abs.default"(%c) facts <pure> : (!c) -> !c
  return %0, %1 : !x, !c
}
piper.kernel @experts$0(%x: !q, %c: !c) -> !q {
  %0 = torch "aten.mul.Tensor"(%x, 3) facts <pure> : (!q) -> !q
  %1 = torch "aten.view.default"(%0, [-1, 3]) facts <view> : (!q) -> !q
  %2 = torch "aten.silu.default"(%1) facts <pure> : (!q) -> !q
  return %2 : !q
}
piper.kernel @loss$0(%x: !x) -> !s {
  %0 = torch "aten.sum.default"(%x) facts <pure> : (!x) -> !s
  return %0 : !s
}
piper.chunk @layer.0$F pass = F stage = 0 (%x: !xV, %c: !cV) -> (!xV, !cV) {
  %0, %1 = launch @router$0(%x, %c) on @compute : (!xV, !cV) -> (!xV, !cV)
  return %0, %1 : !xV, !cV
}
piper.chunk @layer.0$F1 pass = F stage = 0 (%x: !qV, %c: !cV) -> !qV {
  %0 = launch @experts$0(%x, %c) on @compute : (!qV, !cV) -> !qV
  return %0 : !qV
}
piper.chunk @layer.0$F2 pass = F stage = 0 (%x: !xV) -> !sP {
  %0 = launch @loss$0(%x) on @compute : (!xV) -> !sV
  %1 = relabel %0 : !sV -> !sP
  return %1 : !sP
}
piper.cluster @train$cluster of @train phase = lowered mesh = @mesh microbatches = 1 {
}
piper.program @train$pp0 of @train$cluster at 0 {
  %x = input "x" mb 0 : !xV
  %c = input "c" mb 0 : !cV
  %t = tangent "loss" coeff 1.0 -> !sR
  %rows, %sc = run @layer.0$F(%x, %c) mb 0 : (!xV, !cV) -> (!xV, !cV)
  %e0 = record
  %rc, %e1 = all_to_all %sc dim 0 over ["ep"] as "layer.0 counts" mb 0 on @exchange.ep$0 after %e0 : !cV -> !cV, !piper.event
  %hs, %hr = host_wait %sc, %rc mb 0 after %e1, %e0 : !cV, !cV -> !piper.sizes, !piper.sizes
  %in, %e2 = all_to_all %rows dim 0 sizes %hs, %hr over ["ep"] as "layer.0 dispatch" mb 0 on @exchange.ep$0 after %e0 : !xV -> !qV, !piper.event
  %out = run @layer.0$F1(%in, %rc) mb 0 after %e2 : (!qV, !cV) -> !qV
  %e3 = record
  %bk, %e4 = all_to_all %out dim 0 sizes %hr, %hs over ["ep"] as "layer.0 collect" mb 0 on @exchange.ep$0 after %e3 : !qV -> !xV, !piper.event
  %l = run @layer.0$F2(%bk) mb 0 after %e4 : (!xV) -> !sP
  %e5 = record
  %L, %e6 = all_reduce %l over ["edp", "ep"] on @reduce.edp.ep$0 after %e5 : !sP -> !sR, !piper.event
  output "loss" %L scale %t after %e6 : !sR, !sR
  free %rows, %sc, %rc, %in, %out, %bk : !xV, !cV, !cV, !qV, !qV, !xV
}
"""


@pytest.fixture(autouse=True)
def context() -> Iterator[None]:
    with ir.Context():
        yield


def texts(module: str = MODULE) -> dict[str, str]:
    parsed = ir.Module.parse(module)  # which owns the ops
    return {"kernels.py": emit_kernels(parsed), **emit_programs(Symbols(parsed))}


def lines(module: str = MODULE) -> list[str]:
    text = texts(module)["program_pp0.py"]
    return [line.strip() for line in text[text.index("def train") :].splitlines()]


# Programs.

EXCHANGE = "comm='exchange.ep$0', stream='exchange.ep$0', dim=0"


def test_an_exchange_says_its_sizes_and_its_bound() -> None:
    found = [line.split("  #")[0] for line in lines()]
    counts = "sizes_layer_0_F1_m0, sizes_layer_0_counts_m0"
    back = "sizes_layer_0_counts_m0, sizes_layer_0_F1_m0"
    for target, call in {
        "layer_0_counts_m0, e_2": f"all_to_all(layer_0_F1_m0, {EXCHANGE}, mb=0, "
        "label='layer.0 counts', after=[e])",
        counts: "host_wait(layer_0_F1_m0, layer_0_counts_m0, mb=0, after=[e_2, e])",
        "layer_0_dispatch_m0, e_3": f"all_to_all(layer_0_F0_m0, {EXCHANGE}, sizes=({counts}), "
        "bound=16, mb=0, label='layer.0 dispatch', after=[e])",
        "layer_0_collect_m0, e_5": f"all_to_all(layer_0_F1_m0_2, {EXCHANGE}, sizes=({back}), mb=0, "
        "label='layer.0 collect', after=[e_4])",
    }.items():
        assert f"{target} = r.{call}" in found, target


def test_what_makes_the_host_wait_and_what_depends_on_data_is_flagged() -> None:
    flagged = {line.split("(")[0]: line for line in lines() if line.endswith("]")}
    [wait] = [line for line in flagged.values() if "host_wait" in line]
    assert wait.endswith("[host_sync]")
    [dispatch] = [line for line in flagged.values() if "dispatch'" in line]
    assert dispatch.endswith("[dynamic_shape]")


def test_one_count_has_one_name() -> None:
    one = MODULE.replace("%hs, %hr = host_wait %sc, %rc", "%hs = host_wait %sc")
    one = one.replace(": !cV, !cV -> !piper.sizes, !piper.sizes", ": !cV -> !piper.sizes")
    one = one.replace("%hr", "%hs")
    assert any(
        line.startswith("sizes_layer_0_F1_m0 = r.host_wait(layer_0_F1_m0, mb=0")
        for line in lines(one)
    )


# Kernels.


def test_a_kernel_of_rows_whose_number_depends_on_data() -> None:
    text = texts()["kernels.py"]
    assert "def experts_0(a0: float64[rows, 3], a1: int64[2, 2]):" in text
    scope: dict[str, Any] = {}
    exec(text, scope)  # noqa: S102 (a kernel is code)
    for rows in (0, 1, 5):
        x = torch.randn(rows, COLUMNS).double()
        got = scope["experts_0"](x, torch.zeros(2, 2))
        assert torch.equal(got, torch.nn.functional.silu(3 * x))


VIEWS = """
!q = tensor<?x4x2xf32>
!u = tensor<?x1x4x2xf32>
piper.kernel @views$0(%x: !q) -> !q {
  %0 = torch "aten.unsqueeze.default"(%x, 1) facts <view> : (!q) -> !u
  %1 = torch "aten.squeeze.dim"(%0, 1) facts <view> : (!u) -> !q
  %2 = torch "aten.unsqueeze.default"(%1, 1) facts <view> : (!q) -> !u
  %3 = torch "aten.neg.default"(%2) facts <pure> : (!u) -> !u
  %4 = torch "aten.squeeze.dim"(%3, 1) facts <view> : (!u) -> !q
  %5 = torch "aten.neg.default"(%4) facts <pure> : (!q) -> !q
  return %5 : !q
}
"""


def test_views_of_any_number_of_rows() -> None:
    """Merged views state shapes: that of the rows is left to torch."""
    text = emit_kernels(ir.Module.parse(VIEWS))
    assert "1000003" not in text
    scope: dict[str, Any] = {}
    exec(text, scope)  # noqa: S102 (a kernel is code)
    for rows in (0, 3):
        x = torch.randn(rows, 4, 2)
        assert torch.equal(scope["views_0"](x), x)


# Running it.


def program(module: str = MODULE) -> Program:
    manifest = {
        "version": 1,
        "hash": "",
        "mesh": [
            {"name": "pp", "size": 1, "role": "unrolled"},
            {"name": "edp", "size": 2, "role": "manual"},
            {"name": "ep", "size": EP, "role": "manual"},
        ],
        "microbatches": 1,
        "inputs": [
            {"name": "x", "shape": [ROWS, COLUMNS], "dtype": "float64", "dim": 0},
            {"name": "c", "shape": [EP, 2], "dtype": "int64", "dim": 0},
        ],
        "data_axes": ["edp", "ep"],
        "states": [],
        "buckets": [],
        "comms": [
            {"name": "exchange.ep$0", "axes": ["ep"], "coordinates": [0]},
            {"name": "reduce.edp.ep$0", "axes": ["edp", "ep"], "coordinates": [0]},
        ],
        "programs": ["program_pp0.py"],
        "entry_points": ["train"],
        "losses": [{"name": "loss", "dtype": "float64"}],
    }
    return Program(seal({**texts(module), "manifest.json": json.dumps(manifest)}, {}))


def batch() -> dict[str, Tensor]:
    """All of the third rank's rows go to the fourth, which keeps its own."""
    counts = [[[3, 1], [2, 2]], [[0, 0], [0, 8]], [[0, 0], [5, 3]], [[0, 0], [8, 0]]]
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(RANKS * ROWS, COLUMNS, generator=generator, dtype=torch.float64)
    return {"x": x, "c": torch.tensor(counts).view(-1, 2)}


@pytest.mark.parametrize("seed", [None, 0, 1])
def test_it_runs(seed: int | None) -> None:
    """Whichever rank has a row, it makes the same of it."""
    trainer = Trainer(program(), transport=LocalTransport(seed=seed))
    loss = trainer.step(batch()).loss
    assert loss == pytest.approx(torch.nn.functional.silu(-3 * batch()["x"]).sum().item())


def test_the_bound_is_that_of_the_type() -> None:
    """The fourth rank gets sixteen rows, as many as there are."""
    narrow = MODULE.replace("bound = 16", "bound = 15")
    with pytest.raises(
        InstructionError, match=r"rank 3 \(pp 0, edp 1, ep 1\).* at most 15 rows, got 16: \[8, 8\]"
    ):
        Trainer(program(narrow), transport=LocalTransport()).step(batch())


# States of which ranks hold parts.

STATES = """
piper.mesh @mesh [pp = 1 unrolled, edp = 3 manual, ep = 2 manual]
piper.stream @compute
piper.state @w parameter : tensor<4x2xf32> layout <edp = replicated, ep = shard(0)> holders [0]
piper.state @u parameter : tensor<4x2xf32> layout <edp = replicated, ep = shard({dim})> holders [0]
piper.state @v parameter : tensor<4xf32> layout <edp = replicated, ep = shard(0)> holders [0]
piper.bucket @w$b [@w, @v] value : tensor<{part}xf32, #piper.layout<edp = {kind}, ep = varying>> {compute} grad : tensor<{whole}xf32, #piper.layout<edp = partial, ep = varying>>
piper.state @r parameter : tensor<4xf32> layout <edp = replicated, ep = replicated> holders [0]
piper.bucket @r$b [@r] value : tensor<4xf32, #piper.layout<edp = replicated, ep = replicated>> grad : tensor<4xf32, #piper.layout<edp = partial, ep = partial>>
"""


def states(*, zero: int = 0, dim: int = 0) -> Symbols:
    kinds = {
        "kind": "shard(0)" if zero else "replicated",
        "part": 2 if zero else 6,
        "whole": 6,
        "compute": "compute : tensor<6xf32, #piper.layout<edp = replicated, ep = varying>>"
        if zero == 1
        else "",
    }
    return Symbols(ir.Module.parse(STATES.format(dim=dim, **kinds)))


@pytest.mark.parametrize(("zero", "shards"), [(0, []), (1, ["edp"]), (3, ["edp"])])
def test_a_bucket_counts_local_parts(zero: int, shards: list[str]) -> None:
    symbols = states(zero=zero)
    found = emit_bucket(symbols.buckets["w$b"], symbols)
    assert found["numel"] == 6
    assert found["varying_axes"] == ["ep"]
    assert found["shard_axes"] == shards
    assert "varying_axes" not in emit_bucket(symbols.buckets["r$b"], symbols)
    assert emit_bucket(symbols.buckets["r$b"], symbols)["numel"] == 4


@pytest.mark.parametrize("dim", [0, 1])
def test_a_state_says_along_which_axis_and_dim_ranks_hold_parts(dim: int) -> None:
    """Its shape is the whole one."""
    symbols = states(dim=dim)
    entry = emit_state(symbols.states["u"])
    assert (entry["shape"], entry["shard_axis"], entry["shard_dim"]) == ([4, 2], "ep", dim)
    assert "shard_axis" not in emit_state(symbols.states["r"])


def test_a_state_in_parts_along_two_axes_is_refused() -> None:
    symbols = states()
    layout = ir.Attribute.parse("#piper.layout<edp = shard(0), ep = shard(0)>")
    symbols.states["w"].attributes["layout"] = layout
    with pytest.raises(
        ValueError, match=r"w expected to be sharded over one axis, got \['edp', 'ep'\]"
    ):
        emit_state(symbols.states["w"])
