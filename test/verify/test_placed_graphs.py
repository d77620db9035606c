"""Chunks on random places in the order of random tables, through the passes: what is accepted at L3
and L4 is what the abstract machine finishes.
"""

from __future__ import annotations

import re
from random import Random

import pytest
from brute_force import find_hazard
from compiled import refusal
from hypothesis import find, given
from hypothesis import strategies as st
from machine import read_rows, verify
from mutations import mutate
from piper.mlir import ir
from piper.mlir.passmanager import PassManager
from piper_runtime.errors import DeadlockError, InstructionError
from piper_runtime.mesh import CommSpec
from placed_graphs import PlacedGraph, mutated_tables, placed_graphs
from program_sets import ProgramSet
from row_programs import write_rows
from test_program_sets import FAST, LONG, SEARCH, check_progress

UNROLL = "piper-unroll-microbatches,piper-insert-transfers,piper-insert-reductions"
ORDER = "piper-order-cells,piper-verify"
FAULTS = (DeadlockError, InstructionError)
GRAPHS = st.one_of(placed_graphs(), mutated_tables())
MOVES, SEEDS = st.integers(1, 8), st.integers(0, 2**32 - 1)


def unrolled(graph: PlacedGraph) -> ir.Module:
    module = ir.Module.parse(graph.text)
    PassManager.parse(f"builtin.module({UNROLL})").run(module.operation)
    return module


def cluster_of(module: ir.Module) -> ir.Operation:
    ops = [view.operation for view in module.body.operations]
    return next(op for op in ops if op.name == "piper.cluster")


def check_table(graph: PlacedGraph) -> str | None:
    """Assert that ordering accepts a table if its rows finish; return what it says."""
    cells = [cell for row in graph.table for cell in row]
    if len(set(cells)) < len(cells):
        with ir.Context(), pytest.raises(Exception, match="expected each cell once") as caught:
            ir.Module.parse(graph.text)
        return str(caught.value)
    with ir.Context():
        module = unrolled(graph)
        rows = write_rows(graph, cluster_of(module)) if graph.is_complete() else None
        error = refusal(module.operation, ORDER)
    if not graph.is_complete():
        assert error, graph.table
        assert re.search(r"expected (a cell|cell \w+ in row \d)", error)
        return error
    finished = rows is not None and check_progress(rows, single_queue=False)
    assert (error is None) == finished, (error, graph.table)
    assert error is None or "deadlocks: cells wait for each other in a cycle" in error
    if rows is not None:
        check_progress(rows, single_queue=True)
    return error


def lowered(graph: PlacedGraph, *, moves: int = 0, seed: int = 0) -> ProgramSet:
    """The programs that the passes make, with some instructions moved to other lines."""
    choice = Random(seed)
    with ir.Context():
        module = unrolled(graph)
        PassManager.parse(f"builtin.module({ORDER},piper-lower)").run(module.operation)
        ops = [view.operation for view in module.body.operations]
        comms = [_comm(op) for op in ops if op.name == "piper.comm"]
        if moves:  # programs then are not those of the cluster, but programs all the same
            for op in ops:
                if op.name in ("piper.cluster", "piper.step", "piper.schedule"):
                    op.erase()
        for _ in range(moves):
            mutate(module, "move", choice)
        return ProgramSet(str(module), (graph.axis,), tuple(comms))


def _comm(op: ir.Operation) -> CommSpec:
    name = ir.StringAttr(op.attributes["sym_name"]).value
    return CommSpec(name, (), tuple(ir.DenseI64ArrayAttr(op.attributes["coordinates"])))


def check_moved(programs: ProgramSet) -> tuple[bool, bool] | None:
    """Assert that programs are refused if anything in them may come too early, and else if they do
    not finish; return whether they finish with many queues and with one.
    """
    if any(find_hazard(rows) for rows in read_rows(programs.text)):
        assert not verify(programs.text)
        return None
    many, one = (
        check_progress(programs, single_queue=single_queue, faults=FAULTS)
        for single_queue in (False, True)
    )
    return many, one


def check_programs(graph: PlacedGraph) -> None:
    """Assert that what the passes make of a table that is right is accepted, and finishes."""
    programs = lowered(graph)
    assert check_progress(programs, single_queue=False)
    assert check_progress(programs, single_queue=True)


@FAST
@given(graph=GRAPHS)
def test_tables(graph: PlacedGraph) -> None:
    check_table(graph)


@FAST
@given(graph=placed_graphs())
def test_programs(graph: PlacedGraph) -> None:
    check_programs(graph)


@FAST
@given(graph=placed_graphs(), moves=MOVES, seed=SEEDS)
def test_moved_instructions(graph: PlacedGraph, moves: int, seed: int) -> None:
    check_moved(lowered(graph, moves=moves, seed=seed))


@pytest.mark.slow
@LONG
@given(graph=GRAPHS)
def test_many_tables(graph: PlacedGraph) -> None:
    check_table(graph)


@pytest.mark.slow
@LONG
@given(graph=placed_graphs())
def test_many_programs(graph: PlacedGraph) -> None:
    check_programs(graph)


@pytest.mark.slow
@LONG
@given(graph=placed_graphs(), moves=MOVES, seed=SEEDS)
def test_many_moved_instructions(graph: PlacedGraph, moves: int, seed: int) -> None:
    check_moved(lowered(graph, moves=moves, seed=seed))


@pytest.mark.parametrize("said", ["deadlocks", "a cell", "row", "once", "nothing"])
def test_tables_are_of_every_kind(said: str) -> None:
    find(GRAPHS, lambda g: said in (check_table(g) or "nothing"), settings=SEARCH, random=Random(0))


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(None, id="something comes too early"),
        pytest.param((False, False), id="they do not finish"),
        pytest.param((True, False), id="only queues of their own finish"),
        pytest.param((True, True), id="they finish"),
    ],
)
def test_moved_instructions_are_of_every_kind(kind: tuple[bool, bool] | None) -> None:
    def is_kind(case: tuple[PlacedGraph, int, int]) -> bool:
        graph, moves, seed = case
        return check_moved(lowered(graph, moves=moves, seed=seed)) == kind

    cases = st.tuples(placed_graphs(), MOVES, SEEDS)
    find(cases, is_kind, settings=SEARCH, random=Random(0))
