"""The table of docs/zero.md: what each stage of ZeRO keeps and moves, for one model and schedule.

python docs/zero.py
"""

from __future__ import annotations

import piper
import torch
from observability import MICROBATCHES, ROWS, WIDTH, Model, adamw, loss_fn
from piper.simulate import ProgramFacts
from piper.simulate.communication import measure_volumes
from piper.simulate.predicted import entry_memory
from rich.console import Console
from rich.table import Table

ADAMW_BYTES = 8  # per parameter: two moments in float32
POLICIES = (
    {"zero": 0},
    {"zero": 0, "reduce": "each"},
    {"zero": 1},
    {"zero": 1, "reduce": "each"},
    {"zero": 1, "gather": "step"},
    {"zero": 2, "reduce": "last"},
    {"zero": 2},
    {"zero": 3, "reduce": "last", "gather": "step"},
    {"zero": 3, "gather": "step"},
    {"zero": 3},
    {"zero": 3, "gather": "each"},
)


def compile_stage(options: dict[str, object], *, ranks: int = 4) -> ProgramFacts:
    """The facts of a program whose last stage of two is looked at."""
    strategy = piper.Strategy(
        mesh={"pp": 2, "dp": ranks},
        directives=[
            piper.annotate({"blocks.*": "block"}),
            piper.split(microbatches=MICROBATCHES),
            piper.place(stages=2),
            piper.replicate(axis="dp", **options),  # type: ignore[arg-type]
            piper.order("1F1B"),
            piper.update(adamw, clip=1.0),
        ],
    )
    torch.manual_seed(0)
    batch = {"x": torch.randn(ranks * MICROBATCHES * ROWS, WIDTH)}
    return ProgramFacts.read(piper.compile(Model(), loss_fn, strategy, batch))


def main() -> None:
    """Print the table."""
    table = Table(box=None, pad_edge=False, header_style="")
    for column in ("zero", "reduce", "gather"):
        table.add_column(column)
    for column in ("parameters", "gradients", "optimizer", "gathered, reduced", "moved"):
        table.add_column(column, justify="right")
    for options in POLICIES:
        facts = compile_stage(dict(options))
        trained = measure_volumes(facts)[0].trained
        memory = entry_memory(facts, "train", per_parameter=ADAMW_BYTES)[0]
        parts = (memory.parameters, memory.gradients, memory.optimizer or 0)
        most = max(memory.curve.communication)
        directive = piper.replicate(**options)  # type: ignore[arg-type]
        gather = directive.gather or ("group" if directive.zero == 3 else "")
        table.add_row(
            str(directive.zero),
            directive.policy,
            gather,
            *(f"{part / trained:.2f}" for part in (*parts, most)),
            f"{measure_volumes(facts)[0].multiple:.2f}",
        )
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
