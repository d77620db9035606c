"""Devices, links, and what they make of FLOPs, bytes, messages and collectives."""

from __future__ import annotations

from pathlib import Path

import pytest
from piper.simulate import Link, Profile, Roofline, device, link
from piper.simulate.devices import device_names, link_names
from piper.simulate.facts import KernelFacts

SLOW = Link("slow", "", 10.0, 1.0, {})


@pytest.mark.parametrize("name", device_names())
def test_every_figure_of_a_device_has_a_source(name: str) -> None:
    found = device(name)
    figures = {f"flops.{dtype}" for dtype in found.flops} | {"memory_bandwidth", "memory"}
    figures |= {"node.ranks"} if found.node else set()
    assert set(found.sources) == figures
    for source in found.sources.values():
        assert source.title
        assert source.url is None or source.url.startswith("https://")
        assert (source.url is None) == source.title.startswith("measured")
    for kind in found.links:
        assert link(kind, of=found).name in link_names()


@pytest.mark.parametrize("name", link_names())
def test_every_figure_of_a_link_has_a_source(name: str) -> None:
    found = link(name)
    assert set(found.sources) == {"bandwidth", "latency"}
    for source in found.sources.values():
        assert source.title
        assert (source.url is None) == source.title.startswith("measured")


def test_the_devices_that_papers_use_are_there() -> None:
    assert {"a100", "h100", "h800", "h200", "cpu"} <= set(device_names())
    h100, h800, a100, h200 = (device(name) for name in ("H100", "h800", "A100", "H200"))
    assert h100.flops["bfloat16"] == h800.flops["bfloat16"] > 3 * a100.flops["bfloat16"]
    assert h800.flops["float64"] < h100.flops["float64"]
    assert h200.memory_bandwidth > h100.memory_bandwidth > a100.memory_bandwidth
    assert h800.flops["float8_e4m3fn"] == pytest.approx(2 * h800.flops["bfloat16"], rel=1e-3)
    for found in (h100, h800, a100, h200):
        assert found.node is not None
        assert found.node.ranks == 8
        assert found.links[found.node.within].startswith("nvlink")
        assert found.links[found.node.across].startswith("infiniband")
    speeds = [link("nvlink", of=found).bandwidth for found in (h800, a100, h100)]
    assert speeds == [200e9, 300e9, 450e9]


def test_unknown_names_list_what_is_known() -> None:
    with pytest.raises(ValueError, match=r"unknown device 'tpu', known are a100, cpu, h100"):
        device("tpu")
    with pytest.raises(ValueError, match=r"unknown link 'string', known are infiniband-hdr, "):
        link("string")
    with pytest.raises(ValueError, match=r"unknown link 'nvlink', .*, kinds of cpu are loopback"):
        link("nvlink", of=device("cpu"))


def test_a_link_takes_its_latency_and_its_bytes() -> None:
    assert SLOW.seconds(20) == 3


def test_a_roofline_is_the_longer_of_flops_and_bytes() -> None:
    h100 = device("h100")
    kernels = {
        "heavy": KernelFacts(989_400_000_000_000, 1, "bfloat16", 0, 0),
        "wide": KernelFacts(1, 3_350_000_000_000, "bfloat16", 0, 0),
        "integers": KernelFacts(10**20, 3_350_000_000_000, "", 0, 0),
        "odd": KernelFacts(1, 1, "complex64", 0, 0),
    }
    prices = Roofline(h100, kernels)
    assert [prices.kernel(name) for name in ("heavy", "wide", "integers")] == [1, 1, 1]
    assert Roofline(h100, kernels, 0.5).kernel("heavy") == 2
    assert Roofline(h100, kernels, 0.5).traffic(3.35e12) == 2
    with pytest.raises(ValueError, match=r"h100 must have a peak for complex64 of kernel odd"):
        prices.kernel("odd")
    for wrong in (0, -1, 1.5):
        with pytest.raises(ValueError, match="efficiency must be above 0 and at most 1, got"):
            Roofline(h100, kernels, wrong)


def test_a_profile_is_written_and_read(tmp_path: Path) -> None:
    profile = Profile("a machine", {"mm$1": 0.25}, 1e9)
    profile.write(tmp_path / "profile.json")
    assert Profile.read(tmp_path / "profile.json") == profile
    assert profile.kernel("mm$1") == 0.25
    assert profile.traffic(2e9) == 2
    with pytest.raises(ValueError, match=r"profile of a machine must have kernel mm\$2"):
        profile.kernel("mm$2")
    with pytest.raises(ValueError, match=r"positive numbers, got 0 for mm\$1"):
        Profile("a machine", {"mm$1": 0}, 1e9)
    for text in ("[]", "{", '{"machine": "m"}'):
        (tmp_path / "wrong.json").write_text(text)
        with pytest.raises(ValueError, match="expected a profile with machine, kernels"):
            Profile.read(tmp_path / "wrong.json")
