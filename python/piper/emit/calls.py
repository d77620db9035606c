"""Ops as Python calls that cost the host little: methods of tensors and functions of torch instead
of ``torch.ops.aten``, which takes the detour through a Python object and boxed arguments.

    aten.mm.default(a, b)                        ->  torch.mm(a, b)
    aten.mul.Tensor(a, b)                        ->  a * b
    aten.view.default(a, [4, 2])                 ->  a.view(4, 2)
    aten.slice.Tensor(a, 1, 0, 8)                ->  a[:, :8]
    aten.gelu_backward.default(dy, x)            ->  gelu_backward_default(dy, x)

A spelling is taken if evaluating it on fake tensors calls the same ops with the same arguments.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import BuiltinFunctionType
from typing import Any

import torch
from torch import Tensor, fx
from torch._ops import OpOverload
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

__all__ = ["CallWriter", "bound_name", "literal"]

aten = torch.ops.aten
nn = torch._C._nn

_OPERATORS = {
    aten.add.Tensor: "+",
    aten.sub.Tensor: "-",
    aten.mul.Tensor: "*",
    aten.div.Tensor: "/",
    aten.mul.Scalar: "*",
    aten.div.Scalar: "/",
    aten.add.Scalar: "+",
    aten.sub.Scalar: "-",
}
# The same arithmetic: torch's own implementation of the first is a call of the second.
_SCALAR_FORMS = {
    aten.add.Scalar: aten.add.Tensor,
    aten.sub.Scalar: aten.sub.Tensor,
    aten.mul.Scalar: aten.mul.Tensor,
    aten.div.Scalar: aten.div.Tensor,
}
# Methods that read better than functions, and are as fast.
_METHODS = frozenset(
    {"clone", "expand", "permute", "reshape", "squeeze", "t", "transpose", "unbind", "unsqueeze"}
    | {"view"}
)


class CallWriter:
    """Writes ops as calls; ``bound`` collects the ops that a module must give a name of its own."""

    def __init__(self) -> None:
        """Start with nothing bound."""
        self.bound: dict[str, OpOverload] = {}
        self._forms: dict[Any, int | None] = {}

    def write(self, node: fx.Node, names: Mapping[fx.Node, str]) -> str:
        """Return the call of an op node whose operands are ``names``, as an expression.

        Needs the fake operands in ``meta["val"]``, and their fake mode to be active.
        """
        op = node.target
        assert isinstance(op, OpOverload)
        args, kwargs = _without_defaults(op, node.args, node.kwargs)
        key = (op, repr(pytree.tree_map(_kind, (args, kwargs))))
        if key not in self._forms:
            self._forms[key] = _choose(node, args, kwargs)
        chosen = self._forms[key]
        if chosen is not None:
            return list(_forms(op, args, kwargs, names))[chosen]
        name = bound_name(op)
        self.bound[name] = op
        return _call(name, args, kwargs, names)


def bound_name(op: OpOverload) -> str:
    """Return the name under which a module binds an op: ``gelu_backward_default``."""
    prefix = "" if op.namespace == "aten" else f"{op.namespace}_"
    return f"{prefix}{op._opname}_{op._overloadname}"


def literal(value: Any) -> str:
    """Return an argument that is not a tensor as Python source."""
    match value:
        case torch.device():
            return "device"
        case float() if not math.isfinite(value):
            return "math.nan" if math.isnan(value) else f"{'-' * (value < 0)}math.inf"
        case None | bool() | int() | float() | str():
            return repr(value)
    return str(value)  # torch.float32, torch.contiguous_format


# Spellings.


def _forms(
    op: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], names: Mapping[fx.Node, str]
) -> Iterator[str]:
    """Yield ways to write an op, the best first."""
    texts = [_text(value, names) for value in args]
    first = texts[0] if args and isinstance(args[0], fx.Node) else None
    if op in _OPERATORS and not kwargs:
        yield f"{texts[0]} {_OPERATORS[op]} {texts[1]}"
    if first is not None and op is aten.neg.default:
        yield f"-{first}"
    if first is not None and op is aten.slice.Tensor and len(args) > 1 and args[1] >= 0:
        yield f"{first}[{_slices(args)}]"
    if first is not None and op is aten._to_copy.default and list(kwargs) == ["dtype"]:
        yield f"{first}.to({literal(kwargs['dtype'])})"
    name = op._opname
    if first is not None and name in _METHODS:
        if len(args) == 2 and isinstance(args[1], list) and args[1]:
            yield f"{first}.{name}({', '.join(map(literal, args[1]))})"
        yield _call(f"{first}.{name}", args[1:], kwargs, names)
    for module, prefix in ((torch, "torch"), (nn, "nn")):
        if isinstance(getattr(module, name, None), BuiltinFunctionType):
            yield _call(f"{prefix}.{name}", args, kwargs, names)


def _call(
    function: str, args: Sequence[Any], kwargs: Mapping[str, Any], names: Mapping[fx.Node, str]
) -> str:
    keywords = (f"{name}={_text(value, names)}" for name, value in kwargs.items())
    return f"{function}({', '.join([*(_text(value, names) for value in args), *keywords])})"


def _text(value: Any, names: Mapping[fx.Node, str]) -> str:
    if isinstance(value, fx.Node):
        return names[value]
    if isinstance(value, list | tuple):
        return f"[{', '.join(_text(item, names) for item in value)}]"
    return literal(value)


def _slices(args: Sequence[Any]) -> str:
    """Return the index of a slice of one dim, counted from the front: ``:, 2:4``."""
    given = list(args[1:])
    dim, start, end, step = given + [0, None, None, 1][len(given) :]
    begin = "" if not start else str(start)
    stop = "" if end is None or end == sys.maxsize else str(end)
    stride = "" if step == 1 else f":{step}"
    return f"{':, ' * dim}{begin}:{stop}{stride}"


def _without_defaults(
    op: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[list[Any], dict[str, Any]]:
    """Return the arguments without trailing ones that have their default value."""
    schema = op._schema.arguments
    kept = list(args)
    while kept and _is_default(schema[len(kept) - 1], kept[-1]):
        kept.pop()
    by_name = {argument.name: argument for argument in schema}
    named = {name: v for name, v in kwargs.items() if not _is_default(by_name[name], v)}
    return kept, named


def _is_default(argument: torch.Argument, value: Any) -> bool:
    if not argument.has_default_value() or isinstance(value, fx.Node):
        return False
    default = argument.default_value
    return type(default) is type(value) and bool(default == value)


# Trials.


def _choose(node: fx.Node, args: Sequence[Any], kwargs: Mapping[str, Any]) -> int | None:
    """Return the number of the first form that does what the op does."""
    op = node.target
    assert isinstance(op, OpOverload)
    operands = {value: f"x{i}" for i, value in enumerate(node.all_input_nodes)}
    fakes = {name: value.meta["val"] for value, name in operands.items()}
    given = fx.node.map_arg((node.args, node.kwargs), lambda value: value.meta["val"])
    wanted = _record(lambda: op(*given[0], **given[1]), fakes)
    for index, form in enumerate(_forms(op, args, kwargs, operands)):
        if _try(form, fakes) == wanted:
            return index
    return None


class _Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes the ops that are called, with tensors numbered: first the known ones."""

    def __init__(self, known: Iterable[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: list[str] = []
        self._seen: list[Tensor] = list(known)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func.namespace == "prim":  # a question, such as for the device
            return result
        known = _complete(func, args, kwargs or {})
        op = _SCALAR_FORMS.get(func, func)
        self.calls.append(f"{op} {pytree.tree_map(self._number, known)}")
        for tensor in pytree.tree_leaves(result):
            self._number(tensor)
        return result

    def _number(self, value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        for index, tensor in enumerate(self._seen):
            if tensor is value:
                return f"%{index}"
        self._seen.append(value)
        return f"%{len(self._seen) - 1}"


def _record(run: Callable[[], Any], operands: Mapping[str, Tensor]) -> list[str]:
    recorder = _Recorder(operands.values())
    with recorder:
        run()
    return recorder.calls


def _try(form: str, operands: Mapping[str, Tensor]) -> list[str] | None:
    """Return the ops that a spelling calls, or None if torch does not take it."""
    scope = {"torch": torch, "nn": nn, "math": math, "device": torch.device("cpu"), **operands}
    try:
        return _record(lambda: eval(form, scope), operands)
    except (TypeError, RuntimeError, ValueError, IndexError):
        return None


def _complete(func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
    """Return the arguments of a call by position, defaults included."""
    given = list(args)
    for argument in func._schema.arguments[len(given) :]:
        default = argument.default_value if argument.has_default_value() else None
        given.append(kwargs.get(argument.name, default))
    return [list(value) if isinstance(value, tuple) else value for value in given]


def _kind(value: Any) -> str:
    """Return what overload resolution sees of a tensor, and a literal itself."""
    if not isinstance(value, fx.Node):
        return repr(value)
    fake = value.meta["val"]
    return f"{fake.dtype} {fake.dim()}"
