"""Data movement with one Triton kernel per call, however many parts or rows there are."""

# ruff: noqa: N803  (constants of kernels are written in capitals)
# mypy: disable-error-code="no-untyped-def, untyped-decorator, import-untyped"

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from piper_runtime.movement.interface import (
    PartError,
    accumulation_dtype,
    check_parts,
    check_rows,
)
from piper_runtime.movement.packing import Packing

__all__ = ["BLOCK", "TritonMovement", "gather_kernel", "pack_kernel", "unpack_kernel"]

BLOCK = 1024  # elements that one program moves
ALIGNMENT = 16  # bytes: the widest load

_EXACT = {"enable_fp_fusion": False}  # multiply, round, add, as torch does
_TYPES = {
    torch.float64: tl.float64,
    torch.float32: tl.float32,
    torch.bfloat16: tl.bfloat16,
    torch.float16: tl.float16,
}


@triton.jit
def pack_kernel(
    addresses,  # of the parts, int64
    blocks,  # (num_blocks, 4) int64: part, start in the part, start in the flat tensor, length
    flat,
    PART: tl.constexpr,  # dtype of the parts
    WIDE: tl.constexpr,  # dtype in which parts are added
    ADD: tl.constexpr,
    ALIGNED: tl.constexpr,  # whether every part and its place start at a multiple of 16 bytes
    BLOCK: tl.constexpr,
):
    """Move one block of one part into the flat tensor."""
    row = blocks + tl.program_id(0) * 4
    part = tl.load(addresses + tl.load(row)).to(tl.pointer_type(PART))
    source, target, length = tl.load(row + 1), tl.load(row + 2), tl.load(row + 3)
    if ALIGNED:
        part = tl.multiple_of(part, 16)
        source = tl.multiple_of(source, 16)
        target = tl.multiple_of(target, 128 // flat.dtype.element_ty.primitive_bitwidth)
    at = tl.arange(0, BLOCK)
    if length == BLOCK:  # without a mask, which would keep loads narrow
        value = tl.load(part + source + at)
        if ADD:
            value = value.to(WIDE) + tl.load(flat + target + at).to(WIDE)
        tl.store(flat + target + at, value.to(flat.dtype.element_ty))
    else:
        mask = at < length
        value = tl.load(part + source + at, mask=mask)
        if ADD:
            value = value.to(WIDE) + tl.load(flat + target + at, mask=mask).to(WIDE)
        tl.store(flat + target + at, value.to(flat.dtype.element_ty), mask=mask)


@triton.jit
def unpack_kernel(
    addresses,  # as above
    blocks,
    flat,
    PART: tl.constexpr,
    ALIGNED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Move one block of the flat tensor into one part."""
    row = blocks + tl.program_id(0) * 4
    part = tl.load(addresses + tl.load(row)).to(tl.pointer_type(PART))
    target, source, length = tl.load(row + 1), tl.load(row + 2), tl.load(row + 3)
    if ALIGNED:
        part = tl.multiple_of(part, 16)
        target = tl.multiple_of(target, 16)
        source = tl.multiple_of(source, 128 // flat.dtype.element_ty.primitive_bitwidth)
    at = tl.arange(0, BLOCK)
    if length == BLOCK:
        tl.store(part + target + at, tl.load(flat + source + at).to(PART))
    else:
        mask = at < length
        tl.store(part + target + at, tl.load(flat + source + at, mask=mask).to(PART), mask=mask)


@triton.jit
def gather_kernel(
    x,  # (n, width), contiguous
    index,  # (m, K), contiguous
    weights,  # (m, K), contiguous, or x where there are none
    out,  # (m, width), contiguous
    width,
    K: tl.constexpr,
    WEIGHTED: tl.constexpr,
    WIDE: tl.constexpr,  # dtype in which terms are added
    BLOCK: tl.constexpr,
):
    """Compute one block of one row: the sum over k of ``weights[k] * x[index[k]]``."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < width
    total = tl.full([BLOCK], 0.0, WIDE)
    for k in tl.static_range(K):
        origin = tl.load(index + row * K + k).to(tl.int64)
        term = tl.load(x + tl.maximum(origin, 0) * width + at, mask=inside).to(WIDE)
        if WEIGHTED:
            term *= tl.load(weights + row * K + k).to(WIDE)
        total += tl.where(origin >= 0, term, 0.0)
    tl.store(out + row * width + at, total.to(out.dtype.element_ty), mask=inside)


class TritonMovement:
    """See ``Movement``. Indices are not checked on the device: one that is too large reads what
    lies there.
    """

    def pack(self, parts: Sequence[Tensor], into: Packing, *, add: bool = False) -> None:
        """Write or add parts into a flat tensor."""
        check_parts(into, parts)
        if parts:
            both = torch.promote_types(parts[0].dtype, into.flat.dtype)
            wide = _TYPES[accumulation_dtype(both)]
            _move(pack_kernel, into, [part.contiguous() for part in parts], ADD=add, WIDE=wide)

    def unpack(self, source: Packing, parts: Sequence[Tensor]) -> None:
        """Copy a flat tensor into parts."""
        check_parts(source, parts)
        odd = [index for index, part in enumerate(parts) if not part.is_contiguous()]
        if odd:
            stride = parts[odd[0]].stride()
            raise PartError(odd[0], f"expected to be contiguous, got strides {stride}")
        _move(unpack_kernel, source, parts)

    def permute_rows(self, x: Tensor, rows: Tensor, weights: Tensor | None = None) -> Tensor:
        """Gather rows."""
        check_rows(x, rows, weights, dims=1)
        return _gather(x, rows[:, None], None if weights is None else weights[:, None])

    def unpermute_rows(self, y: Tensor, slots: Tensor, weights: Tensor | None = None) -> Tensor:
        """Gather rows and add up what belongs together."""
        check_rows(y, slots, weights, dims=2)
        return _gather(y, slots, weights)


def _move(kernel: Any, packing: Packing, parts: Sequence[Tensor], **options: Any) -> None:
    """Launch a program for each block of each part."""
    flat, table = packing.flat, packing.blocks(BLOCK)
    if not table.shape[0]:
        return
    addresses = [part.data_ptr() for part in parts]
    places = [flat.data_ptr() + start * flat.element_size() for start in packing.starts]
    kernel[(table.shape[0],)](
        _on_device(addresses, flat.device),
        table,
        flat,
        PART=_TYPES[parts[0].dtype],
        ALIGNED=all(address % ALIGNMENT == 0 for address in [*addresses, *places]),
        BLOCK=BLOCK,
        **options,
        **_EXACT,
    )


def _gather(x: Tensor, index: Tensor, weights: Tensor | None) -> Tensor:
    num_rows, num_terms = index.shape
    out = torch.zeros(num_rows, x.shape[1], dtype=x.dtype, device=x.device)
    if x.numel() and index.numel():  # else there is no row to read
        x = x.contiguous()
        block = min(BLOCK, triton.next_power_of_2(x.shape[1]))
        gather_kernel[(num_rows, triton.cdiv(x.shape[1], block))](
            x,
            index.contiguous(),
            x if weights is None else weights.contiguous(),
            out,
            x.shape[1],
            K=num_terms,
            WEIGHTED=weights is not None,
            WIDE=_TYPES[accumulation_dtype(x.dtype)],
            BLOCK=block,
            **_EXACT,
        )
    return out


def _on_device(addresses: Sequence[int], device: torch.device) -> Tensor:
    """Return addresses as a tensor, copied without waiting for the device."""
    table = torch.tensor(addresses, dtype=torch.int64, pin_memory=device.type == "cuda")
    return table.to(device, non_blocking=True)
