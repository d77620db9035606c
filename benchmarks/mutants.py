"""How many wrong programs the verifiers see, for every family of sharded strategies.

    python benchmarks/mutants.py --per-family 10
    python benchmarks/mutants.py --write            # all tables of docs/verification-mutants.md

Makes one slip with one instruction of a training step, at one of two levels: in a program (L4), as
a wrong hand or a wrong `piper-lower-programs` does, or in the ordered cluster (L3), as the passes
before it do. Then verifies, and if nothing is refused trains two steps on the local transport and
compares with the program as it was. Prints per family how many mutants there are, how many were
tried (the same ones every time, all kinds of slips in turn) and what became of them; then the same
per kind of slip, and every mutant that survived. Families are of two groups: what ranks share out
of states, and what they exchange within a microbatch, where slips are those with exchanges.
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import product
from pathlib import Path

import torch

ROOT = Path(__file__).parents[1]
for folder in (  # no packages: tests import each other by name
    "test/verify",
    "test/oracle",
    "test/compiler",
    "examples",
):
    sys.path.append(str(ROOT / folder))

from compiled import Source, compiled
from families import EXCHANGES, FAMILIES
from verdicts import LEVELS, OUTCOMES, Verdict, judge, mutants_at, sample

CAPS = {"states": 625, "exchanges": 500}
"""Mutants per family and level."""
GROUPS: Mapping[str, Mapping[str, Source]] = {"states": FAMILIES, "exchanges": EXCHANGES}

PAGE = ROOT / "docs" / "verification-mutants.md"
BEGIN, END = "<!-- begin: mutants of {} -->\n", "<!-- end -->\n"
TITLES = {
    ("states", "programs"): "Mutants of programs (L4)",
    ("states", "cluster"): "Mutants of ordered clusters (L3)",
    ("exchanges", "programs"): "Mutants of exchanges in programs (L4)",
    ("exchanges", "cluster"): "Mutants of exchanges in ordered clusters (L3)",
}
MARKS = {("states", level): level for level in LEVELS} | {
    ("exchanges", level): f"exchanges in {level}" for level in LEVELS
}


def table(head: str, rows: Iterable[tuple[str, int | None, list[Verdict]]]) -> Iterator[str]:
    """Yield the lines of a table of what became of mutants; a row may say how many there are."""
    titles = [head, "mutants", "tried", *OUTCOMES]
    yield f"| {' | '.join(titles)} |"
    yield "|---" + "|---:" * (len(titles) - 1) + "|"
    for name, total, verdicts in rows:
        found = Counter(verdict.outcome for verdict in verdicts)
        known = len(verdicts) if total is None else total
        cells = [known, len(verdicts), *(found[outcome] for outcome in OUTCOMES)]
        yield f"| {name} | " + " | ".join(f"{cell:,}" for cell in cells) + " |"


def report(group: str, level: str, per_family: int) -> Iterator[str]:
    """Yield the lines of the report of a group of families at a level."""
    rows, slips = [], Counter[str]()
    for name, strategy in GROUPS[group].items():
        base = compiled(strategy)
        mutants = mutants_at(base, level, exchanges=group == "exchanges")
        slips.update(mutant.slip for mutant in mutants)
        rows.append((name, len(mutants), list(judge(base, level, sample(mutants, per_family)))))
        print(f"{level}: {name}: {len(rows[-1][2])} of {len(mutants)} tried", file=sys.stderr)
    every = [verdict for _, _, verdicts in rows for verdict in verdicts]
    yield f"## {TITLES[group, level]}\n"
    yield from table("family", [*rows, ("all", sum(slips.values()), every)])
    by_slip = [(slip, slips[slip], [v for v in every if v.mutant.slip == slip]) for slip in slips]
    yield ""
    yield from table("slip", by_slip)
    left = [
        f"- {name}: {verdict}"
        for name, _, verdicts in rows
        for verdict in verdicts
        if verdict.outcome == OUTCOMES[-1]
    ]
    yield "\nSurvivors: " + ("\n\n" + "\n".join(left) if left else "none.") + "\n"


def write(mark: str, text: str) -> None:
    """Put a report into the page."""
    head, begin, rest = PAGE.read_text().partition(BEGIN.format(mark))
    _, end, tail = rest.partition(END)
    PAGE.write_text(f"{head}{begin}\n{text}\n{end}{tail}")


def main() -> None:
    """Report on both groups at both levels."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--per-family",
        type=int,
        default=None,
        metavar="N",
        help="try at most N mutants of each family and level (default: 10; "
        f"{' or '.join(map(str, CAPS.values()))} with --write)",
    )
    parser.add_argument("--group", choices=GROUPS, help="(default: both)")
    parser.add_argument("--level", choices=LEVELS, help="(default: both)")
    parser.add_argument("--write", action="store_true", help=f"into {PAGE.relative_to(ROOT)}")
    options = parser.parse_args()
    logging.getLogger("torch.__trace").propagate = True  # see test/oracle/conftest.py
    torch.set_num_threads(1)
    for group, level in product(
        [options.group] if options.group else GROUPS, [options.level] if options.level else LEVELS
    ):
        per_family = options.per_family or (CAPS[group] if options.write else 10)
        text = "\n".join(report(group, level, per_family))
        print(text)
        if options.write:
            write(MARKS[group, level], text)


if __name__ == "__main__":
    main()
