"""Programs and manifests of sharded state: what is gathered, reduced, converted and written."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from piper.emit.chunks import emit_chunk
from piper.emit.layouts import axes_of_kind, kinds_of
from piper.emit.manifest import emit_bucket
from piper.emit.programs import emit_programs
from piper.emit.symbols import Symbols
from piper.mlir import ir

ZBV = Path(__file__).parents[1] / "dialect" / "zbv_zero3.mlir"
FLAT = "tensor<{}x{}, #piper.layout<{}>>"

MODULE = """
piper.mesh @mesh [pp = 1 unrolled, rep = 2 manual, dp = 4 manual]
piper.stream @compute
piper.state @fc.weight parameter : tensor<4x2xf32> holders [0]
piper.state @fc.bias parameter : tensor<5xf32> holders [0]
piper.bucket @fc$b [@fc.weight, @fc.bias] value : {value} {compute} grad : {grad}
piper.state @bias parameter : tensor<8xf32> holders [0]
piper.bucket @alone$b [@bias] value : {alone} grad : {alone_grad}
piper.kernel @one$0(%a: tensor<4x2xf32>, %b: tensor<5xf32>) -> (tensor<4x2xf32>, tensor<5xf32>, tensor<8xf32>) {{
  %0 = torch "aten.neg.default"(%a) facts <pure> : (tensor<4x2xf32>) -> tensor<4x2xf32>
  %1 = torch "aten.neg.default"(%b) facts <pure> : (tensor<5xf32>) -> tensor<5xf32>
  %2 = torch "aten.full.default"([8], 1.0) facts <pure> : () -> tensor<8xf32>
  return %0, %1, %2 : tensor<4x2xf32>, tensor<5xf32>, tensor<8xf32>
}}
piper.chunk @layer.0$F pass = F stage = 0 (%x: {whole}) -> ({packed}, {other}) {{
  %0:2 = unpack @fc$b %x : {whole} -> {w}, {b}
  %1:3 = launch @one$0(%0#0, %0#1) on @compute : ({w}, {b}) -> ({w}, {b}, {a})
  %2 = relabel %1#0 : {w} -> {wV}
  %3 = relabel %1#1 : {b} -> {bV}
  %4 = relabel %1#2 : {a} -> {aV}
  %5 = pack @fc$b %2, %3 : {wV}, {bV} -> {packed}
  %6 = pack @alone$b %4 : {aV} -> {other}
  return %5, %6 : {packed}, {other}
}}
"""
KINDS = {
    "R": "rep = replicated, dp = replicated",
    "P": "rep = partial, dp = partial",
    "S": "rep = replicated, dp = shard(0)",
    "V": "rep = varying, dp = varying",
}


@pytest.fixture(autouse=True)
def context() -> Iterator[None]:
    with ir.Context():
        yield


def flat(size: int, kind: str, dtype: str = "f32") -> str:
    return FLAT.format(size, dtype, KINDS[kind])


def module(*, zero: int, reduce: str) -> ir.Module:
    """A chunk that reads one bucket and packs gradients of two, under a ZeRO stage."""
    part, whole = (4, 16) if zero else (13, 13)
    kind = "P" if reduce == "last" else "S" if zero > 1 else "R"
    types = {
        "value": flat(part, "S" if zero else "R"),
        "compute": f"compute : {flat(whole, 'R')}" if zero in (1, 2) else "",
        "grad": flat(part if kind == "S" else whole, kind),
        "alone": flat(2, "S") if zero else flat(8, "R"),
        "alone_grad": flat(2 if kind == "S" else 8, kind),
        "whole": flat(whole, "R"),
        "packed": flat(whole, "P"),
        "other": flat(8, "P"),
        "w": FLAT.format("4x2", "f32", KINDS["R"]),
        "b": flat(5, "R"),
        "a": flat(8, "R"),
        "wV": FLAT.format("4x2", "f32", KINDS["V"]),
        "bV": flat(5, "V"),
        "aV": flat(8, "V"),
    }
    return ir.Module.parse(MODULE.format(**types))


def chunk(*, zero: int, reduce: str) -> list[str]:
    symbols = Symbols(module(zero=zero, reduce=reduce))
    lines = emit_chunk(symbols.chunks["layer.0$F"], symbols).splitlines()
    return [line.strip() for line in lines[2:]]


def test_kinds_are_read_from_the_type() -> None:
    type_ = ir.Type.parse(flat(4, "S"))
    assert kinds_of(type_) == {"rep": "replicated", "dp": "shard(0)"}
    assert axes_of_kind(type_, "shard(0)") == ["dp"]
    assert kinds_of(ir.Type.parse("tensor<4xf32>")) == {}


@pytest.mark.parametrize("zero", [1, 2, 3])
def test_what_is_accumulated_is_packed_as_a_tuple(zero: int) -> None:
    assert chunk(zero=zero, reduce="last") == [
        "fc_weight, fc_bias, _ = x.split_with_sizes([8, 5, 3])",
        "y, y_2, y_3 = k.one_0(fc_weight.view(4, 2), fc_bias)",
        "g = (y, y_2,)",
        "g_2 = (y_3,)",
        "return g, g_2",
    ]


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
def test_what_a_collective_takes_is_packed_flat_and_padded(zero: int) -> None:
    size = 16 if zero else 13
    assert chunk(zero=zero, reduce="each")[2:] == [
        f"g = flatten(y, y_2, numel={size})",
        "g_2 = flatten(y_3, numel=8)",
        "return g, g_2",
    ]


def test_a_bucket_without_padding_is_split_without_a_rest() -> None:
    assert chunk(zero=0, reduce="last")[0] == "fc_weight, fc_bias = x.split_with_sizes([8, 5])"


def bucket(name: str, *, zero: int, reduce: str) -> dict[str, Any]:
    symbols = Symbols(module(zero=zero, reduce=reduce))
    return emit_bucket(symbols.buckets[name], symbols)


@pytest.mark.parametrize(
    ("zero", "reduce", "expected"),
    [
        (0, "last", ([], None, False)),
        (0, "each", ([], None, False)),
        (1, "last", (["dp"], "float32", False)),
        (1, "each", (["dp"], "float32", False)),
        (2, "last", (["dp"], "float32", False)),
        (2, "each", (["dp"], "float32", True)),
        (3, "last", (["dp"], None, False)),
        (3, "each", (["dp"], None, True)),
    ],
)
def test_the_manifest_says_how_slots_are_held(
    zero: int, reduce: str, expected: tuple[list[str], str | None, bool]
) -> None:
    found = bucket("fc$b", zero=zero, reduce=reduce)
    assert found["numel"] == 13
    assert found["members"] == ["fc.weight", "fc.bias"]
    assert (found["shard_axes"], found["compute_dtype"], found["grad_sharded"]) == expected
    assert not found["compute_sharded"]


def test_slots_that_are_sharded_in_different_ways_are_refused() -> None:
    parsed = module(zero=3, reduce="each")  # which owns the ops
    symbols = Symbols(parsed)
    other = ir.TypeAttr.parse(FLAT.format(7, "f32", "rep = shard(0), dp = replicated"))
    symbols.buckets["fc$b"].attributes["grad"] = other
    with pytest.raises(ValueError, match=r"fc\$b expected slot grad whole or sharded over \['dp'\] "
                       r"as its value, got it sharded over \['rep'\]"):  # fmt: skip
        emit_bucket(symbols.buckets["fc$b"], symbols)


def test_a_program_gathers_reduces_converts_and_writes() -> None:
    parsed = ir.Module.parse(ZBV.read_text())
    symbols = Symbols(parsed)
    [text] = emit_programs(symbols).values()
    assert "from piper_runtime.program import chunk, flatten\n" in text
    assert "    g = flatten(y, y_2, numel=272)\n" in text
    lines = [line.split("  #")[0].strip() for line in text.splitlines()]
    on_gather = "comm='gather.dp$1', stream='gather.dp$1', dim=0, after="
    on_reduce, part = on_gather.replace("gather", "reduce"), "part_float32_layer_2_W_m0"
    for line in (
        "layers_1_fc_weight_b = r.read('layers.1.fc.weight$b', slot='compute')",
        f"whole_layers_1_fc_weight_b, e_2 = r.all_gather(layers_1_fc_weight_b, {on_gather}[e])",
        "float32_layer_2_W_m0 = r.convert(layer_2_W_m0, dtype='float32')",
        f"{part}, e_25 = r.reduce_scatter(float32_layer_2_W_m0, {on_reduce}[e_24])",
        "new_layers_1_fc_weight_b = r.update('layers.1.fc.weight$b', d_layers_1_fc_weight_b)",
        "bfloat16_new_layers_1_fc_weight_b = r.convert(new_layers_1_fc_weight_b, dtype='bfloat16')",
        "r.write('layers.1.fc.weight$b', bfloat16_new_layers_1_fc_weight_b, slot='compute')",
    ):
        assert line in lines, line
