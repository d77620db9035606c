"""What `piper.order("auto")` finds, beside the best named schedule in the same memory.

    python benchmarks/auto_order.py                 # both tables, some minutes
    python benchmarks/auto_order.py uneven
    python benchmarks/auto_order.py golden --effort 1

`golden` takes every size and cost of `test/schedules/golden.json`, with as much memory as each
named schedule of the same placement needs there; `uneven` takes stages that differ, messages that
take time, and pairs, whole backwards and halves that cost something special. Memory is counted in
chunks on the rank that holds most, each until its W. Prints the tables of `docs/search.md`.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Final, NamedTuple

from piper.schedules import SCHEDULES, Homes, Placement, Table
from piper.search import AutoOrder, auto_order
from piper.simulate import Costs, Simulation, simulate

GOLDEN: Final = Path(__file__).parents[1] / "test" / "schedules" / "golden.json"


class Size(NamedTuple):
    """How large a pipeline is; `chunks` is how many stages a rank holds."""

    placement: Placement
    ranks: int
    microbatches: int
    chunks: int

    @property
    def homes(self) -> Homes:
        """Where stages run."""
        is_once = self.placement == "bidirectional"  # each of its stages is on two ranks
        stages = self.ranks * (1 if is_once else self.chunks)
        return Homes.named(
            self.placement, ranks=self.ranks, stages=stages, microbatches=self.microbatches
        )

    def tables(self) -> dict[str, Table]:
        """Every named schedule of this placement and size."""
        return dict(_tables(self))


@cache
def _tables(size: Size) -> tuple[tuple[str, Table], ...]:
    placement, *numbers = size
    found = []
    for name, schedule in SCHEDULES.items():
        if schedule.placement == placement and (schedule.chunks or size.chunks) == size.chunks:
            found.append((name, schedule.table(*numbers)))
    return tuple(found)


@dataclass(frozen=True)
class Setting:
    """A pipeline, and the most chunks that a rank may hold."""

    size: Size
    costs: Costs
    latency: float
    memory: int

    def auto(self, *, effort: float, seeds: bool = True) -> AutoOrder:
        """What the search finds."""
        return auto_order(
            self.size.homes,
            microbatches=self.size.microbatches,
            costs=self.costs,
            latency=self.latency,
            memory=self.memory,
            seeds=seeds,
            effort=effort,
        )

    def named(self) -> tuple[float, str]:
        """The makespan and name of the fastest named schedule that keeps to the memory."""
        return min(
            (run.makespan, name)
            for name, run in runs(self.size, self.costs, self.latency).items()
            if max(run.peak_chunks_until_W) <= self.memory
        )


def runs(size: Size, costs: Costs, latency: float) -> dict[str, Simulation]:
    """Every named schedule of a size, simulated."""
    return {name: simulate(table, costs, latency=latency) for name, table in size.tables().items()}


def golden() -> Iterator[tuple[str, Setting]]:
    """The settings of the golden file, each with its F, I and W."""
    seen = set()
    for row in json.loads(GOLDEN.read_text()):
        schedule = SCHEDULES[row["schedule"]]
        size = Size(schedule.placement, row["ranks"], row["microbatches"], row["chunks_per_rank"])
        times = row["F"], row["I"], row["W"]
        if (size, times) in seen:
            continue
        seen.add((size, times))
        costs = Costs.uniform(times[0], I=times[1], W=times[2])
        found = runs(size, costs, 0.0).values()
        for memory in sorted({max(run.peak_chunks_until_W) for run in found}):
            yield "{}, {}, {}".format(*times), Setting(size, costs, 0.0, memory)


def _uneven(placement: Placement, memory: int, costs: Costs, latency: float = 0.0) -> Setting:
    chunks = 1 if placement == "each" else 2
    return Setting(Size(placement, 4, 8, chunks), costs, latency, memory)


def _same(times: Sequence[float]) -> Costs:
    """Stages whose passes all take the same."""
    return Costs.per_stage(times, I=times, W=times)


UNEVEN: Final[Mapping[str, Setting]] = MappingProxyType(
    {
        "last stage 1.5 times": _uneven("v", 8, _same([2] * 7 + [3])),
        "last stage twice, W alike": _uneven(
            "v", 8, Costs.per_stage([2] * 7 + [4], I=[2] * 7 + [4], W=2)
        ),
        "middle stages 1.5 times": _uneven("each", 4, _same([2, 3, 3, 2])),
        "stages grow, 4 to 7": _uneven("bidirectional", 5, _same([4, 5, 6, 7])),
        "half of the stages frozen": _uneven("loop", 8, Costs.per_stage(W=[0] * 4 + [1] * 4)),
        "messages take 1": _uneven("each", 4, Costs.uniform(), latency=1.0),
        "messages take 1, two ways": _uneven("bidirectional", 5, Costs.uniform(), latency=1.0),
        "F&B takes 2.5 of 3": _uneven("each", 7, Costs.uniform(pair=2.5)),
        "B takes 3.5 of I + W = 4": _uneven("each", 4, Costs.uniform(2, B=3.5, I=2, W=2)),
    }
)
"""At 4 ranks and 8 microbatches."""


def print_uneven(effort: float) -> None:
    """A row per setting."""
    print("| 4 ranks, 8 microbatches | placement | memory | best named | takes | auto | bound |")
    print("|---|---|---|---|---|---|---|")
    for name, setting in UNEVEN.items():
        time, best = setting.named()
        auto = setting.auto(effort=effort)
        print(
            f"| {name} | {setting.size.placement} | {setting.memory} | {best} | {time:g} | "
            f"{auto.makespan:g} | {auto.bound:g} |"
        )


def golden_groups() -> dict[tuple[Placement, str], list[Setting]]:
    """The settings of each row of the golden table: by placement, then F, I and W."""
    groups: dict[tuple[Placement, str], list[Setting]] = defaultdict(list)
    for times, setting in golden():
        groups[setting.size.placement, times].append(setting)
    return dict(groups)


def golden_row(placement: Placement, times: str, effort: float) -> str:
    """The row of a placement and costs."""
    settings = golden_groups()[placement, times]
    found = [(setting.named()[0], setting.auto(effort=effort)) for setting in settings]
    gains = [1 - auto.makespan / time for time, auto in found]
    counts = [sum(gain < 0 for gain in gains), gains.count(0.0), sum(gain > 0 for gain in gains)]
    proved = sum(auto.is_optimal for _, auto in found)
    gap = max(auto.gap for _, auto in found)
    cells = [placement, times, len(found), *counts, f"{max(gains):.1%}", proved, f"{gap:.1%}"]
    return f"| {' | '.join(map(str, cells))} |"


def print_golden(effort: float) -> None:
    """A row per placement and costs."""
    print(
        "| placement | F, I, W | settings | slower | as fast | faster | most | best possible "
        "| largest gap |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    for placement, times in golden_groups():
        print(golden_row(placement, times, effort))


def main() -> None:
    """Print what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("tables", nargs="*", choices=["golden", "uneven", []], default=[])
    parser.add_argument("--effort", type=float, default=0.2, help="see piper.search.auto_order")
    arguments = parser.parse_args()
    if not arguments.tables or "uneven" in arguments.tables:
        print_uneven(arguments.effort)
    if not arguments.tables or "golden" in arguments.tables:
        print_golden(arguments.effort)


if __name__ == "__main__":
    main()
