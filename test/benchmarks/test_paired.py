"""How sides are compared."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator

import pytest
import torch
from paired import Clock, Ratio, Sizes, check_losses, compare, interval, loss_fn, rounds

SIZES = Sizes(layers=1, width=8, context=4, batch=4, microbatches=2)


def test_interval_of_equal_ratios_is_a_point() -> None:
    low, high = interval([math.log(1.5)] * 10)
    assert low == pytest.approx(1.5)
    assert high == pytest.approx(1.5)


def test_interval_covers_the_mean_as_often_as_it_says() -> None:
    """Of 200 samples whose true mean ratio is 1; the bootstrap of few rounds is a bit too narrow."""
    draw, covered = random.Random(0), 0
    for _ in range(200):
        low, high = interval([draw.gauss(0.0, 0.1) for _ in range(20)])
        covered += low <= 1.0 <= high
    assert 0.88 <= covered / 200 <= 0.98


def test_ratio_is_the_geometric_mean_of_rounds() -> None:
    ratio = Ratio.of([2.0, 1.0], [1.0, 2.0])
    assert ratio.mean == pytest.approx(1.0)
    assert ratio.low == pytest.approx(0.5)
    assert ratio.high == pytest.approx(2.0)
    assert str(ratio) == "1.000 (95 %: 0.500 to 2.000)"


def test_rounds_measure_every_side_once_in_changing_order() -> None:
    seen: list[str] = []

    def side(name: str) -> float:
        seen.append(name)
        return float(len(seen))

    found = rounds({"a": lambda: side("a"), "b": lambda: side("b")}, 20)
    each = [tuple(seen[i : i + 2]) for i in range(0, len(seen), 2)]
    assert set(each) == {("a", "b"), ("b", "a")}
    assert sorted(found["a"] + found["b"]) == list(range(1, 41))


def test_microbatches_are_the_batch() -> None:
    batch = SIZES.data()
    parts = SIZES.parts(batch)
    assert len(parts) == 2
    assert torch.equal(torch.cat([part["ids"] for part in parts]), batch["ids"])
    model = SIZES.model()
    mean = sum(loss_fn(model, part) for part in parts) / 2
    torch.testing.assert_close(mean, loss_fn(model, batch))


def losses(*values: float) -> Iterator[float]:
    return iter(values)


def test_sides_with_other_losses_are_not_compared() -> None:
    same, other = losses(5.0, 4.0), losses(5.0, 4.1)
    with pytest.raises(ValueError, match=r"losses of piper, \[5.0, 4.0\], got \[5.0, 4.1\] of it"):
        check_losses({"piper": lambda: next(same), "it": lambda: next(other)})


def test_comparison_prints_a_ratio(capsys: pytest.CaptureFixture[str]) -> None:
    compare("it", lambda: 1.0, lambda: 1.0, 4)
    printed = capsys.readouterr().out
    assert printed.startswith("piper ")
    assert "ratio" in printed
    assert printed.endswith("4 pairs\n")


def test_clock_adds_up_calls() -> None:
    times = iter([0.0, 1.0, 5.0, 7.0])
    clock = Clock(lambda: next(times))
    double = clock.wrap("double", lambda x: 2 * x)
    assert [double(1), double(2)] == [2, 4]
    assert clock.seconds == {"double": 3.0}
    assert clock.calls == {"double": 2}
    clock.clear()
    assert not clock.seconds
