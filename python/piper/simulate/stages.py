"""What the stages of a compiled program cost, for schedules of the same stages."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from piper.schedules import Pass
from piper.simulate.costs import Costs
from piper.simulate.facts import ChunkFacts, ProgramFacts
from piper.simulate.prices import Prices

__all__ = ["stage_costs"]


def stage_costs(facts: ProgramFacts, prices: Prices, *, entry: str = "train") -> Costs:
    """Seconds that each pass of each stage takes for one microbatch: those of its kernels.

    I and W are priced by the kernels of the halves that the program runs; a half for which a stage
    has no chunk takes 0, since there is nothing to do. What the halves cost cannot be told from
    whole backwards, so a stage that runs nothing else is refused: compile with an order that cuts
    backwards, such as ZBH1. B is priced by its own kernels where the program also runs it, and is
    I + W elsewhere: these share their kernels. A stage without backwards takes 0 for them. A pair
    takes as long as its members one after the other, which is how trainers run it.

    What a rank does beside its cells is not counted: preambles, accumulations, communication and
    updates.

    Args:
        facts: a compiled program.
        prices: what kernels cost; a `Profile` of this program, say.
        entry: the entry point whose passes count.

    Raises:
        ValueError: an entry point without backwards, a stage that runs only whole ones, or a
            kernel that has no price.
    """
    runs = _runs(facts, entry)
    stages = range(1 + max((stage for stage, _ in runs), default=-1))
    if not any(pass_ in ("B", "I", "W") for _, pass_ in runs):
        raise ValueError(f"costs expected an entry point with backward passes, got {entry!r}")
    for stage in stages:
        if (stage, "B") in runs and (stage, "I") not in runs and (stage, "W") not in runs:
            raise ValueError(
                "costs expected a program that cuts backwards into I and W at every stage, as "
                f"order ZBH1 does, got one that runs only whole ones at stage {stage}"
            )

    def seconds(stage: int, pass_: Pass) -> float:
        kernels = (kernel for chunk in runs.get((stage, pass_), ()) for kernel in chunk.kernels)
        return sum(map(prices.kernel, kernels), 0.0)

    forwards, wholes, inputs, weights = (
        [seconds(stage, pass_) for stage in stages] for pass_ in ("F", "B", "I", "W")
    )
    for stage in stages:
        if (stage, "B") not in runs:
            wholes[stage] = inputs[stage] + weights[stage]
    return Costs.per_stage(forwards, B=wholes, I=inputs, W=weights)


def _runs(facts: ProgramFacts, entry: str) -> Mapping[tuple[int, str], Sequence[ChunkFacts]]:
    """The chunks that run for each microbatch, once each, by stage and pass."""
    names = {
        row["chunk"]: None
        for _, rows in sorted(facts.entry(entry).items())
        for row in rows
        if row["op"] == "run"
    }
    runs: dict[tuple[int, str], list[ChunkFacts]] = defaultdict(list)
    for chunk in (facts.chunks[name] for name in names):
        if chunk.stage is not None:
            runs[chunk.stage, chunk.pass_].append(chunk)
    return dict(runs)
