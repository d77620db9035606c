"""remat: what a backward pass computes again instead of keeping it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from piper.strategy.directive import Directive
from piper.strategy.text import quoted

Policy = Literal["min_cut", "full", "save"]

_POLICIES = ("min_cut", "full", "save")
_TAG = re.compile(r"[\w*?]+")
_OP = re.compile(r"[\w.*?]+")


@dataclass(frozen=True, repr=False)
class Remat(Directive):
    """Which values of the forward pass the backward pass of a chunk computes again.

    `policy` is one of

    - ``"min_cut"``, which also holds where no directive says anything: as few bytes are kept as is
      possible without computing a matrix product, a convolution or an attention again
    - ``"full"``: only what comes from other chunks is kept
    - ``"save"``: nothing is computed again

    It holds for chunks whose tag matches the glob `tag` (None: for all), and only for ops whose
    name, such as ``aten.gelu.default``, matches one of the globs `ops` (None: for all). Ops inside
    ``torch.utils.checkpoint`` are computed again under every policy. Results under ``"min_cut"`` and
    ``"save"`` are the same to the last bit. Under ``"full"``, and where ops are marked, a kept value
    whose memory is not contiguous is kept as a contiguous copy: of the same elements, but an op that
    reads it may sum in another order, so that its results may differ by rounding.

    Raises:
        ValueError: an option outside its range, or `ops` beside ``"save"``.
        TypeError: `ops` that is one string.
    """

    tag: str | None = None
    policy: Policy = "min_cut"
    ops: Sequence[str] | None = None

    def __post_init__(self) -> None:
        """Check the fields."""
        if self.policy not in _POLICIES:
            raise ValueError(f"remat policy must be one of {_POLICIES}, got {self.policy!r}")
        if self.tag is not None:
            _check_glob("tag", self.tag, _TAG)
        if self.ops is None:
            return
        if isinstance(self.ops, str):
            raise TypeError(f"remat ops must be a sequence of globs, got {self.ops!r}")
        object.__setattr__(self, "ops", tuple(self.ops))
        if self.policy == "save":
            raise ValueError("remat ops must be None for policy 'save', which computes none again")
        if not self.ops:
            raise ValueError("remat ops must be at least one glob, or None for all ops, got none")
        for glob in self.ops:
            _check_glob("ops", glob, _OP)

    def op(self) -> str:
        """See `Directive`."""
        select = "all" if self.tag is None else f"tag = {quoted(self.tag)}"
        ops = "" if self.ops is None else f" ops [{', '.join(map(quoted, self.ops))}]"
        return f"piper.do.remat <{select}> policy = {quoted(self.policy)}{ops}"

    def facts(self) -> Mapping[str, object]:
        """See `Directive`; that globs select the same chunk is found by the compiler."""
        chunks = "all chunks" if self.tag is None else f"chunks {self.tag!r}"
        return {f"policy of {chunks}": self.policy, f"ops of {chunks}": self.ops}


def remat(
    tag: str | None = None, *, policy: Policy = "min_cut", ops: Sequence[str] | None = None
) -> Remat:
    """Compute values again in the backward pass of the chunks of `tag`; see `Remat`."""
    return Remat(tag, policy, ops)


def _check_glob(what: str, glob: object, pattern: re.Pattern[str]) -> None:
    if not isinstance(glob, str) or not pattern.fullmatch(glob):
        raise ValueError(f"remat {what} must be a name, in which * and ? may stand, got {glob!r}")
