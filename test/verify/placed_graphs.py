"""Random graphs of chunks on random places, each with a table: what the passes take at L2.

Stage and microbatch are those of a cell; all values have one type. A backward chunk comes in one
piece or in halves, as its cell says:

    x ---> c0 F ---> c1 F -----> c2 F         chunks, each on a stage; edges may skip any number
             |         |           |
      d <- c0 B <--- c1 B <----- c2 B         so may these, the other way
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from hypothesis import strategies as st
from piper_runtime.mesh import Axis

__all__ = ["PlacedGraph", "mutated_tables", "placed_graphs"]

T = TypeVar("T")
Draw = Callable[[st.SearchStrategy[T]], T]
Cell = tuple[int, str, int]
"""Stage, pass and microbatch."""


@dataclass(frozen=True)
class PlacedGraph:
    """A step at L2, before it is unrolled, as text; and its table."""

    head: str
    """The mesh and the chunks."""
    step: str
    homes: tuple[tuple[int, ...], ...]
    """The coordinate of each stage; a row if it is the same for all microbatches, else one each."""
    table: tuple[tuple[Cell, ...], ...]
    """The cells of each coordinate."""
    stages: int
    microbatches: int

    @property
    def axis(self) -> Axis:
        """The axis that stages are on."""
        return Axis("pp", len(self.table), "unrolled")

    @property
    def text(self) -> str:
        """All of it as one module."""
        rows = ", ".join(f'"{" ".join(f"{s}{p}{m}" for s, p, m in row)}"' for row in self.table)
        sizes = f"stages = {self.stages} microbatches = {self.microbatches}"
        return f'{self.head}{self.step}piper.schedule @order axis = "pp" {sizes} [{rows}]\n'

    def with_table(self, table: Sequence[Sequence[Cell]]) -> PlacedGraph:
        """The same graph with another table."""
        return replace(self, table=tuple(map(tuple, table)))

    def is_complete(self) -> bool:
        """Whether each cell is there once, at its home, with the other half if it is one."""
        placed = [(cell, at) for at, row in enumerate(self.table) for cell in row]
        wanted = {
            (stage, pass_, microbatch): self.home(stage, microbatch)
            for stage in range(self.stages)
            for microbatch in range(self.microbatches)
            for pass_ in self._passes(stage, microbatch)
        }
        return len(placed) == len(wanted) and dict(placed) == wanted

    def _passes(self, stage: int, microbatch: int) -> str:
        cells = {cell for row in self.table for cell in row}
        return "FIW" if (stage, "I", microbatch) in cells else "FB"

    def home(self, stage: int, microbatch: int) -> int:
        """Where a stage runs a microbatch."""
        return self.homes[microbatch if len(self.homes) > 1 else 0][stage]


@st.composite
def placed_graphs(draw: Draw[Any]) -> PlacedGraph:
    """Graphs with a table that runs each cell after those that it needs."""
    ranks, microbatches = draw(st.sampled_from((2, 2, 3))), draw(st.integers(1, 3))
    stages = draw(st.integers(ranks, ranks + 2))
    homes = _homes(draw, ranks, stages, microbatches)
    chunks = [*range(stages), *draw(st.lists(st.integers(0, stages - 1), max_size=2))]
    stage_of = sorted(chunks)
    count = len(stage_of)
    forward = [_some(draw, range(chunk)) for chunk in range(count)]
    backward = [_some(draw, range(chunk + 1, count)) for chunk in range(count)]
    graph = PlacedGraph(
        head=_head(ranks, stage_of, forward, backward),
        step=_step(homes, microbatches, forward, backward),
        homes=homes,
        table=((),) * ranks,
        stages=stages,
        microbatches=microbatches,
    )
    return graph.with_table(_table(draw, graph, _needs(stage_of, forward, backward)))


@st.composite
def mutated_tables(draw: Draw[Any]) -> PlacedGraph:
    """The same with cells that changed places, or one that is lost, twice there or elsewhere."""
    graph: PlacedGraph = draw(placed_graphs())
    rows = [list(row) for row in graph.table]
    kind = draw(st.sampled_from(("swap", "swap", "swap", "drop", "double", "move")))
    for _ in range(draw(st.integers(1, 3)) if kind == "swap" else 1):
        row = draw(st.sampled_from([row for row in rows if row]))
        i, j = draw(st.integers(0, len(row) - 1)), draw(st.integers(0, len(row) - 1))
        if kind == "swap":
            row[i], row[j] = row[j], row[i]
        elif kind == "double":
            row.insert(j, row[i])
        else:
            cell = row.pop(i)
            if kind == "move":
                rows[(rows.index(row) + 1) % len(rows)].append(cell)
    return graph.with_table(rows)


def _homes(draw: Draw[Any], ranks: int, stages: int, microbatches: int) -> Any:
    """A list of coordinates, one per microbatch, or one and its reverse, as twins have it."""
    rest = st.lists(st.integers(0, ranks - 1), min_size=stages - ranks, max_size=stages - ranks)
    row = st.tuples(st.permutations(range(ranks)), rest).flatmap(
        lambda parts: st.permutations([*parts[0], *parts[1]])
    )
    match draw(st.sampled_from(("list", "each", "both"))):
        case "list":
            return (tuple(draw(row)),)
        case "each":
            return tuple(tuple(draw(row)) for _ in range(microbatches))
    there = tuple(draw(row))
    half = microbatches // 2
    return (there,) * (microbatches - half) + (there[::-1],) * half


def _some(draw: Draw[Any], known: range) -> list[int]:
    """One or two of some chunks; none of none."""
    if not known:
        return []
    return draw(  # type: ignore[no-any-return]
        st.lists(st.sampled_from(known), min_size=1, max_size=2, unique=True)
    )


def _head(
    ranks: int,
    stage_of: Sequence[int],
    forward: Sequence[Sequence[int]],
    backward: Sequence[Sequence[int]],
) -> str:
    lines = ["!x = tensor<4xf32>", f"piper.mesh @mesh [pp = {ranks} unrolled]"]
    for chunk, stage in enumerate(stage_of):
        lines.append(_chunk(chunk, "F", stage, len(forward[chunk]) or 1, 1))
        count = len(backward[chunk]) + 1
        every = list(range(count))
        halves = f" input <@c{chunk}$I {every} -> [0]> weight <@c{chunk}$W [] -> [1]>"
        lines.append(_chunk(chunk, "B", stage, count, 2, halves))
        # The second result of the first half is what the second half takes.
        lines += [_chunk(chunk, "I", stage, count, 2), _chunk(chunk, "W", stage, 1, 1)]
    return "\n".join([*lines, ""])


def _chunk(chunk: int, pass_: str, stage: int, count: int, results: int, halves: str = "") -> str:
    of = "" if pass_ == "F" else f" of @c{chunk}$F"
    arguments = ", ".join(f"%a{index}: !x" for index in range(count))
    types, values = ", ".join(["!x"] * results), ", ".join(["%a0"] * results)
    signature = f"({arguments}) -> ({types}) {{ return {values} : {types} }}"
    return f"piper.chunk @c{chunk}${pass_} pass = {pass_}{of}{halves} stage = {stage} {signature}"


def _step(
    homes: Sequence[Sequence[int]],
    microbatches: int,
    forward: Sequence[Sequence[int]],
    backward: Sequence[Sequence[int]],
) -> str:
    rows = [list(row) for row in homes]
    facts = f"microbatches = {microbatches} order = @order homes {rows}"
    inputs = 'inputs ["x"] dims [0] axes []'
    lines = [f"piper.step @train phase = bucketed mesh = @mesh {inputs} {facts} (%x: !x) {{"]
    for chunk, sources in enumerate(forward):
        operands = [f"%f{source}" for source in sources] or ["%x"]
        lines.append(f"  %f{chunk} = run @c{chunk}$F{_operands(operands)} -> !x")
    for chunk in reversed(range(len(backward))):
        operands = [*(f"%d{source}" for source in backward[chunk]), f"%f{chunk}"]
        call = f"run @c{chunk}$B{_operands(operands)} -> (!x, !x)"
        lines += [f"  %d{chunk}, %w{chunk} = {call}", f'  output "w{chunk}" %w{chunk} : !x']
    return "\n".join([*lines, f'  output "f" %f{len(forward) - 1} : !x', "}", ""])


def _operands(names: Sequence[str]) -> str:
    return f"({', '.join(names)}) : ({', '.join('!x' for _ in names)})"


def _needs(
    stage_of: Sequence[int],
    forward: Sequence[Sequence[int]],
    backward: Sequence[Sequence[int]],
) -> set[tuple[int, str, int, str]]:
    """What stage in which direction needs what other: (1, "F", 0, "F"), (0, "B", 1, "B")."""
    found = set()
    for chunk, stage in enumerate(stage_of):
        found |= {(stage, "F", stage_of[source], "F") for source in forward[chunk]}
        found |= {(stage, "B", stage_of[source], "B") for source in backward[chunk]}
        found.add((stage, "B", stage, "F"))
    return {(s, way, t, other) for s, way, t, other in found if (s, way) != (t, other)}


def _table(
    draw: Draw[Any], graph: PlacedGraph, needs: set[tuple[int, str, int, str]]
) -> list[list[Cell]]:
    """A random order of all cells that keeps to `needs`, cut into rows."""
    rows: list[list[Cell]] = [[] for _ in graph.table]
    left = [
        (stage, pass_, microbatch)
        for microbatch in range(graph.microbatches)
        for stage in range(graph.stages)
        for pass_ in ("F", *draw(st.sampled_from(("B", "IW"))))
    ]
    while left:
        waiting = {(stage, pass_.replace("I", "B"), m) for stage, pass_, m in left}
        ready = [cell for cell in left if not _is_blocked(cell, waiting, needs)]
        cell = draw(st.sampled_from(ready))
        left.remove(cell)
        rows[graph.home(cell[0], cell[2])].append(cell)
    return rows


def _is_blocked(cell: Cell, waiting: set[Cell], needs: set[tuple[int, str, int, str]]) -> bool:
    stage, pass_, microbatch = cell
    if pass_ == "W":
        return (stage, "B", microbatch) in waiting
    return any(
        (other, way, microbatch) in waiting
        for user, its_way, other, way in needs
        if (user, its_way) == (stage, pass_.replace("I", "B"))
    )
