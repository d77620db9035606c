"""The program of docs/tensors.md: an unmodified Llama, by 1F1B, tensor parallelism and ZeRO-1.

python docs/tensors.py DIR     # compile it to a folder; what ranks hold and exchange, by formula
"""

from __future__ import annotations

import sys
from collections import Counter

import piper
import torch
from full_width import adamw, holdings, loss_fn, make_table
from piper.simulate import ProgramFacts
from piper.simulate.communication import measure_traffic
from piper_runtime import Program
from rich.console import Console
from rich.table import Table
from torch import nn

# A layer of Llama 3 8B (Grattafiori et al., 2024, "The Llama 3 Herd of Models"), four of 32 layers,
# and a small vocabulary.
WIDTH, HIDDEN, HEADS, KEY_HEADS, LAYERS, VOCABULARY = 4096, 14336, 32, 8, 4, 4096
TOKENS, MICROBATCHES, PP, DP, TP = 4096, 4, 2, 2, 8
ROWS = TOKENS * WIDTH * torch.bfloat16.itemsize


def make_model() -> nn.Module:
    """The model of transformers, without memory for its weights."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=WIDTH,
        intermediate_size=HIDDEN,
        num_attention_heads=HEADS,
        num_key_value_heads=KEY_HEADS,
        num_hidden_layers=LAYERS,
        vocab_size=VOCABULARY,
    )
    with torch.device("meta"):
        model: nn.Module = LlamaForCausalLM(config)
    return model.bfloat16()


def make_strategy() -> piper.Strategy:
    """32 ranks: on two pipeline stages, two replicas of eight ranks that share products out."""
    return piper.Strategy(
        mesh={"pp": 2, "dp": 2, "tp": 8},
        directives=[
            piper.annotate({"model.embed_tokens": "embed", "model.layers.*": "layer"}),
            piper.annotate({"model.norm": "head", "lm_head": "head"}),
            piper.split(microbatches=4),
            piper.place(stages=2),
            piper.order("1F1B"),
            piper.shard("*.[qkv]_proj.weight", axis="tp", dim=0),
            piper.shard("*.o_proj.weight", axis="tp", dim=1),
            piper.shard("*.gate_proj.weight", axis="tp", dim=0),
            piper.shard("*.up_proj.weight", axis="tp", dim=0),
            piper.shard("*.down_proj.weight", axis="tp", dim=1),
            piper.shard("model.embed_tokens.weight", axis="tp"),
            piper.shard("lm_head.weight", axis="tp"),
            piper.replicate(axis="dp", zero=1),
            piper.update(adamw, clip=1.0),
        ],
    )


def layer_bytes() -> int:
    """What a rank sends for a layer and microbatch: two sums each forward and backward."""
    return 4 * 2 * (TP - 1) * ROWS // TP


def embedding_bytes() -> int:
    """What a rank sends for the embedding and a microbatch: a sum of what ranks look up."""
    return 2 * (TP - 1) * ROWS // TP


def head_bytes() -> int:
    """What a rank sends for the head and a microbatch: a sum backward and that of the loss, and of
    each token numbers of fp32, which are gathered: one forward, the same one when log-softmax is
    made again backward, and one of its gradient.
    """
    number = torch.float32.itemsize
    return (2 * (ROWS + number) + 3 * number * TOKENS * TP) * (TP - 1) // TP


def compile_one(strategy: piper.Strategy) -> Program:
    """The program of a strategy, without data."""
    tokens = torch.zeros(DP * MICROBATCHES, TOKENS, dtype=torch.int64)
    return piper.compile(make_model(), loss_fn, strategy, {"ids": tokens, "labels": tokens})


def exchanges() -> Table:
    """What a rank exchanges in a step, by formula."""
    table = make_table("along tp", "formula", "bytes that a rank sends", numbers=1)
    layer, embedding, head = layer_bytes(), embedding_bytes(), head_bytes()
    table.add_row("layer, of a microbatch", "4 x 2 T D b (R - 1) / R", f"{layer:,}")
    table.add_row("embedding", "2 T D b (R - 1) / R", f"{embedding:,}")
    table.add_row("head", "(2 (T D b + 4) + 12 T R) (R - 1) / R", f"{head:,}")
    table.add_row("step of pp 0", "M (L layers + embedding)", f"{step_bytes(embedding):,}")
    table.add_row("step of pp 1", "M (L layers + head)", f"{step_bytes(head):,}")
    return table


def step_bytes(end: int) -> int:
    """The bytes that a rank sends along `tp` in a step: those of its layers, and of one `end`."""
    return MICROBATCHES * (LAYERS // PP * layer_bytes() + end)


def main(folder: str) -> None:
    """Compile, and compare formulas with the program.

    Raises:
        SystemExit: they differ.
    """
    program = compile_one(make_strategy())
    program.save(folder)
    facts = ProgramFacts.read(program)
    console = Console(width=100)
    console.print(holdings(facts, "of products", pp=0))
    console.print()
    console.print(exchanges())
    moved = Counter[tuple[int, ...]]()
    for item in measure_traffic(facts):
        if item.comm.axes == ("tp",):
            moved[item.coordinates] += item.num_bytes
    formulas = [step_bytes(embedding_bytes()), step_bytes(head_bytes())]
    if [moved[key] for key in sorted(moved)] != formulas:
        raise SystemExit(f"the program exchanges {dict(moved)} bytes, expected {formulas}")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit((__doc__ or "").strip())
    main(sys.argv[1])
