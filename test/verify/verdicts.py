"""Every mutant of a sharded training step, and what becomes of it.

A mutant is one slip with one instruction, see `slips`. It is caught if a verifier refuses it or if
its run ends with an error, and does no harm if it trains as the program does that it was made of.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from random import Random

from compiled import Compiled, refusal
from exchange_slips import EXCHANGE_SLIPS, touches_exchange
from mutations import body_of, programs_of
from oracle import check_steps
from piper.mlir import ir
from slips import SLIPS

__all__ = ["LEVELS", "OUTCOMES", "Mutant", "Verdict", "judge", "mutants_at", "mutants_of", "sample"]

LEVELS = {"programs": "piper-verify", "cluster": "piper-verify,piper-lower"}
"""Where mutants are made, and what must accept them before they run."""

OUTCOMES = ("refused", "failed at run", "equivalent", "survived")
SEEDS = (None, 1)
"""Orders to run in: the default one, and one where whoever need not wait goes first at random."""

STEP = "train"


@dataclass(frozen=True)
class Mutant:
    """One change of one instruction of a module."""

    slip: str
    place: int
    """The number of the instruction among those of the training step, all coordinates in turn."""
    number: int
    """Which of the changes of this kind."""

    def apply(self, module: ir.Module) -> str:
        """Make the change in an equal module, and say where it was made."""
        _, slip = EXCHANGE_SLIPS[self.slip]
        op = _instructions(module)[self.place]
        text = str(op).partition(" loc(")[0]
        list(slip(op))[self.number]()
        return text


@dataclass(frozen=True)
class Verdict:
    """What became of a mutant."""

    mutant: Mutant
    instruction: str
    """As it was before."""
    outcome: str
    reason: str = ""

    def __str__(self) -> str:
        """For a report."""
        slip, number = self.mutant.slip, self.mutant.number
        return f"{slip} ({number}) of `{self.instruction}`: {self.outcome}: {self.reason}"


def mutants_at(base: Compiled, level: str, *, exchanges: bool = False) -> list[Mutant]:
    """All mutants of a compiled program at a level; or those about what ranks exchange."""
    with ir.Context():
        return mutants_of(ir.Module.parse(base.level(level)), exchanges=exchanges)


def mutants_of(module: ir.Module, *, exchanges: bool = False) -> list[Mutant]:
    """All mutants of the training step, by kind of slip, then in the order of the text.

    With `exchanges` those of instructions that exchange values of microbatches, or make or use
    what is exchanged, with more kinds of slips.
    """
    ops = list(enumerate(_instructions(module)))
    if exchanges:
        ops = [(place, op) for place, op in ops if touches_exchange(op)]
    return [
        Mutant(name, place, number)
        for name, (kinds, slip) in (EXCHANGE_SLIPS if exchanges else SLIPS).items()
        for place, op in ops
        if not kinds or op.name.removeprefix("piper.") in kinds
        for number, _ in enumerate(slip(op))
    ]


def sample(mutants: list[Mutant], limit: int, *, seed: int = 0) -> list[Mutant]:
    """At most `limit` of them, the same ones every time, every kind of slip in turn."""
    choice, by_slip = Random(seed), {mutant.slip: list[Mutant]() for mutant in mutants}
    for mutant in mutants:
        by_slip[mutant.slip].append(mutant)
    for some in by_slip.values():
        choice.shuffle(some)
    longest = max(map(len, by_slip.values()), default=0)
    turns = [some[turn] for turn in range(longest) for some in by_slip.values() if turn < len(some)]
    return turns[:limit]


def judge(base: Compiled, level: str, mutants: Iterable[Mutant]) -> Iterator[Verdict]:
    """Say of each mutant of a compiled program at a level what becomes of it."""
    with ir.Context():
        for mutant in mutants:
            yield _judge(base, level, ir.Module.parse(base.level(level)), mutant)


def _judge(base: Compiled, level: str, module: ir.Module, mutant: Mutant) -> Verdict:
    text = mutant.apply(module)
    if (reason := refusal(module.operation, LEVELS[level])) is not None:
        return Verdict(mutant, text, "refused", reason)
    for seed in SEEDS:
        try:
            steps = base.run(module, seed=seed)
        except Exception as error:  # noqa: BLE001 (whatever it is, it is seen)
            return Verdict(mutant, text, "failed at run", f"{type(error).__name__}: {error}")
        try:
            check_steps(steps, base.steps)
        except AssertionError as error:
            return Verdict(mutant, text, "survived", str(error))
    return Verdict(mutant, text, "equivalent")


def _instructions(module: ir.Module) -> list[ir.Operation]:
    return [op for program in programs_of(module) if _trains(program) for op in body_of(program)]


def _trains(program: ir.Operation) -> bool:
    name = ir.FlatSymbolRefAttr(program.attributes["of"]).value
    return name.partition("$")[0] == STEP
