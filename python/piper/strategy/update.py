"""update: how parameters change at the end of a step."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from piper_runtime import LossScale
from piper_runtime.states.loss_scale import check_loss_scale
from torch import nn
from torch.optim import Optimizer

from piper.strategy.directive import Directive, check_dtype
from piper.strategy.text import element_name, number, quoted

OptimizerFactory = Callable[[list[nn.Parameter]], Optimizer]


@dataclass(frozen=True, repr=False)
class Update(Directive):
    """Step an optimizer made by `factory` from the parameters that a rank holds.

    The factory is called once per bucket, so the optimizer must work element by element. One that
    is marked by `piper.takes_names` is given pairs of name and parameter, to make groups by name.
    `clip` bounds the gradient's norm over all parameters and ranks; None leaves it as it is. With
    `master_dtype` the optimizer updates values of that dtype, and the model computes with copies of
    its own dtype, such as bfloat16, made anew after each step (Micikevicius et al., 2018);
    `replicate(reduce_dtype=)` says in which dtype gradients are summed.

    With `skip_nonfinite` a step whose gradient norm is not finite changes neither values nor what
    the optimizer keeps, on all ranks alike; for that the host waits for the norm in every step.
    `loss_scale` multiplies losses before the backward pass, and gradients are divided by it before
    they are clipped and used, so that narrow ones do not round to zero: a number, or a `LossScale`,
    which changes, and for which steps are skipped too. All that is reported is unscaled.

    Raises:
        TypeError: a factory that cannot be called, another type of clip, skip_nonfinite or
            loss_scale.
        ValueError: a clip that is not above 0, a master dtype that is not floating-point, a
            loss_scale that is not positive and finite.
    """

    factory: OptimizerFactory
    clip: float | None = None
    master_dtype: torch.dtype | None = None
    skip_nonfinite: bool = False
    loss_scale: float | LossScale | None = None

    def __post_init__(self) -> None:
        """Check the fields."""
        if not callable(self.factory):
            raise TypeError(
                "update factory must be callable as factory(parameters) -> torch.optim.Optimizer, "
                f"got {self.factory!r}"
            )
        clip: object = self.clip
        if clip is not None and (isinstance(clip, bool) or not isinstance(clip, int | float)):
            raise TypeError(f"update clip must be a number above 0 or None, got {clip!r}")
        if self.clip is not None and not self.clip > 0:
            raise ValueError(f"update clip must be above 0 or None, got {self.clip!r}")
        check_dtype("update master_dtype", self.master_dtype)
        if not isinstance(self.skip_nonfinite, bool):
            raise TypeError(f"update skip_nonfinite must be a bool, got {self.skip_nonfinite!r}")
        if self.loss_scale is not None and not isinstance(self.loss_scale, LossScale):
            check_loss_scale("update loss_scale", self.loss_scale)

    @property
    def skips(self) -> bool:
        """Whether a step whose gradients are not finite changes nothing."""
        return self.skip_nonfinite or isinstance(self.loss_scale, LossScale)

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
        clip = "" if self.clip is None else f" clip = {number(self.clip)}"
        dtype = self.master_dtype
        master = "" if dtype is None else f" master = {element_name(dtype)}"
        skip = " skip_nonfinite" if self.skips else ""
        return (
            f"piper.do.update <all> optimizer = {quoted(self.label)}{clip}{master}{skip}"
            f"{self._scale_text()}"
        )

    def _scale_text(self) -> str:
        scale = self.loss_scale
        if scale is None:
            return ""
        numbers: tuple[float, ...] = (
            (scale,)
            if not isinstance(scale, LossScale)
            else (scale.initial, scale.growth, scale.backoff, scale.interval)
        )
        return f" loss_scale = [{', '.join(number(value) for value in numbers)}]"

    def facts(self) -> Mapping[str, object]:
        """See `Directive`."""
        return {
            "optimizer factory": self.factory,
            "gradient clip": self.clip,
            "master dtype": self.master_dtype,
            "skip of steps that are not finite": self.skips,
            "loss scale": self.loss_scale,
        }


def update(
    factory: OptimizerFactory,
    *,
    clip: float | None = None,
    master_dtype: torch.dtype | None = None,
    skip_nonfinite: bool = False,
    loss_scale: float | LossScale | None = None,
) -> Update:
    """Step an optimizer made by `factory` at the end of each step; see `Update`."""
    return Update(factory, clip, master_dtype, skip_nonfinite, loss_scale)


def _importable_name(module: str | None) -> str | None:
    """A module's name; of a main program started by `python -m`, the name it can be imported by."""
    if module is None or module not in sys.modules:
        return None
    if module != "__main__":
        return module
    spec = sys.modules[module].__spec__
    return None if spec is None else spec.name
