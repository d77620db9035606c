"""The script that measures what the files of this machine hold."""

from __future__ import annotations

import json
import shutil
import sys
from importlib import util
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Any:
    path = Path(__file__).parents[2] / "benchmarks" / "device_figures.py"
    spec = util.spec_from_file_location("device_figures", path)
    assert spec is not None
    assert spec.loader is not None
    module = util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    monkeypatch.syspath_prepend(str(path.parent))  # for the processes that it starts
    spec.loader.exec_module(module)
    return module


def test_small_runs_give_every_figure_of_the_files(
    script: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """What is written has the shape of what is there, and each figure a source that it names."""
    small_core, small_link = script.core(size=8, copied=1 << 10), script.link(sent=1 << 20)
    monkeypatch.setattr(script, "core", lambda: small_core)
    monkeypatch.setattr(script, "link", lambda: small_link)
    devices, copy = script.DEVICES, tmp_path / "devices"
    shutil.copytree(devices, copy)
    monkeypatch.setattr(script, "DEVICES", copy)
    parts = {"cpu.json": small_core, "links/loopback.json": small_link}
    before = {name: json.loads((devices / name).read_text()) for name in parts}
    monkeypatch.setattr(sys, "argv", ["device_figures.py"])
    script.main()
    said = capsys.readouterr().out
    assert said == "".join(
        f"{name}: {json.dumps(part, indent=1)}\n" for name, part in parts.items()
    )
    assert {name: json.loads((copy / name).read_text()) for name in parts} == before
    monkeypatch.setattr(sys, "argv", ["device_figures.py", "--write"])
    script.main()
    for name, part in parts.items():
        written = json.loads((copy / name).read_text())
        assert written == before[name] | part
        assert written.keys() == before[name].keys()
        assert part["sources"].keys() == before[name]["sources"].keys()
    assert small_core["flops"].keys() == before["cpu.json"]["flops"].keys()
