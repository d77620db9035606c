"""Cases whose ranks share out states."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import piper
import torch
from piper.schedules import SCHEDULES
from piper.strategy import Directive
from strategies import Case

__all__ = ["Sharded"]


@dataclass(frozen=True)
class Sharded(Case):
    """A case whose `dp` ranks share out states, beside `rep` groups of them that do not."""

    zero: int = 0
    reduce: Literal["last", "each"] | None = None
    gather: Literal["each", "group", "step"] | None = None
    prefetch: int | None = None
    limit: int | None = None
    rep: int = 0
    bucket_size: int = 25_000_000

    def __str__(self) -> str:
        """As a test id."""
        options = [f"zero{self.zero}", self.reduce, self.gather]
        options += [f"ahead{self.prefetch}"] if self.prefetch is not None else []
        options += [f"limit{self.limit}"] if self.limit is not None else []
        options += [f"rep{self.rep}"] if self.rep else []
        return "-".join([super().__str__(), *(option for option in options if option)])

    @property
    def parts(self) -> int:
        """See `Case`."""
        return super().parts * max(1, self.rep)

    @property
    def mesh(self) -> dict[str, int]:
        """See `Case`."""
        if not self.rep:
            return super().mesh
        return {"pp": self.pp, "dp_replicate": self.rep, "dp_shard": self.dp}

    @property
    def stages(self) -> int:
        """How many stages the schedule places on the ranks."""
        schedule = SCHEDULES[self.schedule]
        return schedule.stages(self.pp, schedule.chunks or 2)

    def replicate(self, reduce_dtype: torch.dtype | None) -> Directive:
        """See `Case`."""
        axes = [name for name in self.mesh if name not in ("pp", "tp")]
        shard = [name for name in axes if name != "dp_replicate"]
        return piper.replicate(
            axis=axes,
            zero=self.zero,
            shard=shard if self.rep and self.zero else None,
            bucket_size=self.bucket_size,
            reduce=self.reduce,
            gather=self.gather,
            prefetch=self.prefetch,
            gather_limit=self.limit,
            reduce_dtype=reduce_dtype,
        )
