"""Random mutations of programs or clusters, in memory: what a wrong pass, or a slip of a hand, makes."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

from piper.mlir import ir

__all__ = [
    "MUTATIONS",
    "OF_CLUSTERS",
    "Mutation",
    "Value",
    "body_of",
    "groups_of",
    "mutate",
    "programs_of",
    "regroup",
    "reorder",
    "without",
]

Value = ir.Value[Any]
SIZES = "operandSegmentSizes"

TRIES = 60
"""How many instructions are looked at for one that a mutation suits."""

Mutation = Callable[[ir.Module, ir.Operation, random.Random], bool]
"""Changes a module at an instruction; whether that was possible. If not, nothing has changed."""


def mutate(module: ir.Module, kind: str, choice: random.Random) -> str:
    """Apply a kind of mutation to some instruction, and say which; nothing if none is suited."""
    mutation = MUTATIONS[kind]
    for _ in range(TRIES):
        op = _pick(module, SUITED.get(mutation, ()), choice)
        text = str(op)
        if mutation(module, op, choice):
            return f"{kind}: {text}"
    return ""


def programs_of(module: ir.Module) -> list[ir.Operation]:
    """The programs of a module; before it is lowered, its clusters."""
    every = [view.operation for view in module.body.operations]
    programs = [op for op in every if _is(op, "program")]
    return programs or [op for op in every if _is(op, "cluster")]


def _is(op: ir.Operation, *names: str) -> bool:
    return op.name.removeprefix("piper.") in names


def body_of(program: ir.Operation) -> list[ir.Operation]:
    """The instructions of a program."""
    return [view.operation for view in program.regions[0].blocks[0].operations]


def _program(op: ir.Operation) -> ir.Operation:
    assert op.parent is not None
    return op.parent


def _pick(module: ir.Module, suited: Sequence[str], choice: random.Random) -> ir.Operation:
    """An instruction; kinds that are rare are as likely as others."""
    ops = [op for program in programs_of(module) for op in body_of(program)]
    kind = choice.choice(sorted({op.name for op in ops if not suited or _is(op, *suited)}))
    return choice.choice([op for op in ops if op.name == kind])


def _earlier(op: ir.Operation, type_: ir.Type) -> list[Value]:
    """The values of a type that an operand of an instruction may be."""
    found: list[Value] = []
    for other in body_of(_program(op)):
        if other == op:
            return found
        found += [result for result in other.results if result.type == type_]
    return found


def _swap(module: ir.Module, op: ir.Operation, choice: random.Random) -> bool:
    ops = body_of(_program(op))
    index = ops.index(op)
    if index + 1 == len(ops):
        return False
    op.move_after(ops[index + 1])
    return True


def _move(module: ir.Module, op: ir.Operation, choice: random.Random) -> bool:
    """Move an instruction anywhere between what makes its operands and what uses its results."""
    ops = body_of(_program(op))
    index = ops.index(op)
    first = 1 + max((ops.index(value.owner.operation) for value in op.operands), default=-1)
    users = [use.owner for result in op.results for use in result.uses]
    last = min((ops.index(user.operation) for user in users), default=len(ops))
    places = [place for place in range(first, last) if place != index]
    if not places:
        return False
    place = choice.choice(places)
    (op.move_before if place < index else op.move_after)(ops[place])
    return True


def _drop(module: ir.Module, op: ir.Operation, choice: random.Random) -> bool:
    instead = []
    for result in op.results:
        known = _earlier(op, result.type)
        if any(True for _ in result.uses) and not known:
            return False
        instead.append(choice.choice(known) if known else result)
    for result, other in zip(op.results, instead, strict=True):
        if other != result:
            result.replace_all_uses_with(other)
    op.erase()
    return True


def _duplicate(module: ir.Module, op: ir.Operation, choice: random.Random) -> bool:
    op.clone(ip=ir.InsertionPoint(op)).move_after(op)
    return True


def _swap_operands(module: ir.Module, op: ir.Operation, choice: random.Random) -> bool:
    pairs = [
        (i, j)
        for i, a in enumerate(op.operands)
        for j, b in enumerate(op.operands)
        if i < j and a.type == b.type and a != b
    ]
    if not pairs:
        return False
    i, j = choice.choice(pairs)
    first, second = op.operands[i], op.operands[j]
    op.operands[i], op.operands[j] = second, first
    return True


def _replace_operand(module: ir.Module, op: ir.Operation, choice: random.Random) -> bool:
    if not len(op.operands):
        return False
    index = choice.randrange(len(op.operands))
    known = [v for v in _earlier(op, op.operands[index].type) if v != op.operands[index]]
    if not known:
        return False
    op.operands[index] = choice.choice(known[-6:])
    return True


def _drop_event(module: ir.Module, op: ir.Operation, choice: random.Random) -> bool:
    """Leave an event out of `after`."""
    events = [i for i, value in enumerate(op.operands) if str(value.type) == "!piper.event"]
    if not events:
        return False
    without(op, choice.choice(events))
    return True


def groups_of(op: ir.Operation) -> list[list[Value]]:
    """The operands of an instruction, as its assembly groups them."""
    operands = list(op.operands)
    if SIZES not in op.attributes:
        return [operands]
    sizes = list(ir.DenseI32ArrayAttr(op.attributes[SIZES]))
    starts = [sum(sizes[:index]) for index in range(len(sizes))]
    return [operands[start : start + size] for start, size in zip(starts, sizes, strict=True)]


def regroup(op: ir.Operation, groups: Sequence[Sequence[Value]]) -> ir.Operation:
    """Put an instruction with other operands in the place of an instruction."""
    attributes = {name: op.attributes[name] for name in op.attributes}
    if SIZES in attributes:
        attributes[SIZES] = ir.DenseI32ArrayAttr.get([len(group) for group in groups])
    made = ir.Operation.create(
        op.name,
        results=[result.type for result in op.results],
        operands=[value for group in groups for value in group],
        attributes=attributes,
        loc=op.location,
        ip=ir.InsertionPoint(op),
    )
    for result, other in zip(op.results, made.results, strict=True):
        result.replace_all_uses_with(other)
    op.erase()
    return made


def without(op: ir.Operation, index: int) -> ir.Operation:
    """Leave an operand out."""
    groups = groups_of(op)
    for group in groups:
        if index < len(group):
            del group[index]
            break
        index -= len(group)
    return regroup(op, groups)


def _borrow_attribute(module: ir.Module, op: ir.Operation, choice: random.Random) -> bool:
    """Give an instruction an attribute of another of its kind: a peer, a microbatch, a label, a
    communicator, a chunk, a bucket, a name, an optimizer.
    """
    every = [other for program in programs_of(module) for other in body_of(program)]
    names = [name for name in op.attributes if name != SIZES]
    if not names:
        return False
    name = choice.choice(names)
    other = {
        str(like.attributes[name]): like.attributes[name]
        for like in every
        if name in like.attributes
        and like.attributes[name] != op.attributes[name]
        and (like.name == op.name or name != "label")
    }
    if not other:
        return False
    op.attributes[name] = other[choice.choice(sorted(other))]
    return True


def _retarget(module: ir.Module, op: ir.Operation, choice: random.Random) -> bool:
    """Send to, or receive from, any coordinate, on the communicator of that direction."""
    at = ir.IntegerAttr(_program(op).attributes["at"]).value
    every = {ir.IntegerAttr(p.attributes["at"]).value for p in programs_of(module)}
    peers = sorted(every - {at, ir.IntegerAttr(op.attributes["peer"]).value})
    if not peers:
        return False
    peer = choice.choice(peers)
    ends = (at, peer) if _is(op, "send") else (peer, at)
    op.attributes["peer"] = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), peer)
    op.attributes["stream"] = ir.FlatSymbolRefAttr.get(f"send${ends[0]}.{ends[1]}")
    return True


def _reorder(module: ir.Module, op: ir.Operation, choice: random.Random) -> bool:
    """Let an instruction and the next of its stream and kind change places."""
    other = _next_of_lane(op)
    return other is not None and reorder(op, other)


def _reorder_messages(module: ir.Module, op: ir.Operation, choice: random.Random) -> bool:
    """Let two messages of one direction change places at both ends, which still agree."""
    second = _next_of_lane(op)
    if second is None:
        return False
    first_end, second_end = _other_end(module, op), _other_end(module, second)
    if first_end is None or second_end is None:
        return False
    if not _may_follow(op, second) and not _may_precede(second, op):
        return False
    return reorder(first_end, second_end) and reorder(op, second)


def _drop_message(module: ir.Module, op: ir.Operation, choice: random.Random) -> bool:
    """Leave a message out at both ends; its receiver takes another value of the type."""
    end = _other_end(module, op)
    return end is not None and _drop(module, end, choice) and _drop(module, op, choice)


# Lanes: instructions of one kind on one stream.


def _lane(op: ir.Operation) -> tuple[str, str]:
    return op.name, str(op.attributes["stream"]) if "stream" in op.attributes else ""


def _like(op: ir.Operation) -> list[ir.Operation]:
    return [other for other in body_of(_program(op)) if _lane(other) == _lane(op)]


def _next_of_lane(op: ir.Operation) -> ir.Operation | None:
    like = _like(op)
    index = like.index(op) + 1
    return like[index] if index < len(like) else None


def _other_end(module: ir.Module, send: ir.Operation) -> ir.Operation | None:
    """The receive of a message, if it is there."""
    peer, entry = send.attributes["peer"], _program(send).attributes["of"]
    [program] = [
        program
        for program in programs_of(module)
        if program.attributes["of"] == entry and program.attributes["at"] == peer
    ]
    lane = ("piper.recv", _lane(send)[1])
    ends = [op for op in body_of(program) if _lane(op) == lane]
    index = _like(send).index(send)
    return ends[index] if index < len(ends) else None


def reorder(first: ir.Operation, second: ir.Operation) -> bool:
    """Let the later of two instructions come first; whether values allow it."""
    if _may_follow(first, second):
        first.move_after(second)
    elif _may_precede(second, first):
        second.move_before(first)
    else:
        return False
    return True


def _between(first: ir.Operation, second: ir.Operation) -> list[ir.Operation]:
    ops = body_of(_program(first))
    return ops[ops.index(first) : ops.index(second) + 1]


def _may_follow(first: ir.Operation, second: ir.Operation) -> bool:
    users = [use.owner for result in first.results for use in result.uses]
    return not any(op in users for op in _between(first, second))


def _may_precede(second: ir.Operation, first: ir.Operation) -> bool:
    makers = [value.owner for value in second.operands]
    return not any(op in makers for op in _between(first, second))


MUTATIONS: dict[str, Mutation] = {
    "swap with the next": _swap,
    "move": _move,
    "drop": _drop,
    "duplicate": _duplicate,
    "swap two operands": _swap_operands,
    "replace an operand": _replace_operand,
    "drop an event": _drop_event,
    "borrow an attribute": _borrow_attribute,
    "retarget": _retarget,
    "swap with the next of its kind": _reorder,
    "swap two messages at both ends": _reorder_messages,
    "drop a message at both ends": _drop_message,
}
OF_CLUSTERS = [
    "swap with the next",
    "move",
    "drop",
    "duplicate",
    "swap two operands",
    "replace an operand",
    "borrow an attribute",
    "swap with the next of its kind",
]
"""The kinds that make sense before programs are there."""
SUITED: dict[Mutation, tuple[str, ...]] = {
    _retarget: ("send", "recv"),
    _reorder_messages: ("send",),
    _drop_message: ("send",),
}
"""The instructions that a mutation is about, where it is not about all."""
