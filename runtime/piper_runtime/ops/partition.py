"""What a rank computes with where several compute parts of the same values."""

from __future__ import annotations

from torch import Tensor

from piper_runtime.ops.define import op

__all__ = ["part"]


def _fake_part(x: Tensor, index: Tensor, dim: int, parts: int) -> Tensor:
    shape = list(x.shape)
    shape[dim] //= parts
    return x.new_empty(shape)


@op(fake=_fake_part)
def part(x: Tensor, index: Tensor, dim: int, parts: int) -> Tensor:
    """Return one of ``parts`` equal parts of ``dim``, that of number ``index``, ``[1]`` of int64.

    The device reads the index: the host does not wait for it.
    """
    pieces = x.unflatten(dim, (parts, x.shape[dim] // parts))
    return pieces.index_select(dim, index).squeeze(dim)
