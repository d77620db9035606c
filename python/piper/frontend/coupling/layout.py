"""Where the examples of a batch lie in a value: which dims grow with their number, and how.

    x                  [8 x T x D]     dims of 8, T and D; for 32 examples of 32, T and D
    x.flatten(0, 1)    [8*T x D]       the first dim is 8 examples, outside, of T positions each

A dim is made of factors, from the outermost to the innermost. A factor is a pair of sizes: for the
examples of a microbatch, and for those of the whole batch. One whose sizes differ is one of
examples. Factors of one element are left out, neighbours of plain sizes are one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

__all__ = [
    "Dim",
    "Layout",
    "combine",
    "cut",
    "holds_examples",
    "join",
    "num_examples",
    "of_sizes",
    "regroup",
    "sizes",
]

Factor = tuple[int, int]
Dim = tuple[Factor, ...]
Layout = tuple[Dim, ...]


def of_sizes(here: Sequence[int], whole: Sequence[int]) -> Layout:
    """Return the layout of a value whose dims are not known to have parts."""
    return tuple(_normal([pair]) for pair in zip(here, whole, strict=True))


def _normal(factors: Iterable[Factor]) -> Dim:
    made: list[Factor] = []
    for factor in factors:
        plain = factor[0] == factor[1]
        if factor == (1, 1):
            continue
        if plain and made and made[-1][0] == made[-1][1]:
            made[-1] = (made[-1][0] * factor[0], made[-1][1] * factor[1])
        else:
            made.append(factor)
    return tuple(made)


def join(*dims: Dim) -> Dim:
    """Return one dim of several, the first outside."""
    return _normal(factor for dim in dims for factor in dim)


def sizes(dim: Dim) -> Factor:
    """Return both sizes of a dim."""
    here = whole = 1
    for factor in dim:
        here, whole = here * factor[0], whole * factor[1]
    return here, whole


def holds_examples(dim: Dim) -> bool:
    """Return whether a dim grows with the number of examples."""
    return num_examples((dim,)) > 0


def num_examples(layout: Layout) -> int:
    """Return how many factors are examples: 2, if each is paired with each."""
    return sum(here != whole for dim in layout for here, whole in dim)


def combine(first: Dim, second: Dim) -> Dim | None:
    """Return the dim of elements that are computed from those of two, or None if they do not match.

    What does not depend on the examples, or was made for their number alone, has no parts and takes
    on those of the other.
    """
    if first and (first == second or not holds_examples(second)):
        return first
    if not holds_examples(first) or len(first) == 1:
        return second
    return first if len(second) == 1 else None


def regroup(layout: Layout, here: Sequence[int], whole: Sequence[int]) -> Layout | None:
    """Return the layout of a view with other sizes; None if that takes examples apart.

    Neighbouring examples may be taken together, a number of them that divides a microbatch.
    """
    left = [factor for dim in layout for factor in dim]
    made = []
    for wanted in zip(here, whole, strict=True):
        found = _take(left, wanted)
        if found is None:
            return None
        made.append(found)
    return None if left else tuple(made)


def _take(left: list[Factor], wanted: Factor) -> Dim | None:
    """Take the factors of one dim from the front of ``left``, of which one may have to be split."""
    taken: list[Factor] = []
    while wanted != (1, 1):
        if not left:
            return None
        factor = left.pop(0)
        if all(size % part == 0 for size, part in zip(wanted, factor, strict=True)):
            taken.append(factor)
            wanted = (wanted[0] // factor[0], wanted[1] // factor[1])
            continue
        inner = (factor[0] // wanted[0], factor[1] // wanted[1])
        exact = all(w * i == f for w, i, f in zip(wanted, inner, factor, strict=True))
        if not exact or inner[0] != inner[1]:
            return None
        taken.append(wanted)
        left.insert(0, inner)
        wanted = (1, 1)
    return _normal(taken)


def cut(dim: Dim, here: tuple[int, int, int], whole: tuple[int, int, int]) -> Dim | None:
    """Return what is left of a dim from a start to an end, by a step, for both numbers of examples;
    None if that depends on the number, or takes some of the examples.

    Cut may be what lies outside of the examples, and every group of neighbours of a size that
    divides a microbatch may be left with one.
    """
    if all(limits == (0, size, 1) for limits, size in zip((here, whole), sizes(dim), strict=True)):
        return dim
    if not holds_examples(dim):
        return _normal([(_length(here), _length(whole))]) if here == whole else None
    if here[2] == whole[2] == 1:
        return _cut_outside(dim, here[:2], whole[:2])
    start, step = here[0], here[2]
    every = start == whole[0] and start < step == whole[2] and (here[1], whole[1]) == sizes(dim)
    if not every or len(dim) != 1 or any(size % step for size in dim[0]):
        return None
    return _normal([(dim[0][0] // step, dim[0][1] // step)])


def _length(limits: tuple[int, int, int]) -> int:
    start, end, step = limits
    return max(0, -((start - end) // step))


def _cut_outside(dim: Dim, here: tuple[int, ...], whole: tuple[int, ...]) -> Dim | None:
    """Cut the outermost factor, a plain one."""
    if dim[0][0] != dim[0][1]:
        return None
    inner = sizes(dim[1:])
    if any(limit % inner[0] for limit in here) or any(limit % inner[1] for limit in whole):
        return None
    blocks = [limit // inner[0] for limit in here]
    if blocks != [limit // inner[1] for limit in whole]:
        return None
    length = blocks[1] - blocks[0]
    return join(((length, length),), dim[1:])
