"""Who waits when groups are made: their members, and nobody else."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
from torchrun import torchrun

WORKER = Path(__file__).with_name("group_creation_worker.py")
BARRIER = {"TORCH_DIST_INIT_BARRIER": "1"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("variables", "seconds", "others"),
    [
        pytest.param({}, 60, [1, 3], id="as torch has it"),
        pytest.param(BARRIER, 3, [], id="with torch's barrier"),
    ],
)
def test_others_go_on_while_a_member_sleeps_in_the_creation(
    tmp_path: Path, variables: Mapping[str, str], seconds: int, others: list[int]
) -> None:
    """Rank 2 sleeps in a group with rank 0: by the end of that, the others have all their groups.

    Unless torch is told to make a barrier of all ranks: then nobody has.
    """
    done = torchrun(WORKER, tmp_path, seconds, count=4, variables=variables)
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "seen.json").read_text()) == others
    assert len(list(tmp_path.glob("started*"))) == 4
