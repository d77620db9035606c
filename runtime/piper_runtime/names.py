"""Names of dtypes as manifests and programs spell them: torch's, without ``torch.``."""

from __future__ import annotations

import torch

__all__ = ["dtype_name", "dtype_of"]

_DTYPES = {
    str(value).removeprefix("torch."): value
    for value in vars(torch).values()
    if isinstance(value, torch.dtype)
}


def dtype_name(dtype: torch.dtype) -> str:
    """Return the name of ``dtype``, such as ``float32``."""
    return str(dtype).removeprefix("torch.")


def dtype_of(name: str) -> torch.dtype:
    """Return the dtype called ``name``; raises ValueError for an unknown one."""
    if name not in _DTYPES:
        raise ValueError(f"expected the name of a torch dtype, got {name!r}")
    return _DTYPES[name]
