"""The tables of docs/zero.md: what each stage of ZeRO keeps and moves, for a model and schedule.

python docs/zero.py
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import piper
import torch
from observability import MICROBATCHES, ROWS, WIDTH, Model, adamw, loss_fn
from piper.simulate import ProgramFacts
from piper.simulate.communication import measure_traffic, measure_volumes
from piper.simulate.predicted import entry_memory
from piper.strategy.replicate import Replicate
from rich.console import Console
from rich.table import Table

RANKS = 4
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


def compile_stage(options: dict[str, object]) -> ProgramFacts:
    """The facts of a program whose last stage of two is looked at."""
    strategy = piper.Strategy(
        mesh={"pp": 2, "dp": RANKS},
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
    batch = {"x": torch.randn(RANKS * MICROBATCHES * ROWS, WIDTH)}
    return ProgramFacts.read(piper.compile(Model(), loss_fn, strategy, batch))


def formulas(directive: Replicate) -> dict[str, str]:
    """The textbook's multiple of (n-1)/n P by collective: P parameters, M microbatches, n ranks.

    An all_reduce is a reduce_scatter and an all_gather of its result. Gradients are reduced once or
    for each microbatch, and states gathered once, or for each forward and each backward.
    """
    each = directive.policy == "each"
    if directive.zero == 0 or (directive.zero == 1 and each):
        found = {"all_reduce": "2 M" if each else "2"}
    else:
        found = {"reduce_scatter": "M" if each else "1"}
    if directive.zero:
        found["all_gather"] = "2 M" if directive.gather == "each" else "1"
    return found


def sent(facts: ProgramFacts) -> dict[str, int]:
    """Bytes that a rank of the first stage sends along the data axis, by collective."""
    return {
        found.op: found.num_bytes
        for found in measure_traffic(facts)
        if found.coordinates == (0,) and found.comm.axes == ("dp",)
    }


def costs(programs: Sequence[tuple[Replicate, ProgramFacts]]) -> Table:
    """What each policy keeps and moves."""
    table = _table("parameters", "gradients", "optimizer", "gathered, reduced", "moved")
    for directive, facts in programs:
        trained = measure_volumes(facts)[0].trained
        memory = entry_memory(facts, "train", per_parameter=ADAMW_BYTES)[0]
        parts = (memory.parameters, memory.gradients, memory.optimizer or 0)
        most = max(memory.curve.communication)
        table.add_row(
            *_policy(directive),
            *(f"{part / trained:.2f}" for part in (*parts, most)),
            f"{measure_volumes(facts)[0].multiple:.2f}",
        )
    return table


def traffic(programs: Sequence[tuple[Replicate, ProgramFacts]]) -> Table:
    """Bytes of each collective beside its formula; how often a group is gathered has none."""
    table = _table("collective", "formula", "bytes by it", "bytes sent")
    for directive, facts in programs:
        if directive.zero == 3 and directive.gather is None:
            continue
        once = measure_volumes(facts)[0].trained * (RANKS - 1) // RANKS
        moved, expected = sent(facts), formulas(directive)
        for op in {**expected, **moved}:
            formula = expected.get(op, "0")
            wanted = prod(MICROBATCHES if part == "M" else int(part) for part in formula.split())
            text = "(n-1)/n P" if formula == "1" else f"{formula} (n-1)/n P"
            table.add_row(*_policy(directive), op, text, str(wanted * once), str(moved.get(op, 0)))
    return table


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="")
    for column in ("zero", "reduce", "gather"):
        table.add_column(column)
    for column in columns:
        table.add_column(column, justify="left" if column == "collective" else "right")
    return table


def _policy(directive: Replicate) -> tuple[str, str, str]:
    gather = directive.gather or ("group" if directive.zero == 3 else "")
    return str(directive.zero), directive.policy, gather


def main() -> None:
    """Print the tables."""
    programs = [(piper.replicate(**options), compile_stage(dict(options))) for options in POLICIES]
    console = Console(width=100)
    console.print(costs(programs))
    console.print()
    console.print(traffic(programs))


if __name__ == "__main__":
    main()
