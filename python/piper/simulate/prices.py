"""Seconds per kernel: by the roofline of a device, or as measured."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from piper.simulate.devices import Device
from piper.simulate.facts import KernelFacts

__all__ = ["Prices", "Profile", "Roofline"]


class Prices(Protocol):
    """What compute costs on a device."""

    def kernel(self, name: str) -> float:
        """Seconds of one launch of a kernel."""
        ...

    def traffic(self, num_bytes: float) -> float:
        """Seconds to read or write bytes of the device's memory."""
        ...


@dataclass(frozen=True)
class Roofline:
    """The longer of FLOPs at the device's peak and bytes at its bandwidth, over `efficiency`.

    `efficiency` is the fraction of the roofline that kernels reach. The bytes of a kernel are those
    of its arguments and results, as if it were fused: op by op it moves more.

    Raises:
        ValueError: an efficiency that is not above 0 and at most 1.
    """

    device: Device
    kernels: Mapping[str, KernelFacts]
    efficiency: float = 1.0

    def __post_init__(self) -> None:
        """Check the efficiency."""
        if not 0 < self.efficiency <= 1:
            raise ValueError(f"efficiency must be above 0 and at most 1, got {self.efficiency}")

    def kernel(self, name: str) -> float:
        """See `Prices`.

        Raises:
            ValueError: the device has no peak for the kernel's dtype.
        """
        facts = self.kernels[name]
        seconds = facts.bytes / self.device.memory_bandwidth
        if facts.dtype:
            seconds = max(seconds, facts.flops / self._peak(name, facts.dtype))
        return seconds / self.efficiency

    def traffic(self, num_bytes: float) -> float:
        """See `Prices`."""
        return num_bytes / self.device.memory_bandwidth / self.efficiency

    def _peak(self, kernel: str, dtype: str) -> float:
        if dtype not in self.device.flops:
            raise ValueError(
                f"device {self.device.name} must have a peak for {dtype} of kernel {kernel}, has "
                f"{', '.join(self.device.flops)}"
            )
        return self.device.flops[dtype]


@dataclass(frozen=True)
class Profile:
    """Measured seconds per launch by kernel, and bytes per second of the device's memory.

    `machine` says in words what was measured. `write` and `read` keep it as JSON.

    Raises:
        ValueError: a time or a bandwidth that is not above 0.
    """

    machine: str
    kernels: Mapping[str, float]
    memory_bandwidth: float

    def __post_init__(self) -> None:
        """Check the numbers."""
        numbers = {"memory bandwidth": self.memory_bandwidth, **self.kernels}
        for what, number in numbers.items():
            if not number > 0:
                raise ValueError(f"profile must have positive numbers, got {number} for {what}")

    @classmethod
    def read(cls, path: str | Path) -> Profile:
        """Read what `write` wrote.

        Raises:
            ValueError: the file is not a profile.
        """
        try:
            raw = json.loads(Path(path).read_text())
            return cls(raw["machine"], dict(raw["kernels"]), raw["memory_bandwidth"])
        except (KeyError, TypeError, json.JSONDecodeError) as error:
            raise ValueError(
                f"{path}: expected a profile with machine, kernels and memory_bandwidth, "
                f"got {type(error).__name__}: {error}"
            ) from None

    def write(self, path: str | Path) -> None:
        """Write it as JSON."""
        raw = {
            "machine": self.machine,
            "memory_bandwidth": self.memory_bandwidth,
            "kernels": dict(self.kernels),
        }
        Path(path).write_text(json.dumps(raw, indent=1) + "\n")

    def kernel(self, name: str) -> float:
        """See `Prices`.

        Raises:
            ValueError: a kernel that was not measured.
        """
        if name not in self.kernels:
            raise ValueError(
                f"profile of {self.machine} must have kernel {name}: it is of another program, "
                "measure this one"
            )
        return self.kernels[name]

    def traffic(self, num_bytes: float) -> float:
        """See `Prices`."""
        return num_bytes / self.memory_bandwidth
