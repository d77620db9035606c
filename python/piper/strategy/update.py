"""update: how parameters change at the end of a step."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import nn
from torch.optim import Optimizer

from piper.strategy.directive import Directive, check_dtype
from piper.strategy.text import element_name, quoted

OptimizerFactory = Callable[[list[nn.Parameter]], Optimizer]


@dataclass(frozen=True, repr=False)
class Update(Directive):
    """Step an optimizer made by `factory` from the parameters that a rank holds.

    The factory is called once per bucket, so the optimizer must work element by element.
    `clip` bounds the gradient's norm over all parameters and ranks; None leaves it as it is. With
    `master_dtype` the optimizer updates values of that dtype, and the model computes with copies of
    its own dtype, such as bfloat16, made anew after each step (Micikevicius et al., 2018);
    `replicate(reduce_dtype=)` says in which dtype gradients are summed.

    Raises:
        TypeError: a factory that cannot be called.
        ValueError: a clip that is not above 0, a master dtype that is not floating-point.
    """

    factory: OptimizerFactory
    clip: float | None = None
    master_dtype: torch.dtype | None = None

    def __post_init__(self) -> None:
        """Check the fields."""
        if not callable(self.factory):
            raise TypeError(
                "update factory must be callable as factory(parameters) -> torch.optim.Optimizer, "
                f"got {self.factory!r}"
            )
        if self.clip is not None and not self.clip > 0:
            raise ValueError(f"update clip must be above 0 or None, got {self.clip!r}")
        check_dtype("update master_dtype", self.master_dtype)

    @property
    def import_path(self) -> str | None:
        """The factory as "module:qualname" where another process can import it, else None."""
        module = _importable_name(getattr(self.factory, "__module__", None))
        path = getattr(self.factory, "__qualname__", None)
        if module is None or path is None or "<" in path:
            return None
        found: object = sys.modules[self.factory.__module__]
        for name in path.split("."):
            found = getattr(found, name, None)
        return f"{module}:{path}" if found is self.factory else None

    @property
    def label(self) -> str:
        """A text for the factory, the same in every process: its import path, or else its name."""
        own = getattr(self.factory, "__qualname__", type(self.factory).__qualname__)
        return self.import_path or str(own)

    def op(self) -> str:
        """See `Directive`."""
        clip = "" if self.clip is None else f" clip = {float(self.clip)!r}"
        dtype = self.master_dtype
        master = "" if dtype is None else f" master = {element_name(dtype)}"
        return f"piper.do.update <all> optimizer = {quoted(self.label)}{clip}{master}"

    def facts(self) -> Mapping[str, object]:
        """See `Directive`."""
        return {
            "optimizer factory": self.factory,
            "gradient clip": self.clip,
            "master dtype": self.master_dtype,
        }


def update(
    factory: OptimizerFactory,
    *,
    clip: float | None = None,
    master_dtype: torch.dtype | None = None,
) -> Update:
    """Step an optimizer made by `factory` at the end of each step; see `Update`."""
    return Update(factory, clip, master_dtype)


def _importable_name(module: str | None) -> str | None:
    """A module's name; of a main program started by `python -m`, the name it can be imported by."""
    if module is None or module not in sys.modules:
        return None
    if module != "__main__":
        return module
    spec = sys.modules[module].__spec__
    return None if spec is None else spec.name
