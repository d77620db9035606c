"""The model of layers of experts: its sizes against published ones, and what overlap hides."""

from __future__ import annotations

import re
from pathlib import Path
from types import ModuleType

import expert_overlap
import expert_programs
import pytest
from expert_overlap import RANKS, SCHEDULES, Layer, Times, price, simulate_step
from piper.simulate import device
from piper.simulate.pieces import PieceSimulation

PAGE = Path(__file__).parents[2] / "docs" / "simulation.md"
LAYER, H800 = Layer(), device("h800")
MICROBATCHES = 32


def times(precision: expert_overlap.Precision, exchange: expert_overlap.Exchange) -> Times:
    return price(LAYER, H800, precision, exchange, 1.0)


def step(name: str, of: Times) -> PieceSimulation:
    return simulate_step(name, of, layer=LAYER, target=H800, microbatches=MICROBATCHES)


def test_a_token_meets_37_billion_parameters() -> None:
    """As published: with 58 such layers, 3 dense ones of width 18432, embedding and head."""
    layer = LAYER.attention_weights + LAYER.expert_weights
    dense = LAYER.attention_weights + 3 * LAYER.hidden * 18432
    total = 58 * layer + 3 * dense + 2 * 129_280 * LAYER.hidden
    assert total == pytest.approx(37e9, rel=0.02)


def test_a_layer_takes_its_flops() -> None:
    """Of a microbatch: six per parameter and token, and attention 3.5 times its forward."""
    products = 6 * 4096 * (LAYER.attention_weights + LAYER.expert_weights)
    scores = 3.5 * (4096**2 / 2) * 128 * 2 * (192 + 128)
    assert times("bf16", "rows").compute == pytest.approx((products + scores) / 989.4e12)
    narrow = products / 1978.9e12 + scores / 989.4e12
    assert times("fp8", "rows").compute == pytest.approx(narrow)
    half = price(LAYER, H800, "bf16", "rows", 0.5)
    assert half.compute == pytest.approx(2 * times("bf16", "rows").compute)
    assert half.exchange == times("bf16", "rows").exchange


def test_rows_go_between_nodes_each_or_once_per_node() -> None:
    rows = 4096 * 8 * 7168
    moved = {load.link.name: load.num_bytes for load in times("fp8", "rows").to.loads}
    assert moved == {"infiniband-ndr": rows * 56 / 64, "nvlink4-h800": rows * 7 / 64}
    back = {load.link.name: load.num_bytes for load in times("fp8", "rows").back.loads}
    assert back == {name: 2 * size for name, size in moved.items()}
    once = {load.link.name: load.num_bytes for load in times("fp8", "nodes").to.loads}
    assert once == {"infiniband-ndr": 4096 * 3.5 * 7168, "nvlink4-h800": rows * 7 / 8}


def test_once_per_node_both_take_about_as_long_as_published() -> None:
    """ "A ratio of computation to communication of about 1:1": DeepSeek-V3's report, section 3.2.1."""
    found = times("bf16", "nodes")
    assert found.exchange / found.compute == pytest.approx(1, rel=0.1)


@pytest.mark.parametrize(("exchange", "share"), [("rows", 0.8), ("nodes", 0.65)])
def test_pairs_hide_what_1f1b_exposes(exchange: expert_overlap.Exchange, share: float) -> None:
    of = times("bf16", exchange)
    found = {name: step(name, of) for name in SCHEDULES}
    work = 4 * MICROBATCHES * of.compute
    assert found["1F1B"].busy == pytest.approx([work] * RANKS)
    for name in ("DualPipe", "DualPipeV"):
        # As much is exchanged; pairs compute with fewer SMs and still the step is shorter.
        assert found[name].under_way("all_to_all") == pytest.approx(4 * MICROBATCHES * of.exchange)
        assert work < min(found[name].busy) <= max(found[name].busy) < work * 132 / 112
        assert found[name].exposed("all_to_all") < share * found["1F1B"].exposed("all_to_all")
        assert found[name].makespan < found["1F1B"].makespan


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "arguments"),
    [
        (expert_overlap, []),
        (expert_overlap, ["--efficiency", "0.5"]),
        (expert_programs, []),
        (expert_programs, ["--schedules", "DualPipeV", "--orders"]),
    ],
)
def test_the_page_has_what_scripts_print(
    script: ModuleType, arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """If this fails, run the script and read the page again."""
    script.main(arguments)
    said = capsys.readouterr().out
    blocks = re.findall(r"^```\w*\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    assert said in blocks
