"""Random mutations of IR as text, valid or not: what a person's editor makes."""

from __future__ import annotations

import re
from collections.abc import Callable
from random import Random

__all__ = ["TEXT_MUTATIONS", "mutate_text"]

_NUMBER = re.compile(r"(?<![\w.$#])\d+(?![\w.$])")
_NAME = re.compile(r"%[\w.$]+")
_SYMBOL = re.compile(r'@[\w.$]+|@"[^"]*"')
_TYPE = re.compile(r"![\w.]+")
_WORD = re.compile(r"\b[a-z_]{2,}\b")


def mutate_text(text: str, kind: str, choice: Random) -> str:
    """Change one place of a text; the locations at its end are left alone."""
    lines = text.splitlines()
    shown = [index for index, line in enumerate(lines) if not line.startswith("#loc")]
    TEXT_MUTATIONS[kind](lines, shown, choice)
    return "\n".join(lines) + "\n"


Mutation = Callable[[list[str], list[int], Random], None]
"""Changes lines, of which only those with the given numbers are worth it."""


def _swap(lines: list[str], shown: list[int], choice: Random) -> None:
    i, j = choice.choice(shown), choice.choice(shown)
    lines[i], lines[j] = lines[j], lines[i]


def _swap_next(lines: list[str], shown: list[int], choice: Random) -> None:
    i = choice.choice(shown[:-1])
    lines[i], lines[i + 1] = lines[i + 1], lines[i]


def _drop(lines: list[str], shown: list[int], choice: Random) -> None:
    del lines[choice.choice(shown)]


def _duplicate(lines: list[str], shown: list[int], choice: Random) -> None:
    i = choice.choice(shown)
    fresh = re.sub(r"^(\s*)(%[\w.$:, ]+) = ", lambda m: m[1] + _renamed(m[2]) + " = ", lines[i])
    lines.insert(i + 1, fresh)


def _renamed(names: str) -> str:
    return re.sub(r"%([\w.$]+)", r"%\1_again", names)


def _replace(pattern: re.Pattern[str]) -> Mutation:
    """Replace what matches by a match elsewhere; a number also by one near it."""

    def replace(lines: list[str], shown: list[int], choice: Random) -> None:
        places = [i for i in shown if pattern.search(lines[i])]
        i, other = choice.choice(places), choice.choice(places)
        match = choice.choice(list(pattern.finditer(lines[i])))
        instead = choice.choice(pattern.findall(lines[other]))
        if pattern is _NUMBER and choice.random() < 0.5:
            instead = choice.choice([str(int(match[0]) + 1), "0", "-1", "9223372036854775807"])
        lines[i] = lines[i][: match.start()] + instead + lines[i][match.end() :]

    return replace


def _cut(lines: list[str], shown: list[int], choice: Random) -> None:
    """Cut some characters out of a line."""
    i = choice.choice([i for i in shown if lines[i].strip()])
    start = choice.randrange(len(lines[i]))
    lines[i] = lines[i][:start] + lines[i][start + choice.randint(1, 12) :]


TEXT_MUTATIONS: dict[str, Mutation] = {
    "swap two lines": _swap,
    "swap with the next line": _swap_next,
    "drop a line": _drop,
    "duplicate a line": _duplicate,
    "replace a number": _replace(_NUMBER),
    "replace a value": _replace(_NAME),
    "replace a symbol": _replace(_SYMBOL),
    "replace a type": _replace(_TYPE),
    "replace a word": _replace(_WORD),
    "cut characters": _cut,
}
