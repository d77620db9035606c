"""An unmodified DeepSeek-V3 at full width, compiled for many ranks and simulated: what is exposed.

    python benchmarks/expert_programs.py
    python benchmarks/expert_programs.py --schedules DualPipeV --layers 16 --efficiency 0.4

Compiles transformers' model, all sizes as published but for its layers, all of which have experts, and
its vocabulary, for a mesh of pipeline ranks times expert ranks, and simulates the programs on the
machines of a device: 64 ranks share the experts out, in 8 nodes of 8. No weights are made. Needs
`transformers`. Prints what the step takes, its work, and what of its communication nothing hides,
by kind: a table of `docs/simulation.md`. With `--orders` it compiles pairs of DualPipeV in each of
`ORDERS`, too. `benchmarks/expert_overlap.py` does it for more ranks and without a compiler.

What the model computes is priced by the device's roofline, kernel by kernel, in bf16; the exchange of
rows is an `all_to_all` of the expected rows.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import piper
import torch
import torch.nn.functional as F  # noqa: N812
from piper.cli.text import table as aligned
from piper.simulate import (
    Device,
    Network,
    ProgramFacts,
    ProgramSimulation,
    Roofline,
    device,
    simulate_program,
)
from piper.simulate.views import format_seconds
from torch import Tensor, nn

TOKENS: Final = 4096
VOCABULARY: Final = 8192
TAGS: Final[Mapping[str, str]] = {
    "model.embed_tokens": "embed",
    "model.layers.*": "layer",
    "model.norm": "head",
    "lm_head": "head",
}
STAGES: Final[Mapping[str, int]] = {"1F1B": 1, "DualPipeV": 2}
"""How many a rank holds."""

ORDERS: Final[Mapping[str, str]] = {
    "first B": "",
    "first F": "F F.counts B B.dispatch F1 F.dispatch B1 B.collect F2 F.collect B2 F3",
    "B1 before rows": "B B.dispatch F F.counts F1 B1 F.dispatch B.collect F2 F.collect B2 F3",
    "halves, W early": "I I.dispatch F F.counts F1 W F.dispatch I1 I.collect W1 F2 F.collect I2 W2 F3",
    "halves, W late": "I I.dispatch F F.counts F1 F.dispatch I1 I.collect F2 F.collect I2 F3 W W1 W2",
}
"""Pieces of a pair in issue order; that of the compiler is empty."""


def make_model(layers: int) -> nn.Module:
    """DeepSeek-V3 of so many layers, on meta and in bf16; routers keep their float32."""
    from transformers import DeepseekV3Config, DeepseekV3ForCausalLM

    config = DeepseekV3Config(
        num_hidden_layers=layers, first_k_dense_replace=0, vocab_size=VOCABULARY
    )
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device("meta"):
            model: nn.Module = DeepseekV3ForCausalLM(config)
    finally:
        torch.set_default_dtype(torch.float32)
    return model


def loss_fn(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    """Mean cross-entropy of the next token."""
    logits: Any = model(input_ids=batch["ids"], use_cache=False).logits
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), batch["ids"][:, 1:].flatten())


def adamw(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    """AdamW."""
    return torch.optim.AdamW(parameters)


def compile_program(
    model: nn.Module,
    schedule: str,
    *,
    ranks: int,
    experts: int,
    microbatches: int,
    order: str = "",
) -> ProgramFacts:
    """What the compiler makes of a schedule times expert parallelism, with pairs in an order."""
    strategy = piper.Strategy(
        mesh={"pp": ranks, "ep": experts},
        directives=[
            piper.annotate(TAGS),
            piper.place(stages=STAGES[schedule] * ranks),
            piper.split(microbatches=microbatches),
            piper.replicate(axis="ep"),
            piper.shard("*.experts.*", axis="ep"),
            piper.order(schedule),
            piper.update(adamw),
            *([piper.overlap("layer", order)] if order else []),
        ],
    )
    batch = {"ids": torch.zeros(microbatches * experts, TOKENS, dtype=torch.int64)}
    return ProgramFacts.read(piper.compile(model, loss_fn, strategy, batch))


def exposed(simulation: ProgramSimulation, kind: str) -> float:
    """Mean seconds of a rank."""
    parts = [part for parts in simulation.exposures for part in parts if part.kind == kind]
    return sum(part.exposed for part in parts) / len(simulation.exposures)


def report(options: argparse.Namespace, target: Device) -> Iterator[str]:
    """Yield a row per schedule, order of pairs and efficiency."""
    yield (
        f"DeepSeek-V3 of {options.layers} layers, pp {options.ranks} x ep {options.experts}, "
        f"{options.microbatches} microbatches of {TOKENS} tokens, on {target.name}"
    )
    kinds = ("all_to_all", "messages", "reductions")
    header = (
        "of peak",
        "schedule",
        *_shown(options, "pairs"),
        "step",
        "work",
        *(f"exposed {kind}" for kind in kinds),
    )
    rows: list[Sequence[str]] = [(*header, "all_to_all of the step")]
    model = make_model(options.layers)
    sizes = {name: getattr(options, name) for name in ("ranks", "experts", "microbatches")}
    programs = {
        (name, order): compile_program(model, name, order=ORDERS.get(order, ""), **sizes)
        for name in options.schedules
        for order in (ORDERS if options.orders and name == "DualPipeV" else ("",))
    }
    for efficiency in options.efficiency:
        for (schedule, order), facts in programs.items():
            prices = Roofline(target, facts.kernels, efficiency)
            found = simulate_program(facts, prices, Network.of(target), optimizer=8.0)
            spent = [found.makespan, sum(found.busy_per_coordinate) / len(found.exposures)]
            spent += [exposed(found, kind) for kind in kinds]
            share = f"{exposed(found, 'all_to_all') / found.makespan:.1%}"
            named = schedule, *_shown(options, order)
            rows.append((f"{efficiency:.0%}", *named, *map(format_seconds, spent), share))
    yield from aligned(rows, numbers=6)


def _shown(options: argparse.Namespace, text: str) -> tuple[str, ...]:
    """A cell of the column of orders, where there is one."""
    return (text,) if options.orders else ()


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--schedules", nargs="+", default=list(STAGES), choices=list(STAGES))
    parser.add_argument("--layers", type=int, default=8, help="default: 8")
    parser.add_argument("--ranks", type=int, default=4, help="pipeline ranks (default: 4)")
    parser.add_argument("--experts", type=int, default=64, help="expert ranks (default: 64)")
    parser.add_argument("--microbatches", type=int, default=24, help="of a step (default: 24)")
    parser.add_argument("--device", default="h800", help="default: h800")
    parser.add_argument(
        "--efficiency", nargs="+", type=float, default=[1.0, 0.5], help="default: 1 0.5"
    )
    parser.add_argument("--orders", action="store_true", help="compare orders of pieces in pairs")
    options = parser.parse_args(arguments)
    print("\n".join(report(options, device(options.device))))


if __name__ == "__main__":
    main()
