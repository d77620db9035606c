"""What the cells of a table cost."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from piper.schedules import Action, Pair, Pass

__all__ = ["Costs"]

Times = float | Sequence[float]
_PASSES: tuple[Pass, ...] = ("F", "B", "I", "W")


@dataclass(frozen=True)
class Costs:
    """The time of every action and pair, in one unit of the user's choice.

    `passes[pass]` holds a time per stage, or one for all stages. `pair` is the time of a forward
    and a backward that overlap: of every pair, or by (stage of the forward, stage of the backward);
    a pair that it does not give takes as long as its two members one after the other. `write` and
    `read` keep them as JSON.

    Raises:
        ValueError: a time that is negative or not finite, or passes that give different numbers of
            stages.
    """

    passes: Mapping[Pass, tuple[float, ...]]
    pair: float | Mapping[tuple[int, int], float] | None = None

    def __post_init__(self) -> None:
        """Check the times."""
        for what, time in self._all():
            if not (time >= 0 and math.isfinite(time)):
                raise ValueError(f"cost of {what} must be finite and at least 0, got {time}")
        counts = {len(times) for times in self.passes.values()} - {1}
        if len(counts) > 1 or 0 in counts:
            lengths = ", ".join(f"{name} {len(times)}" for name, times in self.passes.items())
            raise ValueError(f"costs must give one time or as many as stages, got {lengths}")

    @classmethod
    def uniform(
        cls,
        F: float = 1.0,  # noqa: N803 (passes are called so everywhere)
        *,
        B: float | None = None,  # noqa: N803
        I: float = 1.0,  # noqa: N803
        W: float = 1.0,  # noqa: N803
        pair: float | None = None,
    ) -> Costs:
        """The same times for all stages; a full backward takes I + W unless B is given."""
        return cls.per_stage(F, B=B, I=I, W=W, pair=pair)

    @classmethod
    def per_stage(
        cls,
        F: Times = 1.0,  # noqa: N803
        *,
        B: Times | None = None,  # noqa: N803
        I: Times = 1.0,  # noqa: N803
        W: Times = 1.0,  # noqa: N803
        pair: float | Mapping[tuple[int, int], float] | None = None,
    ) -> Costs:
        """Times of each stage, or one number for all; B is I + W, stage by stage, unless given."""
        inputs, weights = _tuple(I), _tuple(W)
        if B is None:
            stages = max(len(inputs), len(weights))
            B = [_of(inputs, stage) + _of(weights, stage) for stage in range(stages)]  # noqa: N806
        passes: dict[Pass, tuple[float, ...]] = {
            "F": _tuple(F),
            "B": _tuple(B),
            "I": inputs,
            "W": weights,
        }
        return cls(MappingProxyType(passes), pair)

    @classmethod
    def read(cls, path: str | Path) -> Costs:
        """Read what `write` wrote.

        Raises:
            ValueError: the file holds no costs.
            OSError: it cannot be read.
        """
        try:
            raw = json.loads(Path(path).read_text())
            passes = {name: tuple(map(float, raw[name])) for name in _PASSES}
            return cls(MappingProxyType(passes), _read_pair(raw.get("pair")))
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(
                f"{path}: expected costs with a list of times for each of F, B, I and W, "
                f"got {type(error).__name__}: {error}"
            ) from None

    def write(self, path: str | Path) -> None:
        """Write them as JSON: a list of times per pass, of one or as many as stages; `pair` is a
        number, or holds [stage of the forward, stage of the backward, time] of each.
        """
        raw: dict[str, Any] = {name: list(times) for name, times in self.passes.items()}
        if isinstance(self.pair, Mapping):
            raw["pair"] = [[*stages, time] for stages, time in self.pair.items()]
        elif self.pair is not None:
            raw["pair"] = self.pair
        Path(path).write_text(json.dumps(raw, indent=1) + "\n")

    def of(self, cell: Action | Pair) -> float:
        """The time of a cell.

        Raises:
            ValueError: a stage for which there is no cost.
        """
        if isinstance(cell, Action):
            return self._of_action(cell)
        pair = self.pair
        if isinstance(pair, Mapping):
            pair = pair.get((cell.forward.stage, cell.backward.stage))
        if pair is None:
            return self._of_action(cell.forward) + self._of_action(cell.backward)
        return pair

    def check_stages(self, stages: int) -> None:
        """Check that no pass has times of more stages than there are.

        Raises:
            ValueError: names the pass and gives its times.
        """
        for name, times in self.passes.items():
            if len(times) > max(1, stages):
                raise ValueError(f"costs of {name} must be of {stages} stages, got {times}")

    def _of_action(self, action: Action) -> float:
        times = self.passes[action.pass_]
        if len(times) > 1 and action.stage >= len(times):
            raise ValueError(
                f"costs of {action.pass_} must reach stage {action.stage}, got {times}"
            )
        return _of(times, action.stage)

    def _all(self) -> Iterator[tuple[str, float]]:
        for name, times in self.passes.items():
            yield from ((name, time) for time in times)
        if isinstance(self.pair, Mapping):
            yield from (("a pair", time) for time in self.pair.values())
        elif self.pair is not None:
            yield "a pair", self.pair


def _tuple(times: Times) -> tuple[float, ...]:
    return tuple(times) if isinstance(times, Sequence) else (times,)


def _of(times: tuple[float, ...], stage: int) -> float:
    return times[stage] if len(times) > 1 else times[0]


def _read_pair(raw: Any) -> float | Mapping[tuple[int, int], float] | None:
    if isinstance(raw, list):
        return {(int(forward), int(backward)): float(time) for forward, backward, time in raw}
    return None if raw is None else float(raw)
