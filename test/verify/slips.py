"""What may go wrong with one instruction: every slip of a pass that one change can make.

Each function takes an instruction and yields the changes of one kind, which are made when they are
called. None is made while they are listed, so that all mutants can be counted first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import product

from mutations import Value, body_of, groups_of, regroup, without
from piper.mlir import ir

__all__ = ["SLIPS", "Change", "Slip"]

COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
MESSAGES = ("send", "recv", "transfer")
STATES = ("read", "write", "update")
SUMS = ("accumulate", "sum", "sumsq", "slice", "convert")
COMMUNICATION = (*COLLECTIVES, *MESSAGES)
ALL = (*COMMUNICATION, *STATES, *SUMS, "host_wait", "free", "record")

Change = Callable[[], object]
Slip = Callable[[ir.Operation], Iterator[Change]]


def _is(op: ir.Operation, *names: str) -> bool:
    return op.name.removeprefix("piper.") in names


# What an instruction can see.


def _siblings(op: ir.Operation) -> list[ir.Operation]:
    assert op.parent is not None
    return body_of(op.parent)


def _symbols(op: ir.Operation, name: str) -> list[ir.Operation]:
    assert op.parent is not None
    block = op.parent.block
    return [view.operation for view in block.operations if _is(view.operation, name)]


def _reference(symbol: ir.Operation) -> ir.Attribute:
    return ir.FlatSymbolRefAttr.get(ir.StringAttr(symbol.attributes["sym_name"]).value)


def _earlier(op: ir.Operation, type_: ir.Type) -> list[Value]:
    """The values of a type that an operand may be, the nearest first."""
    found: list[Value] = []
    for other in _siblings(op):
        if other == op:
            break
        found += [result for result in other.results if result.type == type_]
    return found[::-1]


def _data(values: Sequence[Value]) -> list[tuple[int, Value]]:
    """Tensors, and the sizes that the host knows."""
    return [(index, value) for index, value in enumerate(values) if not _is_event(value)]


def _tensors(values: Sequence[Value]) -> list[tuple[int, Value]]:
    data = _data(values)
    return [(index, value) for index, value in data if isinstance(value.type, ir.RankedTensorType)]


def _is_event(value: Value) -> bool:
    return str(value.type) == "!piper.event"


def _users(value: Value) -> list[ir.Operation]:
    return [use.owner.operation for use in value.uses]


def _coordinate(op: ir.Operation, index: int) -> dict[str, ir.Attribute]:
    """Where the operand of a number is, as an attribute; nothing in a program."""
    if "at" not in op.attributes:
        return {}
    at = op.attributes["at"]
    if not _is(op, *COLLECTIVES):
        return {"at": at}
    number = list(ir.DenseI64ArrayAttr(at))[index]
    return {"at": ir.IntegerAttr.get(ir.IntegerType.get_signless(64), number)}


def _set(op: ir.Operation, **attributes: ir.Attribute) -> Change:
    def change() -> None:
        for name, attribute in attributes.items():
            op.attributes[name] = attribute

    return change


# Drop, duplicate, move.


def drop(op: ir.Operation) -> Iterator[Change]:
    """Use what it continues or was given, or else an earlier value, in place of what it makes."""
    instead: dict[int, Value] = {}
    for index, result in _data(op.results):
        own = [value for value in op.operands if value.type == result.type][::-1]
        known = own or _earlier(op, result.type)
        if known:
            instead[index] = known[0]
        elif _users(result):
            return

    def change() -> None:
        _erase(op, instead)

    yield change


def relabel(op: ir.Operation) -> Iterator[Change]:
    """Drop it, and claim that what it was given is what it would make."""
    operands, results = _tensors(op.operands), _tensors(op.results)
    shapes = [ir.RankedTensorType(value.type).shape for _, value in (*operands, *results)]
    if any(shape != shapes[0] for shape in shapes) or operands[0][1].type == results[0][1].type:
        return

    def change() -> None:
        made = {
            index: _make("piper.relabel", [operands[index][1]], result.type, before=op)
            for index, result in results
        }
        _erase(op, made)

    yield change


def _erase(op: ir.Operation, instead: dict[int, Value]) -> None:
    """Take an instruction out; nothing waits for it any more."""
    for index, result in enumerate(op.results):
        if index in instead:
            result.replace_all_uses_with(instead[index])
        while users := _users(result):
            without(users[0], list(users[0].operands).index(result))
    op.erase()


def _make(
    name: str,
    operands: Sequence[Value],
    type_: ir.Type,
    *,
    before: ir.Operation,
    attributes: dict[str, ir.Attribute] | None = None,
) -> Value:
    made = ir.Operation.create(
        name,
        results=[type_],
        operands=operands,
        attributes=attributes or {},
        loc=before.location,
        ip=ir.InsertionPoint(before),
    )
    return made.results[0]


def duplicate(op: ir.Operation) -> Iterator[Change]:
    """Do it twice: beside itself, and on its own result where the types allow it."""

    def beside() -> None:
        _again(op)

    yield beside
    chained = _chained(op)
    if not chained:
        return

    def chain() -> None:
        again = _again(op)
        for result, other in zip(op.results, again.results, strict=True):
            result.replace_all_uses_with(other)
        for index, number in chained:
            again.operands[index] = op.results[number]

    yield chain


def _chained(op: ir.Operation) -> list[tuple[int, int]]:
    """The operands that results may take the place of; of collectives those of one coordinate."""
    pairs = [
        (index, number)
        for (index, value), (number, result) in product(_tensors(op.operands), _tensors(op.results))
        if value.type == result.type and (index == number or not _is(op, *COLLECTIVES))
    ]
    return pairs if _is(op, *COLLECTIVES) else pairs[-1:]


def _again(op: ir.Operation) -> ir.Operation:
    again = op.clone(ip=ir.InsertionPoint(op)).operation
    again.move_after(op)
    return again


def move(op: ir.Operation) -> Iterator[Change]:
    """Over a neighbour, halfway, and as far as values allow, both up and down."""
    ops = _siblings(op)
    index = ops.index(op)
    first = 1 + max((ops.index(value.owner.operation) for value in op.operands), default=-1)
    users = [ops.index(user) for result in op.results for user in _users(result)]
    last = min(users, default=len(ops)) - 1
    places = {index - 1, (first + index) // 2, first, index + 1, (index + last) // 2, last}
    for place in sorted(places):
        if first <= place <= last and place != index:
            yield _move_to(op, ops[place], up=place < index)


def _move_to(op: ir.Operation, other: ir.Operation, *, up: bool) -> Change:
    return lambda: (op.move_before if up else op.move_after)(other)


# Over which ranks, along which dim, in which precision.


def communicator(op: ir.Operation) -> Iterator[Change]:
    """Communicate on each other communicator, and so perhaps over other axes."""
    for comm in _symbols(op, "comm"):
        stream = _reference(comm)
        if stream == op.attributes["stream"]:
            continue
        over = {"over": comm.attributes["axes"]} if _is(op, *COLLECTIVES) else {}
        yield _set(op, stream=stream, **over)


def axis(op: ir.Operation) -> Iterator[Change]:
    """Communicate, or slice, over other axes, on the same communicator."""
    every = [other for other in _siblings(op) if "over" in other.attributes]
    known = {str(other.attributes["over"]): other.attributes["over"] for other in every}
    none = ir.ArrayAttr.get([])
    known[str(none)] = none
    for over in (ir.ArrayAttr(known[text]) for text in sorted(known)):
        if _is(op, "slice"):
            yield from (_set(op, axis=name) for name in over if name != op.attributes["axis"])
        elif over != op.attributes["over"]:
            yield _set(op, over=over)


def dim(op: ir.Operation) -> Iterator[Change]:
    """Gather, scatter or slice along another dim."""
    yield from _neighbours(op, "dim")


def microbatch(op: ir.Operation) -> Iterator[Change]:
    """Belong to another microbatch."""
    if "mb" in op.attributes:
        yield from _neighbours(op, "mb")


def _neighbours(op: ir.Operation, name: str) -> Iterator[Change]:
    old = ir.IntegerAttr(op.attributes[name])
    for value in (old.value - 1, old.value + 1):
        if value >= 0:
            yield _set(op, **{name: ir.IntegerAttr.get(old.type, value)})


def dtype(op: ir.Operation) -> Iterator[Change]:
    """Claim to make a narrower dtype; and do it in that, with conversions before and behind it."""
    results = _tensors(op.results)
    values = [*_tensors(op.operands), *results]
    types = {value: low for _, value in values if (low := _narrowed(value.type)) is not None}
    if not results or any(value not in types for _, value in values):
        return
    _, first = results[0]
    yield partial(first.set_type, types[first])
    if values == results:
        return

    def change() -> None:
        for index, value in _tensors(op.operands):
            at = _coordinate(op, index)
            low = _make("piper.convert", [value], types[value], before=op, attributes=at)
            op.operands[index] = low
        following = _siblings(op)[_siblings(op).index(op) + 1]
        events = [value for value in op.results if _is_event(value)]
        for index, result in results:
            at, users, wide = _coordinate(op, index), _users(result), result.type
            result.set_type(types[result])
            made = _make("piper.convert", [result, *events], wide, before=following, attributes=at)
            for user in users:
                user.replace_uses_of_with(result, made)

    yield change


def _narrowed(type_: ir.Type) -> ir.Type | None:
    """A tensor of half as many bytes; None where the dtype is not fp64 or fp32."""
    tensor = ir.RankedTensorType(type_)
    if isinstance(tensor.element_type, ir.F64Type):
        low: ir.Type = ir.F32Type.get()
    elif isinstance(tensor.element_type, ir.F32Type):
        low = ir.BF16Type.get()
    else:
        return None
    return ir.RankedTensorType.get(tensor.shape, low, tensor.encoding, ir.Location.unknown())


# Of which state, on which values.


def slot(op: ir.Operation) -> Iterator[Change]:
    """Read or write another slot of the bucket."""
    if "slot" not in op.attributes:
        return
    for name in ("value", "compute", "grad"):
        other = ir.Attribute.parse(f"#piper<slot {name}>")
        if other != op.attributes["slot"]:
            yield _set(op, slot=other)


def bucket(op: ir.Operation) -> Iterator[Change]:
    """Read, write, accumulate or update another bucket."""
    name = next((name for name in ("symbol", "bucket") if name in op.attributes), None)
    if name is None:
        return
    for other in _symbols(op, "bucket"):
        if _reference(other) != op.attributes[name]:
            yield _set(op, **{name: _reference(other)})


def operand(op: ir.Operation) -> Iterator[Change]:
    """Take one of the last two other values of the type."""
    for index, value in _data(op.operands):
        others = [other for other in _earlier(op, value.type) if other != value]
        for other in others[:2]:
            yield _take(op, index, other)


def _take(op: ir.Operation, index: int, value: Value) -> Change:
    def change() -> None:
        op.operands[index] = value

    return change


def swap(op: ir.Operation) -> Iterator[Change]:
    """Exchange what two instructions of one kind make: the next one of equal type."""
    for index, result in _data(op.results)[:1]:
        for other in _siblings(op)[_siblings(op).index(op) + 1 :]:
            if other.name == op.name and other.results[index].type == result.type:
                yield _exchange(result, other.results[index])
                break


def _exchange(first: Value, second: Value) -> Change:
    def change() -> None:
        users = _users(first), _users(second)
        for user in users[1]:
            user.replace_uses_of_with(second, first)
        for user in users[0]:
            user.replace_uses_of_with(first, second)

    return change


def wait(op: ir.Operation) -> Iterator[Change]:
    """Do not wait for one of the events."""
    for index, value in enumerate(op.operands):
        if _is_event(value):
            yield partial(without, op, index)


def keep(op: ir.Operation) -> Iterator[Change]:
    """Do not free one of the values."""
    for index, _ in _tensors(op.operands):
        yield partial(without, op, index)


def free_early(op: ir.Operation) -> Iterator[Change]:
    """Free one of the values that the next instruction of this kind frees."""
    ops = _siblings(op)
    index = ops.index(op)
    made = {result for before in ops[:index] for result in before.results}
    for other in [other for other in ops[index + 1 :] if _is(other, "free")][:1]:
        for number, value in _tensors(other.operands):
            if value in made:
                yield _free_with(op, other, number)


def _free_with(op: ir.Operation, other: ir.Operation, number: int) -> Change:
    def change() -> None:
        values, events = groups_of(op)
        regroup(op, [[*values, other.operands[number]], events])
        without(other, number)

    return change


def onto_nothing(op: ir.Operation) -> Iterator[Change]:
    """Start the sum anew."""
    value, onto, events = groups_of(op)
    if onto:
        yield lambda: regroup(op, [value, [], events])


SLIPS: dict[str, tuple[tuple[str, ...], Slip]] = {
    "drop": (ALL, drop),
    "drop and relabel": (COLLECTIVES, relabel),
    "duplicate": (ALL, duplicate),
    "move": (ALL, move),
    "other communicator": (COMMUNICATION, communicator),
    "other axes": ((*COLLECTIVES, "slice"), axis),
    "other dim": (("all_gather", "reduce_scatter", "all_to_all", "slice"), dim),
    "other microbatch": ((*COMMUNICATION, "input", "run", "host_wait"), microbatch),
    "other dtype": ((*COLLECTIVES, *SUMS), dtype),
    "other slot": (("read", "write"), slot),
    "other bucket": ((*STATES, "accumulate", "sum"), bucket),
    "other operand": (
        (*COMMUNICATION, *STATES, *SUMS, "run", "output", "tangent", "host_wait"),
        operand,
    ),
    "results exchanged": ((*COLLECTIVES, *STATES, *SUMS, "recv", "transfer", "host_wait"), swap),
    "wait dropped": ((), wait),
    "value kept": (("free",), keep),
    "value freed early": (("free",), free_early),
    "sum begun anew": (("accumulate",), onto_nothing),
}
"""By kind of slip, the instructions it is of, or none for all, and the changes."""
