"""Data movement with one Triton kernel per call, however many parts or rows there are. (The order
of rows that are summed is inverted by torch.)
"""

# ruff: noqa: N803  (constants of kernels are written in capitals)
# mypy: disable-error-code="no-untyped-call, no-untyped-def, untyped-decorator, import-untyped"

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from piper_runtime.movement.interface import (
    accumulation_dtype,
    check_parts,
    check_rows,
    places_of_slots,
)
from piper_runtime.movement.packing import Packing

__all__ = [
    "BLOCK",
    "TritonMovement",
    "dot_kernel",
    "pack_kernel",
    "permute_kernel",
    "unpermute_kernel",
]

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
def rounded(value, TYPE: tl.constexpr):
    """Cast as torch does: fp64 to 16 bits by way of fp32."""
    if value.dtype == tl.float64 and TYPE.primitive_bitwidth == 16:
        value = value.to(tl.float32)
    return value.to(TYPE)


@triton.jit
def added(a, b):
    """Return one step of a sum. ``tl.sum`` is not interpreted unless all of Triton is."""
    return a + b


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
        tl.store(flat + target + at, rounded(value, flat.dtype.element_ty))
    else:
        mask = at < length
        value = tl.load(part + source + at, mask=mask)
        if ADD:
            value = value.to(WIDE) + tl.load(flat + target + at, mask=mask).to(WIDE)
        tl.store(flat + target + at, rounded(value, flat.dtype.element_ty), mask=mask)


