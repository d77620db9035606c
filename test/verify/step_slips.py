"""What may go wrong with an exchange of a step, or a wait for sizes, before kinds are assigned.

As in `slips`, each function takes an exchange and yields changes, none of which is made before it
is called.
"""

from __future__ import annotations

from collections.abc import Iterator

from mutations import Value, body_of
from piper.frontend.torch_op import torch_op
from piper.mlir import ir
from slips import Change, Slip

__all__ = ["STEP_SLIPS", "drop_first", "exchanges_of"]

SHARED = ("all_reduce", "all_gather", "reduce_scatter")
TARGETS = (*SHARED, "all_to_all", "host_wait")


def exchanges_of(module: ir.Module) -> list[ir.Operation]:
    """What the training step exchanges, and waits for."""
    every = [view.operation for view in module.body.operations]
    [step] = [op for op in every if _name(op) == "step" and _symbol(op) == "train"]
    return [op for op in body_of(step) if _name(op) in TARGETS]


def _name(op: ir.Operation) -> str:
    return op.name.removeprefix("piper.")


def _symbol(op: ir.Operation) -> str:
    return ir.StringAttr(op.attributes["sym_name"]).value


def _users(value: Value) -> list[ir.Operation]:
    return [use.owner.operation for use in value.uses]


def _is_tensor(value: Value) -> bool:
    return isinstance(value.type, ir.RankedTensorType)


def _exchanges_tensors(op: ir.Operation) -> bool:
    return _name(op) != "host_wait"


def _others(op: ir.Operation, name: str) -> list[ir.Operation]:
    """Ops of a name that come before, of other chunks if they have labels."""
    assert op.parent is not None
    body = body_of(op.parent)
    found = [other for other in body[: body.index(op)] if _name(other) == name]
    return [other for other in found if _chunk(other) != _chunk(op) or name == "host_wait"]


def _chunk(op: ir.Operation) -> str:
    label = op.attributes.get("label", None)
    return ir.StringAttr(label).value.partition(" ")[0] if label else ""


def _put(op: ir.Operation, *pairs: tuple[int, Value]) -> Change:
    def change() -> None:
        for index, value in pairs:
            op.operands[index] = value

    return change


def drop_first(module: ir.Module) -> None:
    """A pass of a strategy, which drops the first exchange."""
    [change] = drop(exchanges_of(module)[0])
    change()


def drop(op: ir.Operation) -> Iterator[Change]:
    """Use what would be exchanged."""
    if not _exchanges_tensors(op):
        return

    def change() -> None:
        op.results[0].replace_all_uses_with(op.operands[0])
        op.erase()

    yield change


def repeat(op: ir.Operation) -> Iterator[Change]:
    """Exchange what was exchanged."""
    if not _exchanges_tensors(op):
        return

    def change() -> None:
        again = op.clone(ip=ir.InsertionPoint(op)).operation
        again.move_after(op)
        op.results[0].replace_all_uses_with(again.results[0])
        again.operands[0] = op.results[0]

    yield change


def instead(op: ir.Operation) -> Iterator[Change]:
    """Be another exchange, or one along another dim."""
    if not _exchanges_tensors(op):
        return
    rank = ir.RankedTensorType(op.operands[0].type).rank
    for name in SHARED:
        for dim in range(rank if name != "all_reduce" else 1):
            same = dim == _dim(op) or name == "all_reduce"
            if name != _name(op) or not same:
                yield _replace(op, name, dim)
    if _name(op) == "all_to_all":
        yield from (_along(op, dim) for dim in range(rank) if dim != _dim(op))


def _along(op: ir.Operation, dim: int) -> Change:
    def change() -> None:
        op.attributes["dim"] = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), dim)

    return change


def _dim(op: ir.Operation) -> int | None:
    return ir.IntegerAttr(op.attributes["dim"]).value if "dim" in op.attributes else None


def _replace(op: ir.Operation, name: str, dim: int) -> Change:
    def change() -> None:
        kept = {name: op.attributes[name] for name in op.attributes}
        kept.pop("dim", None)
        if _name(op) == "all_to_all":  # which may have sizes
            kept["operandSegmentSizes"] = ir.DenseI32ArrayAttr.get([1, 0])
        if name != "all_reduce":
            kept["dim"] = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), dim)
        types = [result.type for result in op.results]
        made = ir.Operation.create(
            f"piper.{name}",
            results=types,
            operands=[value for value in op.operands if _is_tensor(value)],
            attributes=kept,
            loc=op.location,
            ip=ir.InsertionPoint(op),
        )
        op.results[0].replace_all_uses_with(made.results[0])
        op.erase()

    return change


def axis(op: ir.Operation) -> Iterator[Change]:
    """Exchange along another axis."""
    if not _exchanges_tensors(op):
        return
    for name in ("tp", "dp", "cp", "ep", "edp", "pp"):
        over = ir.ArrayAttr.get([ir.StringAttr.get(name)])
        if over != op.attributes["over"]:
            yield _over(op, over)
    yield _over(op, ir.ArrayAttr.get([]))


def _over(op: ir.Operation, over: ir.Attribute) -> Change:
    def change() -> None:
        op.attributes["over"] = over

    return change


