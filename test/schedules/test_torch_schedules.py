"""Torch's own schedules, action by action, and its CSV files."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from piper.schedules import SCHEDULES, Table, generate, homes_of
from torch.distributed.pipelining.schedules import (
    PipelineScheduleMulti,
    PipelineScheduleSingle,
    _Action,
    _validate_schedule,
    get_schedule_class,
)

SHARED = [name for name in SCHEDULES if name not in ("ZBH1", "ZBH2", "DualPipe")]


def torch_schedule(name: str, ranks: int, microbatches: int, chunks: int) -> Any:
    """Torch's object, made without processes."""
    made: Any = get_schedule_class(name)
    stages = [
        SimpleNamespace(
            stage_index=rank_stage,
            num_stages=ranks * chunks,
            group_size=ranks,
            group_rank=0,
            has_backward=True,
            submod=None,
        )
        for rank_stage in range(chunks)
    ]
    if issubclass(made, PipelineScheduleSingle):
        return made(stages[0], microbatches)
    assert issubclass(made, PipelineScheduleMulti)
    return made(stages, microbatches)


def cells_of(actions: Any) -> list[str]:
    texts = [str(action) for action in actions if action is not None]
    return [text for text in texts if not text.endswith("REDUCE_GRAD")]


def test_torch_has_seven() -> None:
    assert len(SHARED) == 7


@given(st.sampled_from(SHARED), st.integers(1, 5), st.integers(1, 14), st.integers(2, 3))
def test_order_is_torchs(name: str, ranks: int, microbatches: int, chunks: int) -> None:
    schedule = SCHEDULES[name]
    chunks = schedule.chunks or chunks
    assume(name != "1F1B" or microbatches >= ranks)  # torch refuses fewer
    try:
        table = generate(name, ranks=ranks, microbatches=microbatches, chunks=chunks)
    except ValueError:
        with pytest.raises(ValueError, match="microbatches"):
            torch_schedule(name, ranks, microbatches, chunks)
        return
    order = torch_schedule(name, ranks, microbatches, chunks).pipeline_order
    theirs = [cells_of(order[rank]) for rank in range(ranks)]
    if name == "1F1B":
        # Torch's picture, not its run, counts the forwards of the last rank from 1.
        last = ranks - 1
        theirs[last] = [
            f"{last}F{int(cell.partition('F')[2]) - 1}" if "F" in cell else cell
            for cell in theirs[last]
        ]
    assert [row.split() for row in table.lines()] == theirs


@given(st.sampled_from(sorted(set(SHARED) | {"ZBH1", "ZBH2"})), st.integers(1, 6))
def test_is_valid_for_torch(name: str, ranks: int) -> None:
    microbatches = 2 * ranks
    table = generate(name, ranks=ranks, microbatches=microbatches)
    order = {
        rank: [_Action.from_str(str(cell)) for cell in row] for rank, row in enumerate(table.rows)
    }
    stages = homes_of(name, ranks, microbatches).stages
    where = _validate_schedule(order, ranks, stages, microbatches)
    homes = homes_of(name, ranks, microbatches)
    assert all(homes.of(stage, 0) == rank for stage, rank in where.items())


@pytest.mark.parametrize("name", ["Interleaved1F1B", "ZBVZeroBubble", "DualPipeV"])
def test_reads_torchs_files(name: str, tmp_path: Path) -> None:
    theirs = torch_schedule(name, 2, 4, 2)
    theirs._dump_csv(tmp_path / "compute.csv", format="compute_only")
    theirs._dump_csv(tmp_path / "all.csv", format="compute_comms")
    table = generate(name, ranks=2, microbatches=4)
    assert Table.read_csv(tmp_path / "compute.csv", ragged=True).without_idle() == table
    every = Table.read_csv(tmp_path / "all.csv", ragged=True)
    for rank, row in enumerate(every.without_idle().rows):
        assert list(map(str, row)) == list(map(str, theirs.pipeline_order_with_comms[rank]))
    kinds = {str(cell).strip("0123456789") for row in every.rows for cell in row}
    assert {"SEND_F", "RECV_F", "SEND_B", "RECV_B", "UNSHARD", "REDUCE_GRAD"} <= kinds
    # Torch computes the later half of a backward when it likes: only the order of actions is ours.
    assert every.compute_only().without_idle() == table


@pytest.mark.parametrize("name", ["Interleaved1F1B", "ZBVZeroBubble", "DualPipeV"])
def test_torch_reads_our_files(name: str, tmp_path: Path) -> None:
    table = generate(name, ranks=2, microbatches=6)
    table.write_csv(tmp_path / "ours.csv")
    theirs = torch_schedule(name, 2, 6, 2)
    theirs._load_csv(str(tmp_path / "ours.csv"), format="compute_only")
    order = theirs.pipeline_order
    assert [cells_of(order[rank]) for rank in range(2)] == [r.split() for r in table.lines()]


def test_every_kind_of_action_round_trips(tmp_path: Path) -> None:
    texts = (
        "2F0 0B11 3I1 10W2 1SEND_F1 2RECV_F0 1SEND_B1 2RECV_B0 1UNSHARD 1RESHARD 1REDUCE_GRAD "
        "(0F1;3B0)OVERLAP_F_B (0F2;3I1)OVERLAP_F_B"
    )
    table = Table.parse([texts])
    assert table.lines() == (texts,)
    assert [str(_Action.from_str(text)) for text in texts.split()] == texts.split()
    table.write_csv(tmp_path / "all.csv")
    assert Table.read_csv(tmp_path / "all.csv") == table
