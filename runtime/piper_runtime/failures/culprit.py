"""Which line of ``kernels.py`` raised an error, and which line of the model that comes from.

def put_7c1e(a0: float32[4], a1: int64[2], a2: float32[2]):
    v0 = a0.clone()  # model.py:14
    v1 = torch.put(v0, a1, a2); del v0         <- raised here
"""

from __future__ import annotations

import linecache
import traceback
from pathlib import Path
from types import FrameType

__all__ = ["find_op"]

KERNELS = "kernels.py"
PACKAGES = "piper_program_"


def find_op(error: BaseException) -> str | None:
    """Return ``kernels.py:12: `v1 = torch.put(v0, a1, a2)`, from model.py:14``.

    None for an error that no line of a program's kernels is in.
    """
    for frame, number in reversed(list(traceback.walk_tb(error.__traceback__))):
        if _is_kernel(frame):
            file, start = frame.f_code.co_filename, frame.f_code.co_firstlineno
            statement, _ = _split(file, number)
            # Lines of one source line follow each other, and the first of them says it.
            sites = (_split(file, line)[1] for line in range(number, start, -1))
            site = next(filter(None, sites), "")
            return f"{KERNELS}:{number}: `{statement}`" + (f", from {site}" if site else "")
    return None


def _is_kernel(frame: FrameType) -> bool:
    package: str = frame.f_globals.get("__package__") or ""
    name = Path(frame.f_code.co_filename.rstrip(">")).name
    return package.startswith(PACKAGES) and name == KERNELS


def _split(file: str, number: int) -> tuple[str, str]:
    """Return the statement of a line, without what it drops, and the comment behind it."""
    code, _, comment = linecache.getline(file, number).strip().partition("  # ")
    return code.partition("; del ")[0], comment
