"""Data movement of the runtime: gradients into flat buckets, rows of tokens to experts and back.
One interface; plain torch on the CPU, Triton on CUDA.
"""

from __future__ import annotations

import torch

from piper_runtime.movement.interface import Movement, PartError
from piper_runtime.movement.packing import Packing
from piper_runtime.movement.torch_movement import TorchMovement

__all__ = ["Movement", "Packing", "PartError", "TorchMovement", "movement_for"]


def movement_for(device: torch.device) -> Movement:
    """Return what moves data on ``device``: Triton kernels on CUDA, else torch's own ops.

    Raises ImportError on CUDA where the package ``triton`` is missing.
    """
    if device.type != "cuda":
        return TorchMovement()
    from piper_runtime.movement.triton_movement import TritonMovement

    return TritonMovement()
