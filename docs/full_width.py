"""What the programs of experts.md, tensors.md and sequences.md share: models of full width."""

from __future__ import annotations

import torch
from piper.simulate import ProgramFacts
from rich.table import Table
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

Batch = dict[str, Tensor]


def loss_fn(model: nn.Module, batch: Batch) -> Tensor:
    """Mean cross-entropy of the next token."""
    logits = model(input_ids=batch["ids"], use_cache=False).logits
    return cross_entropy(logits.flatten(0, 1).float(), batch["labels"].flatten())


def adamw(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    """AdamW."""
    return torch.optim.AdamW(parameters, lr=1e-4)


def make_table(*columns: str, numbers: int) -> Table:
    """A table without lines, of which the last columns hold `numbers`."""
    table = Table(box=None, pad_edge=False, header_style="")
    for index, column in enumerate(columns):
        is_number = index >= len(columns) - numbers
        table.add_column(column, justify="right" if is_number else "left")
    return table


def holdings(facts: ProgramFacts, shared: str, *, pp: int) -> Table:
    """What ranks at `pp` hold of parameters that an axis shares out, and of all others."""
    manifest = facts.manifest
    numel = {state.name: state.numel for state in manifest.states}
    columns = ("all", "of a rank", "with optimizer state")
    table = make_table(f"parameters of pp {pp}", *columns, numbers=3)
    for name, is_shared in ((shared, True), ("others", False)):
        held = [b for b in manifest.buckets if pp in b.holders and b.grad_dtype]
        held = [bucket for bucket in held if bool(bucket.varying_axes) == is_shared]
        whole = sum(numel[member] for bucket in held for member in bucket.members)
        slots = (sum(b.slot_numel(s, manifest.mesh) for b in held) for s in ("compute", "value"))
        table.add_row(name, *(f"{size:,}" for size in (whole, *slots)))
    return table
