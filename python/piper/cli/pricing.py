"""The options that say what kernels and messages cost, for every command that simulates programs."""

from __future__ import annotations

import argparse

from piper.simulate import (
    Link,
    Network,
    Prices,
    Profile,
    ProgramFacts,
    Roofline,
    device,
    link,
)

__all__ = ["add_options", "read_network", "read_prices"]


def add_options(parser: argparse._ActionsContainer) -> None:
    """Add the options; those that are not given are None."""
    option = parser.add_argument
    option("--device", metavar="NAME", help="price kernels by this device's roofline")
    option(
        "--efficiency", type=float, metavar="X", help="fraction of it that is reached (default: 1)"
    )
    option("--profile", metavar="FILE", help="price kernels as measured")
    option(
        "--link",
        action="append",
        metavar="[AXIS=]NAME",
        help="what ranks of a node, or all, talk over, or those along one axis "
        "(default: as the nodes of --device)",
    )
    option(
        "--across",
        metavar="NAME",
        help="what ranks of different nodes talk over (default: as the nodes of --device, "
        "or with --link alone that link)",
    )
    option(
        "--node", type=int, metavar="N", help="ranks of a node (default: as the nodes of --device)"
    )
    option("--issue", type=float, metavar="S", help="host seconds per instruction")
    option("--optimizer-bytes", type=float, metavar="B", help="optimizer state per parameter")


def read_prices(options: argparse.Namespace, facts: ProgramFacts) -> tuple[Prices, str]:
    """What kernels cost by `--device` or else `--profile`, and in words where that comes from."""
    if options.profile:
        profile = Profile.read(options.profile)
        return profile, f"measured on {profile.machine}"
    efficiency = 1.0 if options.efficiency is None else options.efficiency
    roofline = Roofline(device(options.device), facts.kernels, efficiency)
    return roofline, f"roofline of {roofline.device.name} at {efficiency:.0%}"


def read_network(options: argparse.Namespace, *, what: str) -> Network:
    """The links of `--link`, `--across` and `--node`, or else of the nodes of `--device`.

    Raises:
        ValueError: no link for all axes, which `what` needs, or nodes of which something is missing.
    """
    known = device(options.device) if options.device else None
    axes: dict[str, Link] = {}
    for text in options.link or []:
        axis, _, name = text.rpartition("=")
        axes[axis] = link(name, of=known)
    within = axes.pop("", None)
    across = None if options.across is None else link(options.across, of=known)
    asked = across is not None or options.node is not None
    if within is not None and not asked:
        return Network(within, axes)
    node = options.node
    if known is not None and known.node is not None:
        published = Network.of(known)
        within, across = within or published.default, across or published.across
        node = published.node if node is None else node
    parts = {"link NAME for all axes": within}
    needed = {**parts, "across NAME": across, "node N": node} if asked else parts
    missing = [f"--{flag}" for flag, part in needed.items() if part is None]
    if within is None or missing:
        raise ValueError(
            f"{what} expected {' and '.join(missing)}, or a --device whose nodes are known, "
            f"got {known.name if known else 'none'}"
        )
    return Network(within, axes, across, node)
