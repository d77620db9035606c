"""Priorities and SMs of communicators: read from the manifest, refused where there are none."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from mlp_program import program_texts
from piper_runtime import LocalTransport
from piper_runtime.manifest import Manifest
from piper_runtime.mesh import CommSpec
from piper_runtime.transports.base import Transport
from piper_runtime.transports.gloo import GlooTransport


def manifest_of(**options: int) -> Manifest:
    """The manifest of a hand-written program whose last communicator has these options."""
    raw: dict[str, Any] = json.loads(program_texts()["manifest.json"])
    raw["comms"][-1] |= options
    return Manifest.parse(json.dumps(raw))


@pytest.mark.parametrize("options", [{}, {"priority": 0}, {"sms": 4}, {"priority": -1, "sms": 8}])
def test_manifest_says_what_is_asked(options: dict[str, int]) -> None:
    plain = manifest_of().comms
    assert all((comm.priority, comm.sms) == (None, None) for comm in plain)
    assert manifest_of(**options).comms[-1] == replace(
        plain[-1], priority=options.get("priority"), sms=options.get("sms")
    )


@pytest.mark.parametrize("transport", [LocalTransport, GlooTransport])
@pytest.mark.parametrize(
    ("options", "asked"),
    [
        ({"priority": 0}, "priority=0"),
        ({"sms": 4}, "sms=4"),
        ({"priority": -1, "sms": 8}, "priority=-1 and sms=8"),
    ],
)
def test_refused_by_transports_without(
    transport: type[Transport], options: dict[str, int], asked: str
) -> None:
    manifest = manifest_of(**options)
    last: CommSpec = manifest.comms[-1]
    with pytest.raises(
        ValueError,
        match=rf"transport {transport.name} expected streams without priority and sms, since it has "
        rf"neither, got {asked} of communicator '{last.name.replace('$', '[$]')}'",
    ):
        transport().start(manifest)
