"""Tensors as bytes: some in the format of safetensors, or the elements of one of them."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from safetensors.torch import load, save
from torch import Tensor

__all__ = ["pack_tensors", "tensor_bytes", "unpack_tensors"]


def pack_tensors(tensors: Mapping[str, Tensor]) -> bytes:
    """Return ``tensors`` (any shapes, strides and devices) in the format of safetensors.

    Raises ValueError for a dtype that the format does not have, such as complex128.
    """
    # Copies, as the format refuses tensors that share memory.
    copies = {name: _copy(tensor) for name, tensor in tensors.items()}
    try:
        return save(copies)
    except KeyError as error:
        names = [name for name, tensor in copies.items() if tensor.dtype == error.args[0]]
        raise ValueError(
            f"expected tensors of dtypes that safetensors has, got {error} of {names}"
        ) from None


def unpack_tensors(data: bytes) -> dict[str, Tensor]:
    """Return every tensor of data in the format of safetensors, on the CPU."""
    return load(data)


def tensor_bytes(tensor: Tensor) -> bytes:
    """Return the elements of ``tensor`` in row-major order as bytes."""
    return _copy(tensor).view(-1).view(torch.uint8).numpy().tobytes()


def _copy(tensor: Tensor) -> Tensor:
    return tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
