"""``StepResult``: what one step reports, and its progress line."""

from __future__ import annotations

import resource
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod

from piper_runtime.manifest import Manifest
from piper_runtime.names import dtype_of

__all__ = ["StepResult", "check_peak", "count_tokens", "peak_resident"]

GIB = 1024**3


@dataclass(frozen=True, slots=True)
class StepResult:
    """The report of one training step; printing it gives the progress line.

    ``loss`` is the sum of ``losses``, over all microbatches and ranks and the same on every rank;
    ``grad_norm`` is the norm before clipping, or None if the program computes none; ``seconds`` is
    wall time; ``memory`` are peak bytes so far of the rank ``memory_of``, either ``allocated`` or
    ``counted``, as ``memory_how`` says (see ``MemoryMeter``); ``tokens`` counts the whole batch of
    all ranks (see ``Trainer``), ``devices`` the ranks of the mesh.

    ``skipped`` says that the gradients were not finite and the step changed nothing, which happens
    with ``update(skip_nonfinite=True)`` only; ``num_skipped`` counts such steps so far, and
    ``loss_scale`` is what this step's losses were multiplied by (see ``LossScale``); all else that
    is reported is unscaled. Both are None without the option.

    What follows is None where it is not known. ``memory_predicted`` is what the compiler says of
    the same rank, plus what its optimizer keeps; ``resident`` are peak bytes of this process, with
    Python and torch. ``flops`` are those of the model for the whole
    batch, ``executed_flops`` those that the ranks compute, with what they compute again to save
    memory; both come from the manifest. ``peak_flops`` is what a device could do in a second. The
    rest is there when steps are measured (see ``Metrics``): ``slowest`` is the rank whose compute
    stream is busy for the longest, and ``lag`` by how much longer than the median of all ranks, as
    a fraction. ``bubble`` and ``exposed`` are fractions of the step in which that rank does not
    compute, and in which it only communicates.
    """

    step: int
    loss: float
    losses: Mapping[str, float]
    grad_norm: float | None
    seconds: float
    memory: int
    memory_of: str
    memory_how: str
    tokens: int
    devices: int
    skipped: bool = False
    num_skipped: int | None = None
    loss_scale: float | None = None
    memory_predicted: int | None = None
    resident: int | None = None
    flops: int | None = None
    executed_flops: int | None = None
    peak_flops: float | None = None
    bubble: float | None = None
    exposed: float | None = None
    slowest: str | None = None
    lag: float | None = None

    @property
    def tokens_per_second(self) -> float:
        """Tokens per second and device."""
        return self.tokens / self.seconds / self.devices

    @property
    def tflops(self) -> float | None:
        """10^12 FLOPs of the model per second and device."""
        return None if self.flops is None else self._rate(self.flops) / 1e12

    @property
    def mfu(self) -> float | None:
        """The fraction of a device's peak that goes into the model's FLOPs."""
        return self._share(self.flops)

    @property
    def hfu(self) -> float | None:
        """The fraction of a device's peak that is used, recomputation included."""
        return self._share(self.executed_flops)

    def metrics(self) -> dict[str, float | str]:
        """Return all that is known by key, as ``Metrics`` writes it."""
        known: dict[str, float | str | None] = {
            "step": self.step,
            "loss": self.loss,
            "grad_norm": self.grad_norm,
            "skipped": self.num_skipped,
            "loss_scale": self.loss_scale,
            "seconds": self.seconds,
            "tokens": self.tokens,
            "tps": self.tokens_per_second,
            "memory": self.memory,
            "memory_of": self.memory_of,
            "memory_how": self.memory_how,
            "memory_predicted": self.memory_predicted,
            "resident": self.resident,
            "tflops": self.tflops,
            "mfu": self.mfu,
            "hfu": self.hfu,
            "bubble": self.bubble,
            "exposed": self.exposed,
            "slowest": self.slowest,
            "lag": self.lag,
        }
        if len(self.losses) > 1:
            known |= {f"loss/{name}": value for name, value in self.losses.items()}
        return {key: value for key, value in known.items() if value is not None}

    def __str__(self) -> str:
        """Return ``step: 1 loss: 8.041234 grad_norm: 1.33 memory: 1.02GiB (rank 0) tps: 27,483``.

        Behind the memory comes the predicted one, and behind all what else is known, ``tflops: 1.97
        mfu: 0.20% bubble: 11.30% exposed: 0.41% slowest: rank 3 (pp 1, dp 1) +4.2%``; behind the
        norm of a skipped step how many were, ``skipped: 1``, and the loss scale, if there is one.
        """
        return " ".join(self._parts())

    def _parts(self) -> Iterator[str]:
        yield f"step: {self.step} loss: {self.loss:.6f}"
        if self.grad_norm is not None:
            yield f"grad_norm: {self.grad_norm:.4g}"
        if self.skipped:
            yield f"skipped: {self.num_skipped}"
        if self.loss_scale is not None:
            yield f"loss_scale: {self.loss_scale:g}"
        yield f"memory: {self.memory / GIB:.2f}GiB ({self.memory_of})"
        if self.memory_predicted is not None:
            yield f"predicted: {self.memory_predicted / GIB:.2f}GiB"
        yield f"tps: {self.tokens_per_second:,.0f}"
        if self.tflops is not None:
            yield f"tflops: {self.tflops:.3g}"
        for name in ("mfu", "bubble", "exposed"):
            value = getattr(self, name)
            if value is not None:
                yield f"{name}: {value:.2%}"
        if self.slowest is not None and self.lag is not None:
            yield f"slowest: {self.slowest} {self.lag:+.1%}"

    def _rate(self, flops: int) -> float:
        return flops / self.seconds / self.devices

    def _share(self, flops: int | None) -> float | None:
        if flops is None or self.peak_flops is None:
            return None
        return self._rate(flops) / self.peak_flops


def peak_resident() -> int:
    """Return the most bytes that this process has had in memory so far."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def count_tokens(manifest: Manifest) -> int:
    """Return the elements of the first integer input, or else the examples, of all ranks."""
    split = [spec for spec in manifest.inputs if spec.dim is not None]
    count = manifest.microbatches * manifest.mesh.size(manifest.data_axes)
    for spec in split:
        if not dtype_of(spec.dtype).is_floating_point:
            return prod(spec.shape) * count
    return split[0].shape[split[0].dim or 0] * count if split else count


def check_peak(peak_flops: float | None, manifest: Manifest) -> float | None:
    """Refuse a peak that is no peak, or that nothing can be compared with."""
    if peak_flops is None:
        return None
    if not peak_flops > 0:
        raise ValueError(f"peak_flops expected FLOPs per second above 0, got {peak_flops}")
    if manifest.model_flops("train") is None:
        raise ValueError(
            "peak_flops expected a program that says how many FLOPs a step has, got one that does "
            "not: compile it again"
        )
    return peak_flops
