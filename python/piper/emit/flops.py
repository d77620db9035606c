"""FLOPs of a training step: the model's, and those that each coordinate executes."""

from __future__ import annotations

import re
from collections.abc import Mapping

from piper.emit.names import identifier
from piper.emit.symbols import Symbols, name_of
from piper.mlir import ir

__all__ = ["count_flops"]

_FLOPS = re.compile(r"flops = (\d+)")
_RUN = re.compile(r"\br\.run\((\w+)")
_ATTENTION = ("piper.attention.default", "piper.attention_backward.default")


def count_flops(
    symbols: Symbols, texts: Mapping[str, str], programs: list[str], *, captured: str
) -> dict[str, dict[str, object]]:
    """Return the ``flops`` of the manifest for the entry point ``train``.

    The model's are those of the ``captured`` step (L1, text), in which nothing is computed again,
    times microbatches and data-parallel ranks: the formulas of torch's FLOP counter where it has
    one, else one per element. Where ranks share out sequences the captured step is that of a part,
    and attention that of the part with itself. Executed are those of the kernels that the
    ``programs`` launch.
    """
    kernels = {name_of(kernel): _flops(kernel, "cost") for kernel in symbols.all("kernel")}
    chunks = {
        identifier(name): sum(kernels[kernel] for kernel in _launched(chunk))
        for name, chunk in symbols.chunks.items()
    }
    executed = [
        sum(chunks[function] for function in _RUN.findall(_entry(texts[program], "train")))
        for program in programs
    ]
    return {"train": {"model": _model_flops(symbols, captured), "executed": executed}}


def _model_flops(symbols: Symbols, captured: str) -> int:
    parts = _parts_of_sequence(symbols)
    with ir.Context():
        captures = Symbols(ir.Module.parse(captured))  # which owns the ops
        train = _step(captures)
        ops = [view.operation for view in train.regions[0].blocks[0].operations]
        once = sum(_flops(op, "facts") * (parts if _is_attention(op) else 1) for op in ops)
    placed = _step(symbols)
    times: int = ir.IntegerAttr(placed.attributes["microbatches"]).value
    split = [ir.StringAttr(axis).value for axis in ir.ArrayAttr(placed.attributes["axes"])]
    for name, size, _ in symbols.axes:
        times *= size if name in split else 1
    return once * times


def _parts_of_sequence(symbols: Symbols) -> int:
    """Return among how many ranks with parts of their own sequences are shared out."""
    if symbols.sequence is None:
        return 1
    return next(size for name, size, _ in symbols.axes if name == symbols.sequence[0])


def _is_attention(op: ir.Operation) -> bool:
    if op.name != "piper.torch":
        return False
    return ir.StringAttr(op.attributes["op_name"]).value in _ATTENTION


def _step(symbols: Symbols) -> ir.Operation:
    return next(step for step in symbols.all("step") if name_of(step) == "train")


def _launched(chunk: ir.Operation) -> list[str]:
    return [
        ir.FlatSymbolRefAttr(view.operation.attributes["kernel"]).value
        for view in chunk.regions[0].blocks[0].operations
        if view.operation.name == "piper.launch"
    ]


def _flops(op: ir.Operation, attribute: str) -> int:
    """Return the FLOPs in the facts or the cost of an op; 0 if it has none."""
    found = _FLOPS.search(str(op.attributes[attribute])) if attribute in op.attributes else None
    return int(found[1]) if found else 0


def _entry(text: str, name: str) -> str:
    """Return the lines of an entry point."""
    return text.partition(f"\ndef {name}(r):\n")[2].partition("\ndef ")[0]
