"""overlap: in which order the pieces of two chunks are issued that may overlap."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from piper.strategy.directive import Directive
from piper.strategy.text import quoted


@dataclass(frozen=True, repr=False)
class Overlap(Directive):
    """Where the schedule lets two cells overlap, issue the pieces of their chunks in this `order`.

    Chunks with the tag `tag` of the forward cell are paired with those of the backward cell, in the
    order in which each cell runs them, which in the backward cell is last first. A chunk is cut
    into pieces where ranks exchange values within it: `F`, `F1`, `F2` compute, in that order, and
    `F.dispatch` is what is exchanged; the host waits for its sizes, if it has any, right before.
    Pieces of the backward chunk are named `B`. Each stands once in `order`, behind what it uses.
    What one stream gets of it, it does in that order. Where several pieces have one name, it stands
    as often, and the k-th time is the k-th of them: `B B.reduce B1 B.reduce B2`.

    An order may have the two halves of the backward in place of `B`: `I`, `I1`, `I2` are the pieces
    of the input gradients, `W`, `W1`, `W2` those of the gradients of weights, for which nothing
    waits. Then pairs `(F;B)` of the schedule become `(F;I)` with W right behind, in all stages. An
    order without W leaves it there; one with W puts its pieces anywhere behind what they use.

    Without the directive cells that may overlap take turns, a piece of the backward cell first, as
    others wait for it. What a piece exchanges is issued right behind it, and pieces of W that are
    right behind the pair in the schedule behind that. The host waits for counts of rows when what
    these do not need is issued.

    Raises:
        ValueError: an empty tag, no order, or one with both B and its halves, or W alone.
    """

    tag: str
    order: tuple[str, ...]

    def __post_init__(self) -> None:
        """Check the fields."""
        tag: object = self.tag
        if not isinstance(tag, str) or not tag:
            raise ValueError(f"overlap tag must be a glob over tags of chunks, got {tag!r}")
        if not self.order or not all(isinstance(name, str) for name in self.order):
            raise ValueError(
                f"overlap order must be names of pieces such as 'F1' and 'B.dispatch', got "
                f"{self.order!r}"
            )
        letters = {name[:1] for name in self.order}
        if letters & {"I", "W"} and ("B" in letters or "I" not in letters):
            raise ValueError(
                "overlap order must name pieces of a whole backward, which is B, or of its two "
                f"halves, which are I and W, got {' '.join(self.order)!r}"
            )

    def halves(self) -> bool:
        """Whether the backward of a pair is in halves."""
        return any(name.startswith("I") for name in self.order)

    def op(self) -> str:
        """See `Directive`."""
        order = ", ".join(quoted(name) for name in self.order)
        return f"piper.do.overlap <tag = {quoted(self.tag)}> order = [{order}]"

    def facts(self) -> Mapping[str, object]:
        """See `Directive`."""
        return {f"order of {self.tag!r}": self.order}


def overlap(tag: str, order: Sequence[str] | str) -> Overlap:
    """Issue the pieces of chunks that may overlap in this order, a list or words; see `Overlap`."""
    return Overlap(tag, tuple(order.split() if isinstance(order, str) else order))
