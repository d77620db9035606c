"""What a manifest says that no IR has: leaves of the batch that are no tensors, and what of the
model its state dicts leave out.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

from piper_runtime.inputs.batch import leaves
from piper_runtime.inputs.fixed import FixedLeaf
from torch import Tensor, nn

from piper.frontend.data import CaptureError

__all__ = ["add_outside", "fix_leaves"]


def fix_leaves(batch: Any) -> dict[str, FixedLeaf]:
    """Return the leaves of a batch that are no tensors, by name, as a program knows them.

    Raises CaptureError for one whose value cannot be compared at each step.
    """
    fixed = {}
    for name, value in leaves(batch).items():
        if isinstance(value, Tensor):
            continue
        leaf = FixedLeaf.of(value)
        if leaf is None:
            raise CaptureError(
                f"leaf {name!r} of the batch expected a tensor, or a value that can be compiled in "
                "and compared at each step (None, a bool, number, str, bytes or enum member, a "
                f"torch dtype, device or size), got a {type(value).__qualname__}: give what "
                "changes as tensors, in dicts, lists or tuples, and let the loss function know "
                "the rest by itself"
            )
        fixed[name] = leaf
    return fixed


def add_outside(manifest: str, *, fixed: Mapping[str, FixedLeaf], model: nn.Module) -> str:
    """Return the text of a manifest that says what was compiled in of the batch, and which names of
    buffers the state dict of the model leaves out.
    """
    raw = json.loads(manifest)
    raw["leaves"] = {name: asdict(leaf) for name, leaf in fixed.items()}
    fleeting = set(_not_persistent(model))
    for state in raw["states"]:
        names = [state["name"], *state["aliases"]]
        unsaved = [name for name in names if name in fleeting]
        if state["kind"] == "buffer" and unsaved:
            state["unsaved"] = unsaved
    return json.dumps(raw, indent=1) + "\n"


def _not_persistent(model: nn.Module) -> Iterator[str]:
    """Yield every name of every buffer that is not persistent."""
    for path, module in model.named_modules(remove_duplicate=False):
        for name in module._non_persistent_buffers_set:
            yield f"{path}.{name}" if path else name
