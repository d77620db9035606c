"""user_pass: a Python function of the user's own that rewrites the program while it is compiled."""

from __future__ import annotations

import importlib
import inspect
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any, Literal

from piper.strategy.directive import Directive
from piper.strategy.text import attributes

Option = str | int | float | bool
Point = Literal["step", "chunks", "facts", "cluster"]
UserFunction = Callable[..., object]

POINTS = ("step", "chunks", "facts", "cluster")
"""The points at which passes can run, in the order in which the compiler comes to them."""

_NAME = re.compile(r"[\w.]+:[\w.]+")
_WORD = re.compile(r"[^\W\d]\w*")
_TYPES = {"str": (str,), "int": (int,), "float": (float, int), "bool": (bool,)}
_INT64 = range(-(2**63), 2**63)


@dataclass(frozen=True, repr=False)
class UserPass(Directive):
    """Call `function`, such as ``"package.module:function"``, at a point of the compiler's passes.

    It is called as ``function(module, **options)`` with a ``piper.mlir.ir.Module`` in a current
    context, and rewrites it in place. At the point

    - ``"step"`` the module has captured steps, op by op (``ir/step.mlir``)
    - ``"chunks"`` these are cut into chunks that launch kernels (``ir/chunks.mlir``)
    - ``"facts"`` chunks, states and steps also bear what the other directives say
    - ``"cluster"`` every microbatch has its place and its order (``ir/cluster.mlir``)

    Passes of one point run in the order of the directives. After each, the module is verified.
    A pass that returns False says that it found nothing to do, which is an error, as of every
    directive without effect; None and True are fine. `docs/user-passes.md` shows a whole one.

    Options are strings, ints, floats and bools. A parameter that is annotated with one of these
    takes no other.

    Raises:
        ValueError: a function that cannot be imported or called so, another point, or an option
            of another type.
    """

    function: str
    at: str
    options: Mapping[str, Option] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Check the fields, and import the function."""
        if not isinstance(self.function, str) or not _NAME.fullmatch(self.function):
            raise ValueError(
                f'user_pass function must be a name such as "package.module:function", '
                f"got {self.function!r}"
            )
        if self.at not in POINTS:
            raise ValueError(f"user_pass at must be one of {POINTS}, got {self.at!r}")
        object.__setattr__(self, "options", MappingProxyType(dict(self.options)))
        check_options(self.function, load_function(self.function), self.options)

    @classmethod
    def keyword(cls) -> str:
        """See `Directive`."""
        return "user_pass"

    def op(self) -> str:
        """See `Directive`."""
        options = f" options {attributes(self.options)}" if self.options else ""
        return f'piper.do.user_pass "{self.function}" at "{self.at}"{options}'

    def __repr__(self) -> str:
        """The call that makes it."""
        options = "".join(f", {name}={value!r}" for name, value in self.options.items())
        return f"user_pass({self.function!r}, at={self.at!r}{options})"


def user_pass(function: str, /, *, at: Point, **options: Option) -> UserPass:
    """Call a function of the user's own at a point of the compiler's passes; see `UserPass`."""
    return UserPass(function, at, options)


def load_function(name: str) -> UserFunction:
    """Import the function of a name such as ``package.module:function``.

    Raises:
        ValueError: says what cannot be found, and what can.
    """
    module_name, _, path = name.partition(":")
    module = _load_module(name, module_name)
    found: Any = module
    for part in path.split("."):
        found = getattr(found, part, None)
    function: UserFunction | None = found if callable(found) else None
    if function is None:
        known = ", ".join(_functions(module)) or "there is none"
        raise ValueError(
            f"user_pass {name!r} expected a function of module {module_name!r} ({known}), "
            f"got {path!r}"
        )
    return function


def check_options(name: str, function: UserFunction, options: Mapping[str, object]) -> None:
    """Check that the function of a name can be called with a module and with options.

    Raises:
        ValueError: an option that it does not take or lacks, or one of another type.
    """
    signature = inspect.signature(function)
    try:
        signature.bind(None, **options)
    except TypeError as error:
        raise ValueError(
            f"user_pass {name!r} expected the arguments {signature}, got a module and "
            f"{', '.join(options) or 'no option'}: {error}"
        ) from None
    for option, value in options.items():
        parameter = signature.parameters.get(option)
        annotation = None if parameter is None else parameter.annotation
        _check_option(name, option, value, annotation)


def _check_option(name: str, option: str, value: object, annotation: object) -> None:
    """Check the type of an option; annotations may be types, or text that is not evaluated."""
    kind = str(getattr(annotation, "__name__", annotation))
    wanted = _TYPES.get(kind, (str, int, float, bool))
    if type(value) not in wanted:
        expected = kind if kind in _TYPES else "str, int, float or bool"
        raise ValueError(f"user_pass {name!r} option {option} must be {expected}, got {value!r}")
    if not _WORD.fullmatch(option):
        raise ValueError(f"user_pass {name!r} option must have a name, got {option!r}")
    if type(value) is int and value not in _INT64:
        raise ValueError(f"user_pass {name!r} option {option} must fit in 64 bits, got {value}")


def _load_module(name: str, module_name: str) -> ModuleType:
    main = sys.modules["__main__"]
    if module_name not in sys.modules and module_name == _name_of_main(main):
        return main  # a script that names its own function is not run once more
    try:
        return importlib.import_module(module_name)
    except Exception as error:
        raise ValueError(
            f"user_pass {name!r} expected module {module_name!r} to be importable (its folder in "
            f"sys.path, to which PYTHONPATH adds), got {type(error).__name__}: {error}"
        ) from error


def _name_of_main(main: ModuleType) -> str | None:
    """Return the name under which the file that was started could be imported."""
    if main.__spec__ is not None:
        return main.__spec__.name
    file = getattr(main, "__file__", None)
    return None if file is None else Path(file).stem


def _functions(module: ModuleType) -> list[str]:
    """Return the public functions that a module defines."""
    return [
        name
        for name, value in vars(module).items()
        if inspect.isfunction(value)
        and value.__module__ == module.__name__
        and not name.startswith("_")
    ]
