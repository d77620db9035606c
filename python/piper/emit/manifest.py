"""The manifest of a compiled program: what a runtime must know beside the texts."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from math import prod
from typing import Any

from piper_runtime.states.sharding import Local

from piper.emit.flops import count_flops
from piper.emit.layouts import axes_of_kind, kinds_in
from piper.emit.names import torch_name
from piper.emit.symbols import Symbols, name_of
from piper.mlir import ir

__all__ = ["emit_bucket", "emit_manifest", "emit_state"]


def emit_manifest(
    symbols: Symbols, texts: Mapping[str, str], *, captured: str | None = None
) -> str:
    """Return ``manifest.json`` for a lowered module and the Python texts made from it.

    It is not sealed yet: see ``piper_runtime.program.seal``.
    With the text of the ``captured`` step it says how many FLOPs a training step has.
    """
    steps = {name_of(step): step for step in symbols.all("step")}
    train = steps["train"]
    update = symbols.update
    programs = sorted(
        (name for name in texts if name.startswith("program_")), key=_coordinate_of(symbols)
    )
    manifest = {
        "version": 1,
        "hash": "",  # of all texts and constants: whoever has them seals the program
        "mesh": [{"name": name, "size": size, "role": role} for name, size, role in symbols.axes],
        "microbatches": ir.IntegerAttr(train.attributes["microbatches"]).value,
        "inputs": _inputs(train),
        "data_axes": _strings(train.attributes["axes"]),
        "states": [emit_state(state) for state in symbols.all("state")],
        "buckets": [emit_bucket(bucket, symbols) for bucket in symbols.all("bucket")],
        "comms": [_comm(comm, symbols) for comm in symbols.all("comm")],
        "programs": programs,
        "entry_points": list(steps),
        "losses": _losses(train),
        "optimizer": _text(update, "optimizer"),
        "clip": _number(update, "clip"),
    }
    if update is not None and "skip_nonfinite" in update.attributes:
        manifest["skip_nonfinite"] = True
    if symbols.sequence is not None:
        axis, dims = symbols.sequence
        parts = next(size for name, size, _ in symbols.axes if name == axis)
        manifest["sequence"] = {"axis": axis, "dims": dims, "parts": parts}
    if symbols.loss_scale:
        manifest["loss_scale"] = _loss_scale(*symbols.loss_scale)
    if captured is not None:
        manifest["flops"] = count_flops(symbols, texts, programs, captured=captured)
    return json.dumps(manifest, indent=1) + "\n"


def _coordinate_of(symbols: Symbols) -> Any:
    prefix = len(f"program_{symbols.axis}")
    return lambda name: int(name[prefix : -len(".py")])


def _strings(attribute: ir.Attribute) -> list[str]:
    return [ir.StringAttr(item).value for item in ir.ArrayAttr(attribute)]


def _text(op: ir.Operation | None, name: str) -> str | None:
    if op is None or name not in op.attributes:
        return None
    path = ir.StringAttr(op.attributes[name]).value
    return path if ":" in path else None


def _number(op: ir.Operation | None, name: str) -> float | None:
    if op is None or name not in op.attributes:
        return None
    return float(ir.FloatAttr(op.attributes[name]).value)


def _loss_scale(initial: float, *change: float) -> float | dict[str, float]:
    """Return the number that stays, or what ``LossScale`` takes."""
    if not change:
        return initial
    growth, backoff, interval = change
    return {"initial": initial, "growth": growth, "backoff": backoff, "interval": int(interval)}


def _inputs(step: ir.Operation) -> list[dict[str, Any]]:
    dims = list(ir.DenseI64ArrayAttr(step.attributes["dims"]))
    arguments = step.regions[0].blocks[0].arguments
    names = _strings(step.attributes["inputs"])
    return [
        {"name": name, **_tensor(argument.type), "dim": None if dim < 0 else dim}
        for name, argument, dim in zip(names, arguments, dims, strict=True)
    ]


def _tensor(type_: ir.Type) -> dict[str, Any]:
    tensor = ir.RankedTensorType(type_)
    return {"shape": list(tensor.shape), "dtype": torch_name(tensor.element_type)}


def emit_state(state: ir.Operation) -> dict[str, Any]:
    """Return the entry of a state: its whole type, and along which axis ranks hold parts of it."""
    attributes = state.attributes
    kind = str(attributes["kind"]).strip(">").split()[-1]
    type_ = ir.TypeAttr(attributes["type"]).value
    return {
        "name": name_of(state),
        "kind": kind,
        **_tensor(type_),
        "trainable": kind == "parameter" and "frozen" not in attributes,
        "aliases": _strings(attributes["aliases"]) if "aliases" in attributes else [],
        **_shard_of(state),
    }


def _shard_of(state: ir.Operation) -> dict[str, Any]:
    """Return along which axis ranks share out a state by itself, and which dim of it; or nothing.

    Raises ValueError for several axes.
    """
    layout = state.attributes.get("layout", None)
    found = [
        (axis, int(shard[1]))
        for axis, kind in kinds_in(layout).items()
        if (shard := re.fullmatch(r"shard\((\d+)\)", kind))
    ]
    if not found:
        return {}
    if len(found) > 1:
        axes = [axis for axis, _ in found]
        raise ValueError(f"{name_of(state)} expected to be sharded over one axis, got {axes}")
    return {"shard_axis": found[0][0], "shard_dim": found[0][1]}


def emit_bucket(bucket: ir.Operation, symbols: Symbols) -> dict[str, Any]:
    """Return the entry of a bucket: its members, and how ranks hold its slots."""
    members = symbols.members[name_of(bucket)]
    states = [symbols.states[member] for member in members]
    types = {name: ir.TypeAttr(bucket.attributes[name]).value for name in _slots(bucket)}
    dtypes = {name: _tensor(type_)["dtype"] for name, type_ in types.items()}
    sharded = {name: axes_of_kind(type_, "shard(0)") for name, type_ in types.items()}
    for name, axes in sharded.items():
        if axes not in ([], sharded["value"]):
            raise ValueError(
                f"{name_of(bucket)} expected slot {name} whole or sharded over "
                f"{sharded['value']} as its value, got it sharded over {axes}"
            )
    varying = axes_of_kind(types["value"], "varying")
    ranks = prod(size for axis, size, _ in symbols.axes if axis in varying)
    dim = _shard_of(states[0])["shard_dim"] if varying else 0
    local = Local(0, ranks, dim)
    return {
        "name": name_of(bucket),
        "members": list(members),
        "holders": list(ir.DenseI64ArrayAttr(states[0].attributes["holders"])),
        "dtype": dtypes["value"],
        "numel": sum(prod(local.shape(tuple(emit_state(state)["shape"]))) for state in states),
        "grad_dtype": dtypes.get("grad"),
        "shard_axes": sharded["value"],
        "compute_dtype": dtypes.get("compute"),
        "compute_sharded": bool(sharded.get("compute")),
        "grad_sharded": bool(sharded.get("grad")),
        **({"varying_axes": varying} if varying else {}),
        **({"varying_dim": dim} if dim else {}),
    }


def _slots(bucket: ir.Operation) -> list[str]:
    return [name for name in ("value", "compute", "grad") if name in bucket.attributes]


def _comm(comm: ir.Operation, symbols: Symbols) -> dict[str, Any]:
    stream = symbols.streams[ir.FlatSymbolRefAttr(comm.attributes["stream"]).value]
    asked = {
        name: ir.IntegerAttr(stream.attributes[name]).value
        for name in ("priority", "sms")
        if name in stream.attributes
    }
    return {
        "name": name_of(comm),
        "axes": _strings(comm.attributes["axes"]),
        "coordinates": list(ir.DenseI64ArrayAttr(comm.attributes["coordinates"])),
        **asked,
    }


def _losses(step: ir.Operation) -> list[dict[str, str]]:
    losses = {}
    for view in step.regions[0].blocks[0].operations:
        if view.operation.name == "piper.output":
            name = ir.StringAttr(view.operation.attributes["name"]).value
            losses[name] = _tensor(view.operation.operands[0].type)["dtype"]
    return [{"name": name, "dtype": dtype} for name, dtype in losses.items()]