@triton.jit
def permute_kernel(
    tokens,  # (num_tokens, width), contiguous
    order,  # (num_rows,), the slot of each row
    weights,  # (num_rows,) in order of slots, contiguous, or tokens where there are none
    rows,  # (num_rows, width), contiguous: the result
    width,
    CHOICES: tl.constexpr,
    WEIGHTED: tl.constexpr,
    WIDE: tl.constexpr,  # dtype of products
    BLOCK: tl.constexpr,
):
    """Compute one block of one row: ``weights[slot] * tokens[slot // CHOICES]``."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < width
    slot = tl.load(order + row)
    value = tl.load(tokens + slot // CHOICES * width + at, mask=inside)
    if WEIGHTED:
        value = rounded(value.to(WIDE) * tl.load(weights + slot).to(WIDE), rows.dtype.element_ty)
    tl.store(rows + row * width + at, value, mask=inside)


@triton.jit
def unpermute_kernel(
    rows,  # (num_rows, width), contiguous
    places,  # (num_rows,), the row of each slot
    weights,  # (num_rows,) in order of slots, contiguous, or rows where there are none
    tokens,  # (num_tokens, width), contiguous: the result
    width,
    CHOICES: tl.constexpr,
    WEIGHTED: tl.constexpr,
    WIDE: tl.constexpr,  # dtype of products and sums
    BLOCK: tl.constexpr,
):
    """Compute one block of one token: the sum over its slots of ``weights[slot] * row of slot``."""
    token = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < width
    total = tl.full([BLOCK], 0.0, WIDE)
    for choice in tl.static_range(CHOICES):
        slot = token * CHOICES + choice
        term = tl.load(rows + tl.load(places + slot) * width + at, mask=inside).to(WIDE)
        if WEIGHTED:
            term *= tl.load(weights + slot).to(WIDE)
        total += term
    tl.store(tokens + token * width + at, rounded(total, tokens.dtype.element_ty), mask=inside)


@triton.jit
def dot_kernel(
    tokens,  # (num_tokens, width), contiguous
    rows,  # (num_rows, width), contiguous
    order,  # (num_rows,), the slot of each row
    products,  # (num_rows,), in order of slots: the result
    width,
    CHOICES: tl.constexpr,
    WIDE: tl.constexpr,  # dtype of products and sums
    BLOCK: tl.constexpr,
):
    """Multiply one row with its token."""
    row = tl.program_id(0).to(tl.int64)
    slot = tl.load(order + row)
    token = slot // CHOICES
    total = tl.full([BLOCK], 0.0, WIDE)
    for start in range(0, width, BLOCK):
        at = start + tl.arange(0, BLOCK)
        inside = at < width
        one = tl.load(tokens + token * width + at, mask=inside, other=0.0).to(WIDE)
        total += one * tl.load(rows + row * width + at, mask=inside, other=0.0).to(WIDE)
    tl.store(products + slot, rounded(tl.reduce(total, 0, added), products.dtype.element_ty))


class TritonMovement:
    """See ``Movement``. Values of indices are not checked on the device: one that is too large
    reads or writes what lies there.
    """

    def pack(self, parts: Sequence[Tensor], into: Packing, *, add: bool = False) -> None:
        """Write or add parts into a flat tensor."""
        check_parts(into, parts)
        flat, table = into.flat, into.blocks(BLOCK)
        if not table.shape[0]:
            return
        parts = [part.contiguous() for part in parts]
        addresses = [part.data_ptr() for part in parts]
        places = [flat.data_ptr() + start * flat.element_size() for start in into.starts]
        with torch.cuda.device_of(flat):
            pack_kernel[(table.shape[0],)](
                _on_device(addresses, flat.device),
                table,
                flat,
                PART=_TYPES[parts[0].dtype],
                WIDE=_TYPES[accumulation_dtype(parts[0].dtype, flat.dtype)],
                ADD=add,
                ALIGNED=all(address % ALIGNMENT == 0 for address in [*addresses, *places]),
                BLOCK=BLOCK,
                **_EXACT,
            )

    def permute_rows(
        self, tokens: Tensor, *, order: Tensor, choices: int, weights: Tensor | None = None
    ) -> Tensor:
        """Give each slot its token, by weight."""
        check_rows(order, choices, tokens=tokens, weights=weights)
        rows = tokens.new_empty(order.shape[0], tokens.shape[1])
        _launch_blocks(permute_kernel, tokens, order, weights, into=rows, choices=choices)
        return rows

    def unpermute_rows(
        self, rows: Tensor, *, order: Tensor, choices: int, weights: Tensor | None = None
    ) -> Tensor:
        """Sum each token's rows by weight, the first choice first."""
        check_rows(order, choices, rows=rows, weights=weights)
        tokens = rows.new_empty(order.shape[0] // choices, rows.shape[1])
        places = places_of_slots(order)
        _launch_blocks(unpermute_kernel, rows, places, weights, into=tokens, choices=choices)
        return tokens

    def dot_rows(
        self, tokens: Tensor, rows: Tensor, *, order: Tensor, choices: int, dtype: torch.dtype
    ) -> Tensor:
        """Multiply each token with each of its rows."""
        check_rows(order, choices, tokens=tokens, rows=rows)
        num_rows, width = rows.shape
        products = tokens.new_empty(num_rows // choices, choices, dtype=dtype)
        if num_rows:
            with torch.cuda.device_of(tokens):
                dot_kernel[(num_rows,)](
                    tokens.contiguous(),
                    rows.contiguous(),
                    order.contiguous(),
                    products,
                    width,
                    CHOICES=choices,
                    WIDE=_TYPES[accumulation_dtype(tokens.dtype, rows.dtype, dtype)],
                    BLOCK=_block(width),
                    **_EXACT,
                )
        return products


def _launch_blocks(
    kernel: Any,
    source: Tensor,
    index: Tensor,
    weights: Tensor | None,
    *,
    into: Tensor,
    choices: int,
) -> None:
    """Launch a program for each block of each row of ``into``."""
    if not into.numel():
        return
    source, width = source.contiguous(), into.shape[1]
    dtypes = [source.dtype] if weights is None else [source.dtype, weights.dtype]
    block = _block(width)
    with torch.cuda.device_of(source):
        kernel[(into.shape[0], triton.cdiv(width, block))](
            source,
            index.contiguous(),
            source if weights is None else weights.contiguous(),
            into,
            width,
            CHOICES=choices,
            WEIGHTED=weights is not None,
            WIDE=_TYPES[accumulation_dtype(*dtypes)],
            BLOCK=block,
            **_EXACT,
        )


def _block(width: int) -> int:
    """Return how many elements of a row one program takes at a time."""
    return min(BLOCK, int(triton.next_power_of_2(max(width, 1))))


def _on_device(addresses: Sequence[int], device: torch.device) -> Tensor:
    """Return addresses as a tensor, copied without waiting for the device."""
    table = torch.tensor(addresses, dtype=torch.int64, pin_memory=device.type == "cuda")
    return table.to(device, non_blocking=True)
