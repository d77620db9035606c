"""The options that say what kernels and messages cost, for every command that simulates programs."""

from __future__ import annotations

import argparse

from piper.simulate import (
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
        help="what messages go over: of all axes, or of one",
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
    """The links of `--link`: one for all axes, others for some.

    Raises:
        ValueError: none for all axes, which `what` needs.
    """
    known = device(options.device) if options.device else None
    names = {}
    for text in options.link or []:
        axis, _, name = text.rpartition("=")
        names[axis] = link(name, of=known)
    if "" not in names:
        raise ValueError(f"{what} expected --link NAME for all axes, got none")
    return Network(names.pop(""), names)
