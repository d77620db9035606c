"""What experts cost in communication that nothing hides: 1F1B beside DualPipe and DualPipeV.

    python benchmarks/expert_overlap.py
    python benchmarks/expert_overlap.py --efficiency 0.5

Simulates layers like DeepSeek-V3's on its machines (DeepSeek-V3 Technical Report, arXiv:2412.19437,
sections 3 and 4), before any program is compiled: every cell of a schedule's table is a list of
pieces that compute or exchange rows, which `piper.simulate.pieces` runs. Prints the tables of
`docs/simulation.md`.

Model. Hidden size 7168, 128 heads of multi-head latent attention, 256 routed experts of width 2048 of
which a token chooses 8, and a shared one. A microbatch is one sequence of 4096 tokens; a step has 120
of them, as many as a rank of 2048 has of the report's 15,360 sequences. 16 pipeline ranks hold 4 such
layers each (the report's model has 61 layers, 3 of them dense); embedding, head and what happens once
a step are left out. FLOPs are those of products: 2 for each weight and token, thrice with backwards;
causal attention counts half of its scores, and its backward is 2.5 times its forward (Dao,
"FlashAttention-2", arXiv:2307.08691). They go at the device's peak times `--efficiency`. What else a
layer does, and padding, counts nothing.

Precision. `bf16`: everything. `fp8`: products of weights at the FP8 peak, rows go to experts in one
byte per element and come back in two, as in the report; attention itself is in bf16.

Exchange. 64 ranks in 8 nodes share the experts out, all of them get equally many rows. `rows`: each of a
token's 8 rows goes on its own, as in an all_to_all. `nodes`: a token goes to each other node at most
once, and from there over NVLink to its experts. The router chooses 8 experts in 4 of the 8 nodes, so
3.5 of them are others (the report's limit, which needs kernels of its own; Piper exchanges rows).

Overlap. In `1F1B` a microbatch's pieces follow each other. A pair of a forward and a backward runs, for
each layer, with all pieces of a stream in this order:

    compute    F attention | B experts  | F experts | B experts' weights, attention and its weights
    exchange   B to        | F to       | B from    | F from

and 20 of the device's 132 SMs belong to the exchange while it lasts (the report, section 3.2.2), so
that compute in pairs takes 132/112 of its time.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, Literal

from piper.cli.text import table as aligned
from piper.schedules import Action, Pair, generate
from piper.simulate import Device, Network, device
from piper.simulate.network import Load, Transfer
from piper.simulate.pieces import Piece, PieceSimulation, chain, simulate_pieces
from piper.simulate.views import format_bytes, format_seconds
from piper_runtime.mesh import Axis, CommSpec, Mesh

Precision = Literal["bf16", "fp8"]
Exchange = Literal["rows", "nodes"]

RANKS: Final = 16
MESH: Final = Mesh(
    (Axis("pp", RANKS, "unrolled"), Axis("edp", 2, "manual"), Axis("ep", 64, "manual"))
)
SCHEDULES: Final[Mapping[str, int]] = {"1F1B": 4, "DualPipe": 4, "DualPipeV": 2}
"""Layers of a stage, so that each rank has four (in DualPipe twice: it keeps two copies)."""
SMS, SMS_OF_EXCHANGE = 132, 20
WIDTHS: Final[Mapping[str, int]] = {"bf16": 2, "fp8": 1}


@dataclass(frozen=True)
class Layer:
    """Sizes of a layer, those of the config.json of DeepSeek-V3, and of a microbatch."""

    tokens: int = 4096
    hidden: int = 7168
    heads: int = 128
    query_rank: int = 1536
    value_rank: int = 512
    rotary: int = 64
    head: int = 128
    experts: int = 256
    choices: int = 8
    width: int = 2048

    @property
    def attention_weights(self) -> int:
        """Parameters of the products around attention, and of the router."""
        queries = self.query_rank * (self.hidden + self.heads * (self.head + self.rotary))
        keys = self.hidden * (self.value_rank + self.rotary)
        keys += self.value_rank * self.heads * 2 * self.head
        return queries + keys + self.heads * self.head * self.hidden + self.hidden * self.experts

    @property
    def expert_weights(self) -> int:
        """Parameters that a token meets: its choices and the shared expert."""
        return (self.choices + 1) * 3 * self.hidden * self.width

    @property
    def scores_flops(self) -> float:
        """Of a forward, without weights: half of all scores, and of their sums of values."""
        return self.tokens**2 * self.heads * (2 * self.head + self.rotary)


@dataclass(frozen=True)
class Times:
    """Seconds of the pieces of a layer: of a forward, and of the two halves of a backward."""

    attention: float
    attention_inputs: float
    attention_weights: float
    experts: float
    to: Transfer
    back: Transfer

    @property
    def compute(self) -> float:
        """Of a microbatch, both ways."""
        attention = self.attention + self.attention_inputs + self.attention_weights
        return attention + 3 * self.experts

    @property
    def exchange(self) -> float:
        """Of a microbatch, both ways."""
        return 2 * (self.to.seconds + self.back.seconds)


def price(
    layer: Layer, target: Device, precision: Precision, exchange: Exchange, efficiency: float
) -> Times:
    """What a layer takes on a device."""
    products = target.flops["float8_e4m3fn" if precision == "fp8" else "bfloat16"] * efficiency
    scores = layer.scores_flops / (target.flops["bfloat16"] * efficiency)
    attention = 2 * layer.tokens * layer.attention_weights / products
    move = partial(_exchange, layer, Network.of(target), exchange)
    return Times(
        attention=attention + scores,
        attention_inputs=attention + 2.5 * scores,
        attention_weights=attention,
        experts=2 * layer.tokens * layer.expert_weights / products,
        to=move(WIDTHS[precision]),
        back=move(WIDTHS["bf16"]),
    )


def _exchange(layer: Layer, network: Network, exchange: Exchange, width: int) -> Transfer:
    """All rows of a microbatch, to experts or back."""
    token = layer.hidden * width
    comm = CommSpec("exchange.ep$0", ("ep",), (0,))
    num_bytes = layer.tokens * layer.choices * token
    rows = network.collective("all_to_all", num_bytes, comm, MESH, axis="pp")
    if exchange == "rows":
        return rows
    assert network.across is not None
    nodes, reached, node = 8, 4, network.node or 8
    loads = [
        Load(network.across, layer.tokens * token * reached * (nodes - 1) / nodes),
        Load(network.default, num_bytes * (node - 1) / node),
    ]
    loads.sort(key=lambda load: -load.seconds)
    return Transfer(rows.members, tuple(loads), loads[0].seconds + network.across.latency)


# Cells.


def cell_pieces(times: Times, layers: int, cell: Action | Pair) -> Sequence[Piece]:
    """The pieces of a cell, in issue order."""
    if isinstance(cell, Pair):
        return list(_pair(times, layers, cell))
    return list(chain(*_serial(times, layers, cell), of=cell))


def _serial(times: Times, layers: int, action: Action) -> Iterator[tuple[str, float | Transfer]]:
    for layer in range(layers):
        match action.pass_:
            case "F":
                yield f"attention {layer}", times.attention
                yield f"to {layer}", times.to
                yield f"experts {layer}", times.experts
                yield f"from {layer}", times.back
            case "W":
                yield f"weights {layer}", times.experts + times.attention_weights
            case _:
                halves = 2 if action.pass_ == "B" else 1
                yield f"to {layer}", times.to
                yield f"experts {layer}", halves * times.experts
                yield f"from {layer}", times.back
                weights = times.attention_weights * (halves - 1)
                yield f"attention {layer}", times.attention_inputs + weights


def _pair(times: Times, layers: int, cell: Pair) -> Iterator[Piece]:
    """A forward and a backward, layer by layer; see the top of this file."""
    slow = SMS / (SMS - SMS_OF_EXCHANGE)
    forward, backward = (cell.forward,), (cell.backward,)
    whole = cell.backward.pass_ == "B"
    for layer in range(layers):
        first, last = layer == 0, layer == layers - 1
        after_f = () if first else (f"F from {layer - 1}",)
        after_b = () if first else (f"B attention {layer - 1}",)
        begins_f, begins_b = (forward, backward) if first else ((), ())
        ends_f, ends_b = (forward, backward) if last else ((), ())
        yield Piece(f"F attention {layer}", slow * times.attention, after_f, begins_f)
        yield Piece(f"B to {layer}", times.to, after_b, begins_b)
        yield Piece(f"F to {layer}", times.to, (f"F attention {layer}",))
        yield Piece(f"B experts {layer}", slow * times.experts, (f"B to {layer}",))
        yield Piece(f"B from {layer}", times.back, (f"B experts {layer}",))
        yield Piece(f"F experts {layer}", slow * times.experts, (f"F to {layer}",))
        yield Piece(f"F from {layer}", times.back, (f"F experts {layer}",), ends=ends_f)
        if whole:
            yield Piece(f"B experts' weights {layer}", slow * times.experts)
        attention = slow * times.attention_inputs
        yield Piece(f"B attention {layer}", attention, (f"B from {layer}",), ends=ends_b)
        if whole:
            yield Piece(f"B attention's weights {layer}", slow * times.attention_weights)


# Steps.


def simulate_step(
    name: str, times: Times, *, layer: Layer, target: Device, microbatches: int
) -> PieceSimulation:
    """A step of a schedule; activations go between stages in two bytes per element."""
    network = Network.of(target)
    activations = layer.tokens * layer.hidden * WIDTHS["bf16"]
    return simulate_pieces(
        generate(name, ranks=RANKS, microbatches=microbatches),
        partial(cell_pieces, times, SCHEDULES[name]),
        lambda source, rank: network.message(activations, (source, rank), MESH, axis="pp"),
    )


def layer_table(layer: Layer, target: Device, efficiency: float) -> Iterator[str]:
    """Yield what one layer takes for one microbatch, forwards and backwards."""
    yield f"a layer and microbatch on {target.name}, forward and backward, at {efficiency:.0%} of peak"
    header = ("precision", "exchange", "compute", "exchanges", "ratio", "within nodes")
    rows: list[Sequence[str]] = [(*header, "between nodes")]
    for precision, exchange in _settings():
        times = price(layer, target, precision, exchange, efficiency)
        ratio = f"1:{times.exchange / times.compute:.2f}"
        within, across = (
            sum(
                2 * load.num_bytes
                for transfer in (times.to, times.back)
                for load in transfer.loads
                if load.link.name.startswith(kind)
            )
            for kind in ("nvlink", "infiniband")
        )
        spent = map(format_seconds, (times.compute, times.exchange))
        rows.append((precision, exchange, *spent, ratio, *map(format_bytes, (within, across))))
    yield from aligned(rows, numbers=5)


def step_table(layer: Layer, target: Device, efficiency: float, microbatches: int) -> Iterator[str]:
    """Yield what a step takes, and what of that is exposed."""
    yield f"a step of {microbatches} microbatches, mean over {RANKS} pipeline ranks"
    header = ("precision", "exchange", "schedule", "step", "compute", "exposed all_to_all")
    rows: list[Sequence[str]] = [(*header, "of the step", "exposed messages", "idle")]
    for precision, exchange in _settings():
        times = price(layer, target, precision, exchange, efficiency)
        for name in SCHEDULES:
            found = simulate_step(
                name, times, layer=layer, target=target, microbatches=microbatches
            )
            compute = sum(found.busy) / RANKS
            exposed, messages = found.exposed("all_to_all"), found.exposed("messages")
            idle = found.makespan - compute - exposed - messages
            spent = map(format_seconds, (found.makespan, compute, exposed))
            shares = f"{exposed / found.makespan:.1%}", format_seconds(messages)
            rows.append((precision, exchange, name, *spent, *shares, format_seconds(idle)))
    yield from aligned(rows, numbers=6)


def _settings() -> Iterator[tuple[Precision, Exchange]]:
    for precision in ("bf16", "fp8"):
        for exchange in ("rows", "nodes"):
            yield precision, exchange


def main(arguments: Sequence[str] | None = None) -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="h800", help="default: h800")
    parser.add_argument("--efficiency", type=float, default=1.0, help="of the peak (default: 1)")
    parser.add_argument("--microbatches", type=int, default=120, help="of a step (default: 120)")
    options = parser.parse_args(arguments)
    layer, target = Layer(), device(options.device)
    print("\n".join(layer_table(layer, target, options.efficiency)))
    print()
    print("\n".join(step_table(layer, target, options.efficiency, options.microbatches)))


if __name__ == "__main__":
    main()
