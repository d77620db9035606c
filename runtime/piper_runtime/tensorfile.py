"""Reading and writing the safetensors format without a dependency: a JSON header, then bytes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from piper_runtime.names import dtype_name, dtype_of

__all__ = ["load_tensors", "pack_tensors", "save_tensors", "tensor_bytes", "unpack_tensors"]

CODES = {
    "float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16",
    "int64": "I64", "int32": "I32", "int16": "I16", "int8": "I8", "uint8": "U8", "bool": "BOOL",
}  # fmt: skip
DTYPES = {code: name for name, code in CODES.items()}
HEADER_ALIGNMENT = 8


def save_tensors(tensors: Mapping[str, Tensor], path: Path) -> None:
    """Write ``tensors`` (any shapes; dtypes of CODES, else ValueError) to ``path``."""
    path.write_bytes(pack_tensors(tensors))


def load_tensors(path: Path) -> dict[str, Tensor]:
    """Read every tensor of a safetensors file, on the CPU."""
    return unpack_tensors(path.read_bytes())


def pack_tensors(tensors: Mapping[str, Tensor]) -> bytes:
    """Return ``tensors`` in the safetensors format; raises ValueError for another dtype."""
    header: dict[str, Any] = {}
    blobs: list[bytes] = []
    offset = 0
    for name, tensor in tensors.items():
        code = CODES.get(dtype_name(tensor.dtype))
        if code is None:
            raise ValueError(
                f"tensor {name!r} expected a dtype in {sorted(CODES)}, got {tensor.dtype}"
            )
        blob = tensor_bytes(tensor)
        span = [offset, offset + len(blob)]
        header[name] = {"dtype": code, "shape": list(tensor.shape), "data_offsets": span}
        blobs.append(blob)
        offset += len(blob)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % HEADER_ALIGNMENT)
    return len(text).to_bytes(8, "little") + text + b"".join(blobs)


def unpack_tensors(data: bytes) -> dict[str, Tensor]:
    """Return every tensor of data in the safetensors format, on the CPU."""
    start = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:start])
    header.pop("__metadata__", None)
    return {name: _tensor(data, start, entry) for name, entry in header.items()}


def tensor_bytes(tensor: Tensor) -> bytes:
    """Return the elements of ``tensor`` in row-major order as bytes."""
    flat = tensor.detach().cpu().contiguous().view(-1).view(torch.uint8)
    out = bytearray(flat.numel())
    if out:
        torch.frombuffer(out, dtype=torch.uint8).copy_(flat)
    return bytes(out)


def _tensor(data: bytes, start: int, entry: Mapping[str, Any]) -> Tensor:
    dtype, shape = dtype_of(DTYPES[entry["dtype"]]), entry["shape"]
    begin, end = entry["data_offsets"]
    if begin == end:
        return torch.empty(shape, dtype=dtype)
    piece = bytearray(data[start + begin : start + end])
    return torch.frombuffer(piece, dtype=dtype).view(shape)
