"""The Triton kernels of data movement where there is no GPU."""

from __future__ import annotations

import importlib.util
from types import ModuleType

import pytest


def load_triton(*, interpreted: bool) -> ModuleType:
    """Execute the module of Triton kernels anew, as they are run or as they are compiled."""
    spec = importlib.util.find_spec("piper_runtime.movement.triton_movement")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_INTERPRET", "1" if interpreted else "0")
        spec.loader.exec_module(module)
    return module
