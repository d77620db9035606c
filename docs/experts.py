"""The program of docs/experts.md: an unmodified DeepSeek-V3, by DualPipeV, expert and ZeRO-1.

python docs/experts.py DIR     # compile it to a folder; what ranks hold and exchange, by formula
"""

from __future__ import annotations

import sys
from fractions import Fraction

import piper
import torch
from full_width import adamw, holdings, loss_fn, make_table
from piper.simulate import ProgramFacts
from piper.simulate.communication import measure_traffic
from rich.console import Console
from rich.table import Table
from torch import nn

# DeepSeek-V3 (DeepSeek-AI, 2024) with a small vocabulary and four layers instead of 61.
WIDTH, EXPERTS, CHOICES, LAYERS, VOCABULARY = 7168, 256, 8, 4, 4096
TOKENS, MICROBATCHES, PP, EDP, EP = 4096, 4, 2, 2, 8
ROW = WIDTH * torch.bfloat16.itemsize


def make_model() -> nn.Module:
    """The model of transformers, without memory for its weights."""
    from transformers import DeepseekV3Config, DeepseekV3ForCausalLM

    config = DeepseekV3Config(
        hidden_size=WIDTH,
        n_routed_experts=EXPERTS,
        num_experts_per_tok=CHOICES,
        num_hidden_layers=LAYERS,
        vocab_size=VOCABULARY,
        first_k_dense_replace=0,  # experts in all layers
    )
    with torch.device("meta"):
        model: nn.Module = DeepseekV3ForCausalLM(config)
    return model.bfloat16()


def make_strategy() -> piper.Strategy:
    """32 ranks: two pipeline stages twice, and along each 16 ranks with batches of their own."""
    return piper.Strategy(
        mesh={"pp": 2, "edp": 2, "ep": 8},
        directives=[
            piper.annotate({"model.embed_tokens": "embed", "model.layers.*": "layer"}),
            piper.annotate({"model.norm": "head", "lm_head": "head"}),
            piper.split(microbatches=4),
            piper.place(stages=4),
            piper.order("DualPipeV"),
            piper.replicate(axis=("edp", "ep"), zero=1),
            piper.shard("*.mlp.experts.*", axis="ep"),
            piper.update(adamw, clip=1.0),
        ],
    )


def exchanged() -> list[tuple[str, str, Fraction]]:
    """What a layer exchanges for a microbatch: its name, and the bytes of a rank by formula."""
    share = Fraction(EP - 1, EP)
    counts, rows = share * 8 * EXPERTS, share * TOKENS * CHOICES * ROW
    by_rows = "T k D b (R - 1) / R"
    return [
        ("F.counts", "8 E (R - 1) / R", counts),
        ("F.dispatch", by_rows, rows),
        ("F.collect", by_rows, rows),
        ("B.dispatch", by_rows, rows),
        ("B.collect", by_rows, rows),
    ]


def exchanges() -> Table:
    """What the layers of a rank exchange in a step, by formula."""
    columns = ("of a layer and microbatch", "formula", "bytes that a rank sends")
    table = make_table(*columns, numbers=1)
    for name, formula, size in exchanged():
        table.add_row(name, formula, f"{round(size):,}")
    table.add_row("a step", "L M times the sum", f"{step_bytes():,}")
    return table


def step_bytes() -> int:
    """The bytes that a rank sends to other ranks' experts and back in a step, by formula."""
    return round(LAYERS // PP * MICROBATCHES * sum(size for *_, size in exchanged()))


def main(folder: str) -> None:
    """Compile, and compare formulas with the program.

    Raises:
        SystemExit: they differ.
    """
    tokens = torch.zeros(EDP * EP * MICROBATCHES, TOKENS, dtype=torch.int64)
    batch = {"ids": tokens, "labels": tokens}
    program = piper.compile(make_model(), loss_fn, make_strategy(), batch)
    program.save(folder)
    facts = ProgramFacts.read(program)
    console = Console(width=100)
    console.print(holdings(facts, "experts", pp=1))
    console.print()
    console.print(exchanges())
    moved = [item.num_bytes for item in measure_traffic(facts) if item.op == "all_to_all"]
    if moved != PP * [step_bytes()]:
        raise SystemExit(f"the program exchanges {moved} bytes, expected {step_bytes():,} each")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit((__doc__ or "").strip())
    main(sys.argv[1])
