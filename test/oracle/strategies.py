"""Strategies by a few numbers, and compiling many of them from one capture."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

import piper
import torch
from oracle import LossFunction
from piper.frontend import Capture, capture, capture_eval
from piper.frontend.example import slice_example
from piper.strategy import Directive
from piper_runtime import Program
from piper_runtime.states.optimizer import OptimizerFactory
from torch import nn


@dataclass(frozen=True)
class Case:
    """A strategy of the matrix; an axis of size 0 is not in the mesh."""

    schedule: str = "1F1B"
    pp: int = 1
    dp: int = 1
    microbatches: int = 1

    def __str__(self) -> str:
        """As a test id."""
        return f"{self.schedule}-pp{self.pp}-dp{self.dp}-m{self.microbatches}"

    @property
    def parts(self) -> int:
        """How many microbatches the batch of all ranks holds."""
        return max(1, self.dp) * self.microbatches

    def strategy(
        self,
        tags: Mapping[str, str],
        factory: OptimizerFactory | None = None,
        *,
        clip: float | None = None,
        dims: Mapping[str, int | None] | None = None,
        stages: int | tuple[int, ...] | None = None,
        reduce_dtype: torch.dtype | None = None,
        more: Iterable[Directive] = (),
    ) -> piper.Strategy:
        """The whole strategy, for a model with these annotations."""
        directives: list[Directive] = [
            piper.annotate(tags),
            piper.split(microbatches=self.microbatches, dims=dims),
            piper.order(self.schedule),
            *more,
        ]
        if self.pp:
            directives.append(piper.place(stages=stages or self.pp))
        if self.mesh.keys() - {"pp"}:
            directives.append(self.replicate(reduce_dtype))
        if factory is not None:
            directives.append(piper.update(factory, clip=clip))
        return piper.Strategy(mesh=self.mesh, directives=directives)

    @property
    def mesh(self) -> dict[str, int]:
        """The size of each axis."""
        return {name: size for name, size in (("pp", self.pp), ("dp", self.dp)) if size}

    def replicate(self, reduce_dtype: torch.dtype | None) -> Directive:
        """How ranks of a data axis hold states and sum gradients."""
        return piper.replicate(axis="dp", reduce_dtype=reduce_dtype)


class Captures:
    """Captures of one model and loss, which depend on the shape of one microbatch alone.

    Capturing is most of the time of a compilation, so tests that try many strategies on one model
    share it.
    """

    def __init__(self, model: nn.Module, loss_fn: LossFunction) -> None:
        """Capture nothing yet."""
        self.model = model
        self._loss_fn = loss_fn
        self._taken: dict[object, Capture] = {}

    def compile(self, strategy: piper.Strategy, batch: Any) -> Program:
        """What `piper.compile` returns for the model."""
        with (
            mock.patch("piper.compiler.capture", self._sharing(capture)),
            mock.patch("piper.compiler.capture_eval", self._sharing(capture_eval)),
        ):
            return piper.compile(self.model, self._loss_fn, strategy, batch)

    def _sharing(self, take: Callable[..., Capture]) -> Callable[..., Capture]:
        def taken(
            model: nn.Module,
            loss_fn: LossFunction,
            batch: Any,
            *,
            microbatches: int,
            data_shards: int,
            held: int,
            **options: Any,
        ) -> Capture:
            sizes: dict[str, Any] = {"microbatches": microbatches, "data_shards": data_shards}
            example = slice_example(
                batch, microbatches=microbatches, data_shards=held, dims=options["dims"]
            )
            key = (take.__name__, example.inputs, tuple(options["annotations"].items()))
            if key not in self._taken:
                self._taken[key] = take(model, loss_fn, batch, held=held, **sizes, **options)
            return replace(self._taken[key], **sizes)

        return taken
