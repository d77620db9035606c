"""What capture refuses by name because the program would silently lose or change it."""

from __future__ import annotations

import dis
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
import torch.nn.modules.module as torch_module
from torch import Tensor, fx, nn
from torch._ops import HigherOrderOperator, OpOverload
from torch.fx.experimental.symbolic_shapes import has_free_symbols
from torch.utils import _pytree as pytree

from piper.frontend.data import CaptureError, OpSite
from piper.frontend.op_facts import arguments, effects, is_random
from piper.frontend.sites import node_site

__all__ = ["refuse_higher_order", "refuse_hooks", "refuse_mutations", "refuse_ops", "state_change"]

aten = torch.ops.aten

_MODULE_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_GLOBAL_HOOKS = tuple(f"_global{name}" for name in _MODULE_HOOKS)
_PARAMETER_HOOKS = ("_backward_hooks", "_post_accumulate_grad_hooks")
# transformers installs these on a model's first eager call; they only collect hidden states that a
# caller asks for.
_HARMLESS = ("transformers.utils.output_capturing",)
_HARMLESS_STATE = ("transformers_dot_utils_dot_output_capturing",)
_MODEL_SOURCE = "L['self']._modules['model']"
_MODULE_SOURCE = re.compile(re.escape(_MODEL_SOURCE) + r"(?P<path>(\._modules\['[^']*'\])*)")
_STRIDE_READERS = (
    aten.as_strided.default,
    aten.as_strided_scatter.default,
    aten.as_strided_copy.default,
    aten.new_empty_strided.default,
    aten.empty_strided.default,
)


def refuse_hooks(model: nn.Module) -> None:
    """Raise CaptureError for a hook on the model's modules or parameters, or on all modules."""
    for owner, hook in _hooks(model):
        if not str(getattr(hook, "__module__", "")).startswith(_HARMLESS):
            raise CaptureError(
                f"{owner} has a hook, which a program would not run: {_describe(hook)}"
            )


def _hooks(model: nn.Module) -> Iterator[tuple[str, Any]]:
    for name in _GLOBAL_HOOKS:
        for hook in getattr(torch_module, name).values():
            yield "torch.nn.Module", hook
    for path, module in model.named_modules():
        for name in _MODULE_HOOKS:
            for hook in getattr(module, name).values():
                yield f"module {path!r}", hook
    for path, parameter in model.named_parameters():
        for name in _PARAMETER_HOOKS:
            for hook in (getattr(parameter, name, None) or {}).values():
                yield f"parameter {path!r}", hook


def _describe(hook: Callable[..., Any]) -> str:
    code = getattr(hook, "__code__", None)
    name = getattr(hook, "__qualname__", type(hook).__name__)
    return f"{name} at {code.co_filename}:{code.co_firstlineno}" if code else name


def refuse_mutations(changed: Iterable[tuple[str, fx.Node]]) -> None:
    """Raise CaptureError for the first of ``changed``: (name of a buffer, parameter or input, its
    new value).
    """
    for name, value in changed:
        raise CaptureError(
            f"{node_site(value)}: forward changes {name} in place, which is not supported; of a "
            "batch norm, whose statistics would be others in every microbatch, use the eval mode, "
            "or a norm of each example by itself, such as GroupNorm or LayerNorm"
        )


def refuse_higher_order(nodes: Iterable[fx.Node]) -> None:
    """Raise CaptureError for the first op that takes a graph."""
    for node in nodes:
        if isinstance(node.target, HigherOrderOperator):
            raise CaptureError(
                f"{node_site(node)}: op {node.target} is a higher-order op, which is not supported"
            )


def refuse_ops(nodes: Iterable[fx.Node], sites: Callable[[fx.Node], OpSite]) -> None:
    """Raise CaptureError for the first op that a program cannot hold, with its source line."""
    for node in nodes:
        reason = _reason(node)
        if reason:
            raise CaptureError(f"{sites(node)}: op {node.target} {reason}")


def _reason(node: fx.Node) -> str | None:
    op = node.target
    if not isinstance(op, OpOverload):
        return None
    if op in _STRIDE_READERS:
        return "reads or writes strides, which differ between ranks"
    if is_random(node):
        chance = [
            f" with {name}={value}" for name, value in arguments(node) if name in ("p", "dropout_p")
        ]
        told = "".join(chance)
        return f"draws random numbers{told}, which is not supported yet; set the probability to 0"
    if effects(op) == "mutating":
        return "changes its argument in place, which is not supported"
    if effects(op) == "host_sync" or _is_symbolic(node.meta["val"]):
        return "reads device values on the host, or has a result whose shape depends on data"
    return None


def _is_symbolic(value: Any) -> bool:
    return any(
        isinstance(leaf, torch.SymInt) or (isinstance(leaf, Tensor) and has_free_symbols(leaf))
        for leaf in pytree.tree_leaves(value)
    )


def state_change(model: nn.Module, warning: str) -> str | None:
    """Say which Python state of ``model`` or elsewhere dynamo's ``warning`` reports as changed, and
    where.

    The warning ends in a list of dynamo's names of the changed objects. Returns None if all are
    harmless.
    """
    sources = re.findall(r"\"([^\"]*)\"", warning.rpartition("double check:")[2])
    harmful = [source for source in sources if not any(name in source for name in _HARMLESS_STATE)]
    return "; ".join(_describe_source(model, source) for source in harmful) or None


def _describe_source(model: nn.Module, source: str) -> str:
    found = _MODULE_SOURCE.fullmatch(source)
    if found is None:
        return source.replace(_MODEL_SOURCE, "model")
    return _attribute_stores(model, ".".join(re.findall(r"\['([^']*)'\]", found["path"])))


def _attribute_stores(model: nn.Module, path: str) -> str:
    """Return the attributes that the forward of one module sets, each with its line."""
    code = type(model.get_submodule(path)).forward.__code__
    starts = dict(dis.findlinestarts(code))
    stores = []
    line = code.co_firstlineno
    for instruction in dis.get_instructions(code):
        line = starts.get(instruction.offset) or line
        if instruction.opname == "STORE_ATTR":
            stores.append(f"attribute {instruction.argval!r} at {code.co_filename}:{line}")
    where = ", ".join(stores) or f"{code.co_filename}:{code.co_firstlineno}"
    return f"module {path!r} ({where})"
