"""The layout string of a place: which chunks make up each stage, a letter per chunk."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

__all__ = ["check_chunks", "parse_layout"]

_SYNTAX = "|()*,"
_END = "|"
_MOST_CHUNKS = 100_000  # with ends of stages
_MOST_DIGITS = 9
_DEEPEST = 100


def parse_layout(layout: str, letters: Mapping[str, str]) -> tuple[tuple[str, ...], ...]:
    """The tag of each chunk of each stage.

    Megatron's notation: a letter is a chunk, `|` ends a stage, `x*n` and `(...)*n` repeat, commas
    are there to be read past: `Et*2|(t|)*2,tL` is `Ett`, `t`, `t` and `tL`.

    Args:
        layout: the text.
        letters: the tag that each letter stands for; all must occur.

    Raises:
        ValueError: text that is not of this form, an unknown letter, one that does not occur, a
            stage without a chunk, more than 100000 chunks and ends of stages, or groups within
            more than 100 others; says where.
    """
    for letter, tag in letters.items():
        if len(letter) != 1 or not letter.isalpha():
            raise ValueError(f"layout letters must be single letters, got {letter!r} for {tag!r}")
    reader = _Reader(layout, letters)
    chunks = reader.read()
    for letter, tag in letters.items():
        if letter not in chunks:
            raise ValueError(
                f"layout {layout!r} must have a letter {letter!r}, which stands for {tag!r}: "
                "chunks of that tag would be on no stage"
            )
    stages = "".join(chunks).split(_END)
    for stage, chunks_of_stage in enumerate(stages):
        if not chunks_of_stage:
            raise ValueError(
                f"layout {layout!r} must have a chunk in every stage, got none in stage {stage} of "
                f"{len(stages)}"
            )
    return tuple(tuple(letters[letter] for letter in stage) for stage in stages)


class _Reader:
    """Reads a layout from left to right and writes its repetitions out."""

    def __init__(self, layout: str, letters: Mapping[str, str]) -> None:
        self._layout = layout
        self._letters = letters
        self._at = 0
        self._depth = 0

    def read(self) -> list[str]:
        """The whole text as letters and ends of stages."""
        chunks = self._sequence()
        if self._at < len(self._layout):
            raise self._error("no ')' without '('")
        return chunks

    def _sequence(self) -> list[str]:
        """Everything up to the end or to a closing parenthesis."""
        written: list[str] = []
        while self._peek() not in ("", ")"):
            if self._take(","):
                continue
            item = self._item()
            times = self._times()
            if len(written) + len(item) * times > _MOST_CHUNKS:
                raise self._error(f"no more than {_MOST_CHUNKS} chunks and ends of stages")
            written += item * times
        return written

    def _item(self) -> list[str]:
        if self._peek() == "(" and self._depth == _DEEPEST:
            raise self._error(f"no more than {_DEEPEST} '(' within each other")
        if self._take("("):
            self._depth += 1
            group = self._sequence()
            self._depth -= 1
            if not self._take(")"):
                raise self._error("')'")
            return group
        char = self._peek()
        if char != _END and char not in self._letters:
            known = ", ".join(self._letters)
            what = "a letter or '('" if char in _SYNTAX else f"one of the letters {known}"
            raise self._error(what)
        self._at += 1
        return [char]

    def _times(self) -> int:
        if not self._take("*"):
            return 1
        digits = ""
        while self._peek().isdecimal():
            digits += self._peek()
            self._at += 1
        if not digits or len(digits) > _MOST_DIGITS or int(digits) < 1:
            self._at -= len(digits)
            raise self._error(f"a number of at least 1, of at most {_MOST_DIGITS} digits,")
        return int(digits)

    def _peek(self) -> str:
        return self._layout[self._at : self._at + 1]

    def _take(self, char: str) -> bool:
        found = self._peek() == char
        self._at += found
        return found

    def _error(self, expected: str) -> ValueError:
        return ValueError(
            f"layout {self._layout!r} expected {expected} at position {self._at}, "
            f"got {self._peek() or 'its end'!r}"
        )


def check_chunks(stages: Sequence[Sequence[str]], chunks: Sequence[str]) -> None:
    """Check that a layout places the chunks that a model has.

    Args:
        stages: the tags of each stage, as from `parse_layout`.
        chunks: the names of all chunks in forward order: a tag and a number, such as `layer.0`.

    Raises:
        ValueError: a tag of which there are more or fewer chunks, or one in another order.
    """
    tags = [chunk.rpartition(".")[0] for chunk in chunks]
    placed = [tag for stage in stages for tag in stage]
    for tag in dict.fromkeys([*placed, *tags]):
        if placed.count(tag) != tags.count(tag):
            raise ValueError(
                f"layout must place all chunks, got {placed.count(tag)} of {tag!r}, of which the "
                f"model has {tags.count(tag)}"
            )
    where = [(stage, tag) for stage, tags in enumerate(stages) for tag in tags]
    for (stage, expected), chunk, tag in zip(where, chunks, tags, strict=True):
        if tag != expected:
            raise ValueError(
                f"layout must have the model's order, got {expected!r} in stage {stage} where the "
                f"model has chunk {chunk!r}"
            )
