"""How far a value is off: packs part by part, on the scale of the largest of all."""

from __future__ import annotations

import pytest
import torch
from piper_runtime import CheckError
from piper_runtime.checking.gaps import find_gap
from torch import Tensor

PACK = (torch.tensor([100.0]), torch.tensor([1.0, 2.0]))


def test_parts_of_a_pack_are_measured_by_its_largest_element() -> None:
    off = (PACK[0], PACK[1] + 0.5)
    assert find_gap("pack", PACK, PACK, None) == 0.0
    assert find_gap("pack", off, PACK, 0.01) == pytest.approx(0.005)
    with pytest.raises(CheckError, match=r"pack, part 1 differs .* by 5\.0e-03 .* bound 1e-03"):
        find_gap("pack", off, PACK, 0.001)


@pytest.mark.parametrize(
    ("value", "got"), [(PACK[0], "a Tensor"), (PACK[:1], "one of 1"), ((*PACK, *PACK), "one of 4")]
)
def test_what_is_no_such_pack_is_refused(value: Tensor | tuple[Tensor, ...], got: str) -> None:
    with pytest.raises(CheckError, match=f"pack expected a pack of 2, got {got}"):
        find_gap("pack", value, PACK, None)
