"""Whether a rule that a user writes is one, and is one for the op and for each of its calls."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

import torch
from torch import fx
from torch._ops import OpOverload

from piper.frontend.data import CaptureError
from piper.frontend.rule_text import Rule, results, shapes
from piper.frontend.sites import node_site

__all__ = ["canonical", "check_call", "find_problems"]

TOLD: Final = ("index", "parts", "size")
_NAME: Final = r"[A-Za-z0-9]+"
_DIMS: Final = rf"\s*(?:{_NAME}(?:\s+{_NAME})*)?\s*"
_SIDE: Final = rf"{_DIMS}(?:,{_DIMS})*"
_SIZE: Final = rf"(\d+)(?:\.\d+)?\s*=\s*({_NAME})"
_OP: Final = r"\w+\.\w+\.\w+"
_PART: Final = (
    rf"({_NAME}(?:\s+{_NAME})*)\s+by\s+({_OP})(?:\s+after\s+({_OP}))?(?:\s+same\s+(\d+))?"
)
_ENTRY: Final = rf"\s*(?:linear|sum\s+{_NAME}|{_SIZE}|{_PART})\s*"
_TEXT: Final = re.compile(rf"{_SIDE}->{_SIDE}(?:;{_ENTRY}(?:,{_ENTRY})*)?")


def canonical(rule: str) -> str:
    """Return the text of a rule with single spaces where they belong."""
    dims, _, behind = rule.partition(";")
    sides = (", ".join(_words(part) for part in side.split(",")) for side in dims.split("->"))
    entries = ", ".join(_words(entry.replace("=", " = ")) for entry in behind.split(","))
    text = " -> ".join(sides)
    return f"{text}; {entries}" if entries else text


def _words(text: str) -> str:
    return " ".join(text.split())


def find_problems(op: OpOverload, rule: str) -> Iterator[str]:
    """Yield what was expected and what is there instead."""
    if not _TEXT.fullmatch(rule):
        yield (
            "dims of operands, '->', dims of results and perhaps ';' with sums, sizes, 'linear' "
            f"and ops of parts, such as 'm k, k n -> m n; sum k', got {rule!r}"
        )
        return
    parsed = Rule.parse(canonical(rule))
    left, right = _factors(parsed.operands), _factors(parsed.results)
    for names in (*parsed.operands, *parsed.results):
        plain = [name for name in names if name != "1"]
        if len(set(plain)) < len(plain):
            yield f"different names for the dims of one tensor, got {' '.join(names)!r}"
    for name in sorted(parsed.sums - left):
        yield f"sums over dims of operands, got 'sum {name}' in {rule!r}"
    for position, name in re.findall(_SIZE, rule.partition(";")[2]):
        if name not in left | right:
            yield f"sizes of dims, got {position} = {name} in {rule!r}"
        if int(position) >= len(op._schema.arguments):
            yield f"arguments from 0 to {len(op._schema.arguments) - 1}, got {position} = {name}"
    for entry in re.finditer(_PART, rule.partition(";")[2]):
        yield from _part_problems(op, left | right, rule, entry)
    yield from _count_problems(op, parsed)


def _part_problems(
    op: OpOverload, factors: set[str], rule: str, entry: re.Match[str]
) -> Iterator[str]:
    """Yield what is wrong with the ops that take parts, and are told which these are."""
    names, part, stats, same = entry.groups()
    for name in names.split():
        if name not in factors:
            yield f"ops of parts of dims, got {name} by {part} in {rule!r}"
    if same is not None and int(same) >= len(op._schema.returns):
        yield f"results from 0 to {len(op._schema.returns) - 1}, got 'same {same}'"
    wanted = [*TOLD, "stats"] if stats else [*TOLD]
    for name, keywords in ((part, wanted), *([(stats, [*TOLD])] if stats else [])):
        found = _overload(name)
        if found is None:
            yield f"a registered op of parts, such as 'mine.part.default', got {name!r}"
            continue
        given = [one.name for one in found._schema.arguments if one.kwarg_only]
        plain = [one.name for one in found._schema.arguments if not one.kwarg_only]
        if given != keywords or len(plain) != len(op._schema.arguments):
            yield (
                f"{name} to take {len(op._schema.arguments)} arguments, as {op}, and by keyword "
                f"{', '.join(keywords)}, got {len(plain)} and {', '.join(given) or 'nothing'}"
            )


def _overload(name: str) -> OpOverload | None:
    found: Any = torch.ops
    for part in name.split("."):
        found = getattr(found, part, None)
    return found if isinstance(found, OpOverload) else None


def _factors(tensors: Sequence[Sequence[str]]) -> set[str]:
    return {name for names in tensors for name in names} - {"1"}


def _count_problems(op: OpOverload, rule: Rule) -> Iterator[str]:
    """Yield other numbers of tensors than the op has, where its schema says how many."""
    sides = (
        ("operands", rule.operands, [str(slot.type) for slot in op._schema.arguments]),
        ("results", rule.results, [str(slot.type) for slot in op._schema.returns]),
    )
    for what, given, types in sides:
        if any("List" in text and "Tensor" in text for text in types):
            continue
        least = types.count("Tensor")
        most = least + types.count("Optional[Tensor]")
        if not least <= len(given) <= most:
            wanted = f"{least}" if least == most else f"{least} to {most}"
            yield f"{wanted} {what}, got {len(given)}"


def check_call(node: fx.Node, text: str) -> None:
    """Raise CaptureError, with its source line, for a call of other dims than the rule has."""
    rule = Rule.parse(text)
    sizes: dict[str, int] = {"1": 1}
    found = [tuple(result.shape) for result in results(node)]
    sides = (("operand", rule.operands, shapes(node)), ("result", rule.results, found))
    for kind, names, tensors in sides:
        pairs = [*zip(names, tensors, strict=False)]
        if len(names) != len(tensors):
            _refuse(node, text, f"{len(names)} {kind}s", str(len(tensors)))
        for number, (dims, shape) in enumerate(pairs):
            known = [sizes.setdefault(name, size) for name, size in zip(dims, shape, strict=False)]
            if len(dims) != len(shape) or known != list(shape):
                told = ", ".join(str(sizes.get(name, name)) for name in dims)
                got = f"{tuple(shape)}"
                _refuse(node, text, f"{kind} {number} of shape ({told})", got)


def _refuse(node: fx.Node, text: str, expected: str, got: str) -> None:
    raise CaptureError(
        f"{node_site(node)}: the rule {text!r} of {node.target} expected {expected}, got {got}"
    )