def late(op: ir.Operation) -> Iterator[Change]:
    """Exchange what one of its users makes of it, in place of its operand."""
    if op.operands[0].type != op.results[0].type or not _exchanges_tensors(op):
        return
    for number, user in enumerate(_users(op.results[0])):
        floats = ir.RankedTensorType(op.operands[0].type).element_type
        for index, result in enumerate(user.results):
            if (
                isinstance(result.type, ir.RankedTensorType)
                and ir.RankedTensorType(result.type).element_type == floats
            ):
                yield _behind(op, number, index)


def _behind(op: ir.Operation, number: int, index: int) -> Change:
    def change() -> None:
        user = _users(op.results[0])[number]
        user.replace_uses_of_with(op.results[0], op.operands[0])
        moved = op.clone(ip=ir.InsertionPoint(user)).operation
        moved.move_after(user)
        moved.results[0].set_type(user.results[index].type)
        user.results[index].replace_all_uses_with(moved.results[0])
        moved.operands[0] = user.results[index]

    return change


def local(op: ir.Operation) -> Iterator[Change]:
    """Make what has its shape of a rank's own value: copies of a part, or a part of terms.

    Only in a captured step, where ops of torch stand beside exchanges, and of what has a shape.
    """
    if "tag" not in op.attributes or _name(op) in ("all_reduce", "host_wait"):
        return
    tensors = (ir.RankedTensorType(value.type) for value in (op.operands[0], op.results[0]))
    if not all(tensor.has_static_shape for tensor in tensors):
        return

    def change() -> None:
        dim = _dim(op)
        assert dim is not None
        before, after = (
            ir.RankedTensorType(value.type).shape[dim] for value in (op.operands[0], op.results[0])
        )
        with ir.InsertionPoint(op), op.location:
            tag = op.attributes["tag"]
            if after > before:
                copies = [op.operands[0]] * (after // before)
                [made] = torch_op("aten.cat.default", copies, dim, tag=tag)
            else:
                [made] = torch_op("aten.slice.Tensor", op.operands[0], dim, 0, after, tag=tag)
                [made] = torch_op("aten.clone.default", made, tag=tag)
        op.results[0].replace_all_uses_with(made)
        op.erase()

    yield change


def _confused(op: ir.Operation, at: int) -> Iterator[Change]:
    """Take the operands at `at` and behind it for each other, or one for both."""
    sent, received = op.operands[at], op.operands[at + 1]
    yield _put(op, (at, received), (at + 1, sent))
    yield _put(op, (at + 1, sent))
    yield _put(op, (at, received))


def sizes(op: ir.Operation) -> Iterator[Change]:
    """Send and receive rows in other sizes: exchanged, one for both, or those of another wait."""
    if _name(op) != "all_to_all" or len(op.operands) == 1:
        return
    yield from _confused(op, 1)
    sent, received = op.operands[1], op.operands[2]
    for wait in _others(op, "host_wait"):
        for index in (1, 2):
            for size in wait.results:
                if size not in (sent, received):
                    yield _put(op, (index, size))


def counts(op: ir.Operation) -> Iterator[Change]:
    """Wait for other counts: exchanged, one for both, or what other counts were exchanged for."""
    if _name(op) != "host_wait":
        return
    yield from _confused(op, 0)
    for wait in _others(op, "host_wait"):
        yield from (_put(op, (index, wait.operands[index])) for index in (0, 1))


def unexchanged(op: ir.Operation) -> Iterator[Change]:
    """Give one of its users what would be exchanged."""
    if not _exchanges_tensors(op) or op.operands[0].type != op.results[0].type:
        return
    for user in _users(op.results[0]):
        for index, value in enumerate(user.operands):
            if value == op.results[0]:
                yield _put(user, (index, op.operands[0]))


def other_layer(op: ir.Operation) -> Iterator[Change]:
    """Exchange what another layer does."""
    if _name(op) == "all_to_all":
        for other in _others(op, "all_to_all"):
            if other.operands[0].type == op.operands[0].type:
                yield _put(op, (0, other.operands[0]))


def other_rows(op: ir.Operation) -> Iterator[Change]:
    """Exchange other rows of the same type, or give others to one of its users: those of the other
    pass, on the other side of the experts, or of another layer.
    """
    if _name(op) != "all_to_all" or len(op.operands) == 1:
        return
    yield from _others_for(op, 0)
    for user in _users(op.results[0]):
        for index, value in enumerate(user.operands):
            if value == op.results[0]:
                yield from _others_for(user, index)


def _others_for(op: ir.Operation, index: int) -> Iterator[Change]:
    """Values that are there in place of an operand, each if it is no other name of the same."""
    assert op.parent is not None
    body = body_of(op.parent)
    for maker in body[: body.index(op)]:
        for value in maker.results:
            if value.type == op.operands[index].type and value != op.operands[index]:
                yield _put(op, (index, value))


STEP_SLIPS: dict[str, Slip] = {
    "drop": drop,
    "repeat": repeat,
    "instead": instead,
    "other axis": axis,
    "late": late,
    "local": local,
    "other sizes": sizes,
    "other counts": counts,
    "not for one": unexchanged,
    "of another layer": other_layer,
    "other rows": other_rows,
}
"""By kind of slip, the changes."""
