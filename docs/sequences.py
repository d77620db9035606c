"""The programs of docs/sequences.md: the Llama of docs/tensors.py with sequences on several ranks.

python docs/sequences.py    # compile three; what a layer exchanges in a microbatch, by formula
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import piper
import torch
from full_width import Batch, adamw, make_table
from piper.mlir import ir
from piper.strategy import Replicate
from piper_runtime import Program
from rich.console import Console
from rich.table import Table
from tensors import (
    DP,
    HEADS,
    KEY_HEADS,
    MICROBATCHES,
    TOKENS,
    TP,
    WIDTH,
    make_model,
    make_strategy,
)
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

RANKS = 8
FEW = 2  # along cp, beside those along tp
NARROW = WIDTH // HEADS * KEY_HEADS
LAYER = "layer.3"  # of the second stage: what it gets is a part
ITEM = torch.bfloat16.itemsize
EXCHANGES = ("piper.all_gather", "piper.reduce_scatter", "piper.all_reduce")


def loss_fn(model: nn.Module, batch: Batch) -> Tensor:
    """Mean cross-entropy; positions come with the batch, and nothing is masked but what is later."""
    ids, positions = batch["ids"], batch["positions"]
    every = torch.ones(ids.shape)
    out = model(input_ids=ids, position_ids=positions, attention_mask=every, use_cache=False)
    return cross_entropy(out.logits.flatten(0, 1).float(), batch["labels"].flatten())


def make_context_strategy() -> piper.Strategy:
    """32 ranks: two stages, two replicas, and eight ranks that have parts of every sequence."""
    return piper.Strategy(
        mesh={"pp": 2, "dp": 2, "cp": 8},
        directives=[
            piper.annotate({"model.embed_tokens": "embed", "model.layers.*": "layer"}),
            piper.annotate({"model.norm": "head", "lm_head": "head"}),
            piper.split(microbatches=4),
            piper.place(stages=2),
            piper.order("1F1B"),
            piper.sequence("cp", {"ids": 1, "positions": 1, "labels": 1}),
            piper.replicate(axis=("dp", "cp"), zero=1),
            piper.update(adamw, clip=1.0),
        ],
    )


def make_sequence_strategy() -> piper.Strategy:
    """That of docs/tensors.py, with parts of the sequence between products."""
    given = make_strategy()
    return piper.Strategy(
        mesh=given.mesh, directives=[*given.directives, piper.sequence("tp", {"ids": 1})]
    )


def make_heads_strategy() -> piper.Strategy:
    """That of docs/tensors.py, each of whose ranks has a part of every sequence, too."""
    given = make_strategy()
    others = [d for d in given.directives if not isinstance(d, Replicate)]
    return piper.Strategy(
        mesh={"pp": 2, "dp": 2, "cp": FEW, "tp": TP},
        directives=[
            *others,
            piper.sequence("cp", {"ids": 1, "positions": 1, "labels": 1}),
            piper.replicate(axis=("dp", "cp"), zero=1),
        ],
    )


def compile_one(strategy: piper.Strategy) -> Program:
    """The program of a strategy, without data."""
    tokens = torch.zeros(DP * MICROBATCHES, TOKENS, dtype=torch.int64)
    batch = {"ids": tokens, "positions": tokens, "labels": tokens}
    return piper.compile(make_model(), loss_fn, strategy, batch)


def exchanged(program: Program, axis: str) -> Counter[tuple[str, int]]:
    """How often the layer exchanges values of some bytes in a microbatch: by op, of the whole."""
    counts: Counter[tuple[str, int]] = Counter()

    def visit(op: ir.Operation) -> ir.WalkResult:
        text = str(op)
        own = f'over ["{axis}"] as "{LAYER} ' in text and ".eval" not in text
        if op.name in EXCHANGES and own:
            whole = max((op.operands[0].type, op.results[0].type), key=_bytes)
            counts[op.name.removeprefix("piper."), _bytes(whole)] += 1
        return ir.WalkResult.ADVANCE

    with ir.Context():
        module = ir.Module.parse(program.texts["ir/chunks.mlir"])
        step = next(view for view in module.body.operations if "@train " in str(view)[:80])
        step.operation.walk(visit, ir.WalkOrder.PRE_ORDER)
    return counts


def _bytes(type_: ir.Type) -> int:
    tensor = ir.RankedTensorType(type_)
    return math.prod(tensor.shape) * (2 if "bf16" in str(tensor.element_type) else 4)


@dataclass(frozen=True)
class Row:
    """What a layer exchanges in a microbatch, so many times; `size` is in bytes, of the whole."""

    op: str
    formula: str
    size: int
    times: int

    def sent(self, ranks: int) -> int:
        """The bytes that a rank sends: of an all_reduce twice those of a gather."""
        once = (2 if self.op == "all_reduce" else 1) * self.size * (ranks - 1) // ranks
        return self.times * once


KEYS, HIDDEN = TOKENS * NARROW * ITEM, TOKENS * WIDTH * ITEM
EXPECTED: dict[str, tuple[int, list[Row]]] = {
    "cp": (
        RANKS,
        [Row("all_gather", "T W b", KEYS, 4), Row("reduce_scatter", "T W b", KEYS, 2)],
    ),
    "tp": (
        RANKS,
        [
            Row("all_gather", "T D b", HIDDEN, 6),
            Row("reduce_scatter", "T D b", HIDDEN, 4),
            Row("all_reduce", "D b", WIDTH * ITEM, 2),
        ],
    ),
    "cp, beside tp": (
        FEW,
        [
            Row("all_gather", "T W b / 8", KEYS // TP, 4),
            Row("reduce_scatter", "T W b / 8", KEYS // TP, 2),
        ],
    ),
    "tp, beside cp": (TP, [Row("all_reduce", "T D b / 2", HIDDEN // FEW, 4)]),
}
"""How many ranks there are along an axis, and what they exchange."""
PROGRAMS: list[tuple[Callable[[], piper.Strategy], list[str]]] = [
    (make_context_strategy, ["cp"]),
    (make_sequence_strategy, ["tp"]),
    (make_heads_strategy, ["cp, beside tp", "tp, beside cp"]),
]


def exchanges() -> Table:
    """What a layer exchanges in a microbatch, by formula."""
    table = make_table("along", "times", "op", "of", "bytes that a rank sends", numbers=1)
    for along, (ranks, rows) in EXPECTED.items():
        for row in rows:
            table.add_row(along, str(row.times), row.op, row.formula, f"{row.sent(ranks):,}")
        if len(rows) > 1:
            table.add_row(along, "", "together", "", f"{sum(row.sent(ranks) for row in rows):,}")
    return table


def main() -> None:
    """Compile all, and compare formulas with the programs.

    Raises:
        SystemExit: they differ.
    """
    Console(width=100).print(exchanges())
    for make, names in PROGRAMS:
        program = compile_one(make())
        for along in names:
            axis, rows = along.partition(",")[0], EXPECTED[along][1]
            found = exchanged(program, axis)
            wanted = {(row.op, row.size): row.times for row in rows}
            if found != wanted:
                raise SystemExit(f"along {along} the program exchanges {found}, expected {wanted}")


if __name__ == "__main__":
    main()
