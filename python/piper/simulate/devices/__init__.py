"""Devices and links by name, with published figures; each figure names its source.

`NAME.json` is a device, `links/NAME.json` a link. A figure is `{"value": ..., "source": key}` in
bytes, seconds, bytes per second or FLOPs per second; `sources` holds a title and an address per
key, and no address for what was measured. A device that machines hold several of has a `node`: how
many `ranks`, and the kinds of its links `within` one and `across` two. To add a device, write its
file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from types import MappingProxyType
from typing import Any

__all__ = ["Device", "Link", "Node", "Source", "device", "device_names", "link", "link_names"]


@dataclass(frozen=True, slots=True)
class Source:
    """Where a figure comes from; `url` is None for a measurement."""

    title: str
    url: str | None


@dataclass(frozen=True, slots=True)
class Node:
    """A machine of several devices: how many, and the kinds of links within it and between two."""

    ranks: int
    within: str
    across: str


@dataclass(frozen=True)
class Device:
    """One accelerator or core.

    `flops` is the peak in FLOPs per second of products, by torch's name of the dtype and without
    sparsity; `memory_bandwidth` in bytes per second, `memory` in bytes. `links` maps kinds of links
    (`nvlink`) to the link that this device has of it. `node` is the machine that it is sold or was
    used in, None where machines are not known. `sources` holds the source of each figure.
    """

    name: str
    title: str
    flops: Mapping[str, float]
    memory_bandwidth: float
    memory: float
    links: Mapping[str, str]
    node: Node | None
    sources: Mapping[str, Source]


@dataclass(frozen=True)
class Link:
    """One way from a device to another: bytes per second in one direction, seconds until a message
    starts to arrive.
    """

    name: str
    title: str
    bandwidth: float
    latency: float
    sources: Mapping[str, Source]

    def seconds(self, num_bytes: float) -> float:
        """The time of one message."""
        return self.latency + num_bytes / self.bandwidth


def device_names() -> tuple[str, ...]:
    """Names of all devices."""
    return _names("")


def link_names() -> tuple[str, ...]:
    """Names of all links."""
    return _names("links")


def device(name: str) -> Device:
    """The device of a name, which is looked up without regard to case.

    Raises:
        ValueError: no such device; the message lists all.
    """
    if name.lower() not in device_names():
        raise ValueError(f"unknown device {name!r}, known are {', '.join(device_names())}")
    raw = _read("", name.lower())
    figures = {f"flops.{dtype}": figure for dtype, figure in raw["flops"].items()}
    figures |= {key: raw[key] for key in ("memory_bandwidth", "memory")}
    machine = raw.get("node")
    if machine is not None:
        figures["node.ranks"] = machine["ranks"]
    return Device(
        name=name.lower(),
        title=raw["title"],
        flops=MappingProxyType({dtype: figure["value"] for dtype, figure in raw["flops"].items()}),
        memory_bandwidth=raw["memory_bandwidth"]["value"],
        memory=raw["memory"]["value"],
        links=MappingProxyType(raw["links"]),
        node=machine and Node(machine["ranks"]["value"], machine["within"], machine["across"]),
        sources=_sources(raw, figures),
    )


def link(name: str, *, of: Device | None = None) -> Link:
    """The link of a name, or the one that device `of` has of a kind such as `nvlink`.

    Raises:
        ValueError: neither a link nor a kind that the device has; the message lists them.
    """
    kinds = {} if of is None else of.links
    known = kinds.get(name.lower(), name.lower())
    if known not in link_names():
        kind = f", kinds of {of.name} are {', '.join(kinds)}" if of is not None else ""
        raise ValueError(f"unknown link {name!r}, known are {', '.join(link_names())}{kind}")
    raw = _read("links", known)
    figures = {key: raw[key] for key in ("bandwidth", "latency")}
    return Link(
        name=known,
        title=raw["title"],
        bandwidth=raw["bandwidth"]["value"],
        latency=raw["latency"]["value"],
        sources=_sources(raw, figures),
    )


def _sources(raw: Mapping[str, Any], figures: Mapping[str, Any]) -> Mapping[str, Source]:
    """The source of each figure."""
    return MappingProxyType(
        {key: Source(**raw["sources"][figure["source"]]) for key, figure in figures.items()}
    )


def _names(folder: str) -> tuple[str, ...]:
    files = (file.name for file in resources.files(__name__).joinpath(folder).iterdir())
    return tuple(sorted(name.removesuffix(".json") for name in files if name.endswith(".json")))


def _read(folder: str, name: str) -> Any:
    return json.loads(resources.files(__name__).joinpath(folder, f"{name}.json").read_text())
