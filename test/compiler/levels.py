"""The levels of the IR as text: passes in this process and in a process of piper-opt."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable

from piper.mlir import ir
from piper.mlir.passmanager import PassManager

LEVELS = ("step", "chunks", "cluster", "programs")
"""The levels that hold a module, in order."""
FLAGS = {
    "chunks": [
        "--piper-remat",
        "--piper-shard",
        "--piper-partition",
        "--piper-outline-chunks",
    ],
    "cluster": ["--piper-record", "--piper-materialize"],
    "programs": ["--piper-lower"],
}
"""What makes a level of the one before."""


def run(text: str, pipeline: str) -> str:
    """The text of a module after passes, with locations."""
    with ir.Context():
        module = ir.Module.parse(text)
        PassManager.parse(f"builtin.module({pipeline})").run(module.operation)
        return f"{module.operation.get_asm(enable_debug_info=True)}\n"


def tool() -> str:
    """The path of piper-opt: what PIPER_OPT says, beside the interpreter, or on the path."""
    folders = os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]])
    found = os.environ.get("PIPER_OPT") or shutil.which("piper-opt", path=folders)
    assert found is not None, "expected piper-opt beside the interpreter or on the path"
    return found


def piper_opt(text: str, *flags: str) -> subprocess.CompletedProcess[str]:
    """piper-opt on a text, in an environment that has no Python."""
    return subprocess.run(
        [tool(), "-", *flags], input=text, capture_output=True, text=True, env={}, check=False
    )


def ops(text: str) -> list[tuple[str, str]]:
    """Name and location of every op of a module, nested ones included."""
    found = []

    def note(op: ir.Operation) -> ir.WalkResult:
        found.append((op.name, str(op.location)))
        return ir.WalkResult.ADVANCE

    with ir.Context():
        ir.Module.parse(text).operation.walk(note, ir.WalkOrder.PRE_ORDER)
    return found


def names(text: str) -> Counter[str]:
    """How often each op is there."""
    return Counter(name for name, _ in ops(text))


def permuted(text: str, order: Iterable[int]) -> str:
    """The module with the directives of its strategy in another order."""
    with ir.Context():
        module = ir.Module.parse(text)
        block = _strategy(module).regions[0].blocks[0]
        directives = [view.operation for view in block.operations]
        for index in order:
            block.append(directives[index])
        return f"{module.operation.get_asm(enable_debug_info=True)}\n"


def without_strategy(text: str) -> str:
    """The module without the op that holds the directives."""
    with ir.Context():
        module = ir.Module.parse(text)
        _strategy(module).erase()
        return f"{module.operation.get_asm(enable_debug_info=True)}\n"


def _strategy(module: ir.Module) -> ir.Operation:
    operations = (view.operation for view in module.body.operations)
    return next(op for op in operations if op.name == "piper.strategy")
