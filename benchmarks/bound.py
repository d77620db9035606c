"""Bounds of what benchmarks measure: how they are checked, and what the exit status then is."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

__all__ = ["Bound", "add_check", "has_defaults", "verdict"]


@dataclass(frozen=True)
class Bound:
    """A sentence with numbers, and whether what it asks for holds."""

    text: str
    holds: bool

    @classmethod
    def of(cls, text: str, found: float, most: float, *, unit: str = "") -> Bound:
        """A number that is `most` at most; `text` says what it is."""
        return cls(f"{text} {found:.3f}{unit}, at most {most:g}{unit}", found <= most)

    def __str__(self) -> str:
        """Say so."""
        return f"{'holds' if self.holds else 'FAILS'}: {self.text}"


def add_check(parser: argparse.ArgumentParser, text: str) -> None:
    """Let the command line ask for the exit status 1 unless what `text` says holds."""
    parser.add_argument("--check", action="store_true", help=f"exit with 1 unless {text}")


def has_defaults(
    parser: argparse.ArgumentParser, options: Mapping[str, object], names: Iterable[str]
) -> bool:
    """Whether all of `names` have their default; with `--check`, others are an error."""
    others = [
        f"--{name} {parser.get_default(name)}"
        for name in names
        if options[name] != parser.get_default(name)
    ]
    if others and options["check"]:
        parser.error(f"--check expected {', '.join(others)}, which the bounds are of")
    return not others


def verdict(bounds: Iterable[Bound], *, check: bool) -> int:
    """Print on rank 0 which bounds hold; returns the exit status, 0 on other ranks.

    Every rank has times of its own. What rank 0 prints is what counts.
    """
    if int(os.environ.get("RANK", "0")) != 0:
        return 0
    results = list(bounds)
    assert results or not check
    for bound in results:
        print(bound, flush=True)
    return 1 if check and not all(bound.holds for bound in results) else 0
