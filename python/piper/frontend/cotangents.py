"""Which value of the backward pass is the cotangent of which value that chunks pass on.

Autograd tells it while the joint graph is traced: a hook on each differentiable tensor that a call
returns is given the sum of all that flows back into it. Both ends are nodes of the one graph. They
are noted as ``meta["primal"]``, a number, and ``meta["cotangent_of"]``, the numbers of the primals.
Of these ``find_cotangents`` keeps what chunks pass on, and adds the terms of sums.
"""

from __future__ import annotations

import contextlib
import itertools
import operator
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, fx
from torch._ops import OpOverload
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.fx.experimental.proxy_tensor import get_proxy_mode, get_proxy_slot
from torch.overrides import TorchFunctionMode

from piper.frontend.data import Tag
from piper.frontend.op_facts import effects

__all__ = [
    "COTANGENTS",
    "COTANGENT_OF",
    "PRIMAL",
    "PRIMALS",
    "find_cotangents",
    "is_accumulation",
    "join_notes",
    "note_cotangents",
]

# While tracing, and in what is captured.
PRIMAL, COTANGENT_OF = "primal", "cotangent_of"
PRIMALS, COTANGENTS = "primals", "cotangents"


@contextlib.contextmanager
def note_cotangents() -> Iterator[None]:
    """Note, on the nodes of what is traced inside, primals and their cotangents."""
    with _Noting():
        yield


class _Noting(TorchFunctionMode):
    """Hooks what calls return. A value that no node stands for is left out."""

    def __init__(self) -> None:
        super().__init__()
        self._numbers = itertools.count()

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        made = func(*args, **(kwargs or {}))
        for value in made if isinstance(made, (tuple, list)) else (made,):
            if isinstance(value, Tensor) and value.grad_fn is not None:
                self._hook(value)
        return made

    def _hook(self, value: Tensor) -> None:
        primal = _node_of(value)
        if primal is None:
            return
        number = primal.meta.setdefault(PRIMAL, next(self._numbers))

        def note(gradient: Tensor | None) -> None:  # None of a result that nothing uses
            node = None if gradient is None else _node_of(gradient)
            if node is not None:
                known = node.meta.get(COTANGENT_OF, ())
                node.meta[COTANGENT_OF] = tuple(dict.fromkeys((*known, number)))

        value.register_hook(note)  # type: ignore[no-untyped-call]


def _node_of(value: Tensor) -> fx.Node | None:
    """Return the node that makes a value in the graph being traced, if there is one."""
    mode = get_proxy_mode()
    if mode is None:
        return None
    if isinstance(value, FunctionalTensor):
        value = torch._from_functional_tensor(value.elem)
    slot = get_proxy_slot(value, mode.tracer, None)
    return None if slot is None else slot.proxy.node


def find_cotangents(
    graph: fx.Graph, tags: Mapping[fx.Node, Tag]
) -> dict[fx.Node, dict[str, tuple[int, ...]]]:
    """Return the metadata of nodes that says what is whose cotangent: ``primals``, a number for
    each value of pass F that another chunk uses, and ``cotangents``, the numbers of the primals
    that a value of pass B, or the tangent, is the cotangent of, or a term of it.
    """
    primals = {
        node.meta[PRIMAL]: node
        for node in graph.nodes
        if PRIMAL in node.meta and _crosses(node, tags)
    }
    found: dict[fx.Node, set[fx.Node]] = {}
    for node in graph.nodes:
        own = {primals[number] for number in node.meta.get(COTANGENT_OF, ()) if number in primals}
        if own and (node.op == "placeholder" or tags[node].pass_ == "B"):
            found[node] = own
    whole = list(found.items())
    for node, own in whole:
        for term in _terms(node, frozenset(found)):
            found.setdefault(term, set()).update(own)
    known = set().union(*found.values())
    numbers = {node: number for number, node in enumerate(filter(known.__contains__, graph.nodes))}
    noted: dict[fx.Node, dict[str, tuple[int, ...]]]
    noted = {node: {PRIMALS: (number,)} for node, number in numbers.items()}
    noted |= {
        node: {COTANGENTS: tuple(sorted(numbers[primal] for primal in own))}
        for node, own in found.items()
    }
    return noted


def join_notes(kept: fx.Node, gone: fx.Node) -> None:
    """Note on a node, too, what is noted on one of the same value that it replaces."""
    for key in (PRIMALS, COTANGENTS):
        numbers = {*kept.meta.get(key, ()), *gone.meta.get(key, ())}
        if numbers:
            kept.meta[key] = tuple(sorted(numbers))


def is_accumulation(node: fx.Node) -> bool:
    """Return whether autograd added up what flows back from two users of a value."""
    return bool(node.meta.get("is_gradient_acc")) and node.target is torch.ops.aten.add.Tensor


def _terms(node: fx.Node, others: frozenset[fx.Node]) -> Iterator[fx.Node]:
    """Yield the terms of a sum, and of sums among them; one that is a cotangent itself, of a value
    behind, is known as that.
    """
    for term in node.all_input_nodes if is_accumulation(node) else ():
        if term not in others:
            yield term
            yield from _terms(term, others)


def _crosses(node: fx.Node, tags: Mapping[fx.Node, Tag]) -> bool:
    """Return whether another chunk's pass F uses a value, perhaps through views."""
    own = tags.get(node)
    if own is None or own.pass_ != "F":
        return False
    return any(
        tags[user].pass_ == "F" and (tags[user] != own or (_is_view(user) and _crosses(user, tags)))
        for user in node.users
        if user in tags
    )


def _is_view(node: fx.Node) -> bool:
    if node.target is operator.getitem:
        return True
    return isinstance(node.target, OpOverload) and effects(node.target) == "view"
