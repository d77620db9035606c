"""Kernels as texts: each a module of its own, with what it uses of ``kernels.py``."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from types import CodeType, FunctionType, ModuleType
from typing import Any

import torch
from torch import Tensor

from piper_runtime.errors import ProgramError
from piper_runtime.names import dtype_of

__all__ = [
    "ROWS",
    "KernelSource",
    "empty_arguments",
    "kernels_used",
    "read_kernels",
    "rows_argument",
]

ROWS = "rows"
"""A dim whose size depends on data, and is the same wherever a kernel has it."""

_TYPE = re.compile(rf"(\w+)\[(\(\)|(?:\d+|{ROWS})(?:, (?:\d+|{ROWS}))*)\]")


@dataclass(frozen=True)
class KernelSource:
    """One kernel: its name, the text of a module that holds it alone, how much it returns.

    The text has no comments: a kernel whose source lines moved is still the same.
    """

    name: str
    text: str
    num_results: int

    def function(self, device: torch.device) -> Callable[..., Any]:
        """Execute the text and return the kernel, bound to ``device``."""
        module: dict[str, Any] = {}
        exec(compile(self.text, f"<kernel {self.name}>", "exec"), module)  # noqa: S102
        module["device"] = device
        function: Callable[..., Any] = module[self.name]
        return function


def read_kernels(text: str, names: Collection[str]) -> list[KernelSource]:
    """Return the kernels of ``kernels.py`` that are among ``names``, in order.

    Raises ProgramError for one that does not end in a return.
    """
    body = ast.parse(text).body
    functions = [node for node in body if isinstance(node, ast.FunctionDef) and node.name in names]
    rest = [node for node in body if not isinstance(node, ast.FunctionDef | ast.Expr)]
    return [_source(function, rest) for function in functions]


def _source(function: ast.FunctionDef, rest: list[ast.stmt]) -> KernelSource:
    used = {node.id for node in ast.walk(function) if isinstance(node, ast.Name)}
    needed = [node for node in rest if _defines(node) is None or _defines(node) in used]
    module = ast.Module([*needed, function], [])
    returned = function.body[-1]
    if not isinstance(returned, ast.Return):
        raise ProgramError(f"kernel {function.name!r} expected to end in a return")
    match returned.value:
        case ast.Tuple(elts=elements):
            count = len(elements)
        case ast.Constant(value=None):
            count = 0
        case _:
            count = 1
    return KernelSource(function.name, f"{ast.unparse(module)}\n", count)


def _defines(node: ast.stmt) -> str | None:
    """Return the name that a line of the prologue gives to an op or the device."""
    if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
        return node.targets[0].id
    return None


def kernels_used(modules: Iterable[ModuleType]) -> set[str]:
    """Return the names of the kernels that the functions of rank programs call as ``k.name``."""
    return {
        name
        for module in modules
        for function in vars(module).values()
        if isinstance(function, FunctionType) and function.__module__ == module.__name__
        for name in _names(function.__code__)
    }


def _names(code: CodeType) -> Iterator[str]:
    return iter(code.co_names) if "k" in code.co_names else iter(())


def rows_argument(function: Callable[..., Any]) -> tuple[int, int] | None:
    """Return the first argument of a kernel that has a dim of rows, and which dim that is."""
    code = function.__code__
    for index, name in enumerate(code.co_varnames[: code.co_argcount]):
        found = _TYPE.fullmatch(function.__annotations__.get(name) or "")
        dims = found[2].split(", ") if found else []
        if ROWS in dims:
            return index, dims.index(ROWS)
    return None


def empty_arguments(
    function: Callable[..., Any], device: torch.device, *, rows: int | torch.SymInt = 0
) -> list[Tensor]:
    """Return an uninitialised tensor for each argument of a kernel, as it is annotated.

    ``rows`` is how many it is to have where that depends on data. Raises ProgramError for an
    argument without dtype and shape.
    """
    code = function.__code__
    return [
        _empty(name, function.__annotations__.get(name), device, rows)
        for name in code.co_varnames[: code.co_argcount]
    ]


def _empty(
    name: str, annotation: str | None, device: torch.device, rows: int | torch.SymInt
) -> Tensor:
    """Return a tensor of type ``float32[4, 8]``, ``float32[()]`` or ``float32[rows, 8]``."""
    found = _TYPE.fullmatch(annotation or "")
    if found is None:
        raise ProgramError(
            f"argument {name!r} of a kernel expected a type such as float32[4, 8], got {annotation}"
        )
    dims = [] if found[2] == "()" else found[2].split(", ")
    shape: Any = [rows if dim == ROWS else int(dim) for dim in dims]
    return torch.empty(shape, dtype=dtype_of(found[1]), device=device)
