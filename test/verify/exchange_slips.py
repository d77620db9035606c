"""What may go wrong with an exchange: with its sizes, its ends, its order of operands, its place.

As in `slips`, each function takes an instruction and yields changes, none of which is made before
it is called.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from itertools import combinations

from mutations import Value, body_of
from piper.mlir import ir
from slips import SLIPS, Change, Slip

__all__ = ["EXCHANGE_SLIPS", "touches_exchange"]

PAIRS = 3
"""At most so many pairs of operands of one instruction are exchanged."""


def _name(op: ir.Operation) -> str:
    return op.name.removeprefix("piper.")


def _is_exchange(op: ir.Operation) -> bool:
    return _name(op) in ("all_to_all", "host_wait") or (
        "label" in op.attributes and "over" in op.attributes
    )


def touches_exchange(op: ir.Operation) -> bool:
    """Whether an instruction exchanges values of a microbatch, makes or uses such, sends or sums."""
    makers = [value.owner.operation for value in op.operands]
    users = [use.owner.operation for result in op.results for use in result.uses]
    return _name(op) in ("send", "recv", "transfer", "sum", "accumulate") or any(
        _is_exchange(other) for other in (op, *makers, *users)
    )


def _siblings(op: ir.Operation) -> list[ir.Operation]:
    assert op.parent is not None
    return body_of(op.parent)


def _of_type(values: ir.OpOperandList | ir.OpResultList, name: str) -> list[int]:
    return [index for index, value in enumerate(values) if str(value.type) == name]


def _put(op: ir.Operation, *pairs: tuple[int, Value]) -> Change:
    def change() -> None:
        for index, value in pairs:
            op.operands[index] = value

    return change


def _set(op: ir.Operation, **attributes: ir.Attribute) -> Change:
    def change() -> None:
        for name, attribute in attributes.items():
            op.attributes[name] = attribute

    return change


def exchange_sizes(op: ir.Operation) -> Iterator[Change]:
    """Send as many rows as are received, receive as many as are sent, or both."""
    sizes = _of_type(op.operands, "!piper.sizes")
    if len(sizes) < 2:
        return
    (sent, sent_size), (received, received_size) = ((i, op.operands[i]) for i in sizes)
    yield _put(op, (sent, received_size), (received, sent_size))
    yield _put(op, (received, sent_size))
    yield _put(op, (sent, received_size))


def other_sizes(op: ir.Operation) -> Iterator[Change]:
    """Take both sizes of each other wait of the host."""
    sizes = _of_type(op.operands, "!piper.sizes")
    for other in _siblings(op):
        if other == op:
            return
        made = _of_type(other.results, "!piper.sizes")
        if sizes and made and other.results[made[0]].owner != op.operands[sizes[0]].owner:
            values = (other.results[index] for index in made)
            yield _put(op, *zip(sizes, values, strict=False))


def exchange_operands(op: ir.Operation) -> Iterator[Change]:
    """Let two operands of one type change places."""
    operands = [(i, value) for i, value in enumerate(op.operands) if "event" not in str(value.type)]
    pairs = [
        (first, second)
        for first, second in combinations(operands, 2)
        if first[1].type == second[1].type and first[1] != second[1]
    ]
    for (first, one), (second, other) in pairs[:PAIRS]:
        yield _put(op, (first, other), (second, one))


def retarget(op: ir.Operation) -> Iterator[Change]:
    """Send to, or receive from, each other coordinate, on the communicator of that direction."""
    assert op.parent is not None
    if "peer" not in op.attributes:
        ends = {"to": op.attributes["from"], "from": op.attributes["to"]}
        yield _set(op, **ends)
        yield from (_set(op, **{name: end}) for name, end in ends.items())
        return
    at = ir.IntegerAttr(op.parent.attributes["at"]).value
    old = ir.IntegerAttr(op.attributes["peer"])
    programs = [view.operation for view in op.parent.block.operations if "at" in view.attributes]
    for peer in sorted({ir.IntegerAttr(p.attributes["at"]).value for p in programs} - {old.value}):
        first, second = (at, peer) if _name(op) == "send" else (peer, at)
        stream = ir.FlatSymbolRefAttr.get(f"send${first}.{second}")
        yield _set(op, peer=ir.IntegerAttr.get(old.type, peer))
        yield _set(op, peer=ir.IntegerAttr.get(old.type, peer), stream=stream)


def other_stream(op: ir.Operation) -> Iterator[Change]:
    """Run on another stream of a cluster."""
    assert op.parent is not None
    if op.parent.name != "piper.cluster":
        return
    for view in op.parent.block.operations:
        if view.operation.name == "piper.stream":
            name = ir.StringAttr(view.attributes["sym_name"]).value
            stream = ir.FlatSymbolRefAttr.get(name)
            if stream != op.attributes["stream"]:
                yield _set(op, stream=stream)


def other_label(op: ir.Operation) -> Iterator[Change]:
    """Be called as another exchange is."""
    labels = {str(o.attributes["label"]): o for o in _siblings(op) if "label" in o.attributes}
    for other in labels.values():
        if "label" in op.attributes and other.attributes["label"] != op.attributes["label"]:
            yield _set(op, label=other.attributes["label"])


def other_coordinate(op: ir.Operation) -> Iterator[Change]:
    """Take place at another coordinate of a cluster."""
    if "at" not in op.attributes:
        return
    for at in {
        str(o.attributes["at"]): o.attributes["at"] for o in _siblings(op) if "at" in o.attributes
    }.values():
        if type(at) is type(op.attributes["at"]) and at != op.attributes["at"]:
            yield _set(op, at=at)


def exchange_once_more(op: ir.Operation) -> Iterator[Change]:
    """Exchange equal parts of an operand first; in a cluster, where no event is due."""
    assert op.parent is not None
    if op.parent.name != "piper.cluster":
        return
    streams = {
        str(o.attributes["over"]): o
        for o in _siblings(op)
        if _is_exchange(o) and "over" in o.attributes
    }
    at = _place(op)
    if at is None:
        return
    for index, value in enumerate(op.operands):
        for like in streams.values():
            axes = [ir.StringAttr(axis).value for axis in ir.ArrayAttr(like.attributes["over"])]
            if all(f"{axis} = varying" in str(value.type) for axis in axes):
                yield _exchanged(op, index, like, at)


def _place(op: ir.Operation) -> int | None:
    if "at" not in op.attributes:
        return None
    at = op.attributes["at"]
    return (
        ir.IntegerAttr(at).value
        if isinstance(at, ir.IntegerAttr)
        else next(iter(ir.DenseI64ArrayAttr(at)))
    )


def _exchanged(op: ir.Operation, index: int, like: ir.Operation, at: int) -> Change:
    def change() -> None:
        attributes = {name: like.attributes[name] for name in ("over", "label", "mb", "stream")}
        attributes["at"] = ir.DenseI64ArrayAttr.get([at])
        attributes["dim"] = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), 0)
        attributes["operandSegmentSizes"] = ir.DenseI32ArrayAttr.get([1, 0, 0, 0])
        made = ir.Operation.create(
            "piper.all_to_all",
            results=[op.operands[index].type],
            operands=[op.operands[index]],
            attributes=attributes,
            loc=op.location,
            ip=ir.InsertionPoint(op),
        )
        op.operands[index] = made.results[0]

    return change


def other_bound(op: ir.Operation) -> Iterator[Change]:
    """Have room for one row less, and for twice as many, than the type says."""
    for result in op.results:
        text = str(result.type)
        if (found := re.search(r"\bbound = (\d+)", text)) is None:
            continue
        bound = int(found[1])
        for other in (bound - 1, 2 * bound):
            type_ = ir.Type.parse(text.replace(found[0], f"bound = {other}"))
            yield partial(result.set_type, type_)


EXCHANGES = ("all_to_all", "all_reduce", "all_gather", "reduce_scatter")
USERS = (*EXCHANGES, "host_wait", "run", "sum", "accumulate", "output")
EXCHANGE_SLIPS: dict[str, tuple[tuple[str, ...], Slip]] = {
    **SLIPS,
    "sizes exchanged": (("all_to_all",), exchange_sizes),
    "sizes of another wait": (("all_to_all",), other_sizes),
    "operands exchanged": (USERS, exchange_operands),
    "other peer": (("send", "recv", "transfer"), retarget),
    "other stream": (EXCHANGES, other_stream),
    "other label": (EXCHANGES, other_label),
    "other coordinate": ((*EXCHANGES, "host_wait", "run"), other_coordinate),
    "exchanged once more": (USERS, exchange_once_more),
    "other bound": (("all_to_all", "run"), other_bound),
}
"""As `slips.SLIPS`, and those that are about exchanges alone."""
