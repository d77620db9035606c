"""From AOTAutograd's joint graph to a clean one: one placeholder per input and state, live ops
only.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from piper_runtime.names import dtype_name
from torch import Tensor, fx
from torch._functorch._aot_autograd import descriptors as aot
from torch._guards import detect_fake_mode

from piper.frontend.cotangents import COTANGENT_OF, PRIMAL
from piper.frontend.data import CaptureError, InputSpec, Role, StateSpec, role
from piper.frontend.joint_checks import refuse_changed_parameters, refuse_sparse
from piper.frontend.refuse import refuse_higher_order, refuse_mutations
from piper.frontend.sites import node_site
from piper.frontend.trace import Joint

__all__ = ["CleanGraph", "clean_graph", "sweep"]

_KEPT = (
    "val",
    "seq_nr",
    "stack_trace",
    "partitioner_tag",
    "custom",
    "nn_module_stack",
    "fwd_nn_module_stack",
    "is_gradient_acc",
    "recompute",
    "ac_graph_id",
    PRIMAL,
    COTANGENT_OF,
)


@dataclass(slots=True)
class CleanGraph:
    """A joint graph by meaning. ``gradients`` maps trainable states to the nodes whose sum is their
    gradient.

    The output holds the loss and all gradients, so that ``sweep`` keeps what they need. ``loss`` is
    None once no term of it is left (``losses``).
    """

    graph: fx.Graph
    loss: fx.Node | None
    tangent: fx.Node | None
    states: tuple[StateSpec, ...]
    gradients: dict[str, list[fx.Node]]

    def placeholders(self) -> dict[Role, fx.Node]:
        """Return the placeholder of each role."""
        return {role(node): node for node in self.graph.nodes if node.op == "placeholder"}


def clean_graph(joint: Joint, inputs: Sequence[InputSpec], *, backward: bool) -> CleanGraph:
    """Copy the live part of ``joint`` into a new graph whose placeholders are states, inputs, then
    the tangent.

    States are grouped by tensor identity, so tied parameters share one placeholder. Without
    ``backward`` only what the loss needs is kept. Raises CaptureError if the forward changes a
    parameter, buffer or input in place, makes a sparse tensor, or reads a tensor that is not the
    model's.
    """
    states = _StateTable(joint)
    source = joint.graph.graph
    results = _results(source.output_node())
    refuse_changed_parameters(results)
    refuse_mutations(_mutations(results))
    loss = next(node for node, desc in results if isinstance(desc, aot.PlainAOTOutput))
    wanted: list[tuple[str, fx.Node]] = []
    if backward:
        wanted = [
            (states.name_of(desc.grad_of), node)
            for node, desc in results
            if isinstance(desc, aot.GradAOTOutput)
        ]
    live = needed_by([loss, *(node for _, node in wanted)])
    refuse_higher_order(node for node in source.nodes if node in live)
    refuse_sparse(node for node in source.nodes if node in live)
    roles = _roles(source, states, inputs, live)
    graph = fx.Graph()
    copied = _copy_placeholders(
        graph, roles, [Role("input", spec.name) for spec in inputs], backward
    )
    for node in source.nodes:
        if node in live and node.target is torch.ops.aten.lift_fresh_copy.default:
            copied[node] = copied[
                node.args[0]
            ]  # a copy so that eager code may write to it; here nothing does
        elif node in live and node.op == "call_function":
            copied[node] = graph.node_copy(node, copied.__getitem__)
            copied[node].meta = {key: node.meta[key] for key in _KEPT if key in node.meta}
    gradients: dict[str, list[fx.Node]] = {}
    for name, node in wanted:
        gradients.setdefault(name, []).append(copied[node])
    tangents = (copied[node] for node, found in roles.items() if found.kind == "tangent")
    tangent = next(tangents, None) if backward else None
    if backward and tangent is None and loss.op != "placeholder":
        raise CaptureError(f"{node_site(loss)}: the loss depends on no trainable parameter")
    clean = CleanGraph(graph, copied[loss], tangent, states.specs(), gradients)
    graph.output((clean.loss, *(node for nodes in gradients.values() for node in nodes)))
    return clean


def sweep(graph: fx.Graph) -> None:
    """Erase the ops that nothing reads, and the placeholders of states that nothing reads."""
    for node in reversed(graph.nodes):
        is_op = node.op == "call_function"
        is_state = node.op == "placeholder" and role(node).kind == "state"
        if (is_op or is_state) and not node.users:
            graph.erase_node(node)


def _results(output: fx.Node) -> list[tuple[fx.Node, object]]:
    """Return each result of the joint graph that is a tensor, with its descriptor."""
    values = output.args[0]
    assert isinstance(values, (list, tuple))
    pairs = zip(values, output.meta["desc"], strict=True)
    return [(value, desc) for value, desc in pairs if isinstance(value, fx.Node)]


def _mutations(results: Sequence[tuple[fx.Node, object]]) -> Iterator[tuple[str, fx.Node]]:
    for node, desc in results:
        if isinstance(desc, aot.InputMutationAOTOutput):
            source = desc.mutated_input
            if isinstance(source, aot.PlainAOTInput):
                yield f"input {source.idx} of the batch", node
            else:
                target = getattr(source, "target", str(source)).removeprefix("model.")
                yield f"buffer {target!r}", node


def needed_by(nodes: Iterable[fx.Node]) -> set[fx.Node]:
    """Return ``nodes`` and all that they are made of."""
    found: set[fx.Node] = set()
    pending = list(nodes)
    while pending:
        node = pending.pop()
        if node not in found:
            found.add(node)
            pending.extend(node.all_input_nodes)
    return found


def _roles(
    source: fx.Graph, states: _StateTable, inputs: Sequence[InputSpec], live: set[fx.Node]
) -> dict[fx.Node, Role]:
    """Return the role of every placeholder and tensor constant of ``source`` that is an input or is
    read.
    """
    roles: dict[fx.Node, Role] = {}
    for node in source.nodes:
        desc = node.meta.get("desc")
        if isinstance(desc, aot.PlainAOTInput):
            roles[node] = Role("input", inputs[desc.idx].name)
        elif isinstance(desc, aot.TangentAOTInput):
            roles[node] = Role("tangent", "loss")
        elif node in live and node.op == "get_attr":
            roles[node] = Role("state", states.constant(node))
        elif node in live and node.op == "placeholder":
            roles[node] = Role("state", states.name_of(desc))
    return roles


def _copy_placeholders(
    graph: fx.Graph, roles: Mapping[fx.Node, Role], inputs: Sequence[Role], backward: bool
) -> dict[fx.Node, fx.Node]:
    """Make one placeholder per role: states, then inputs in their order, then the tangent."""
    first: dict[Role, fx.Node] = {}
    for node, found in roles.items():
        first.setdefault(found, node)
    order = [found for found in first if found.kind == "state"] + list(inputs)
    order += [found for found in first if found.kind == "tangent" and backward]
    made: dict[Role, fx.Node] = {}
    for found in order:
        made[found] = graph.placeholder(_identifier(found.name))
        source = first[found]
        made[found].meta = {"role": found, "val": _value(source)}
        if COTANGENT_OF in source.meta:  # of a tangent
            made[found].meta[COTANGENT_OF] = source.meta[COTANGENT_OF]
    return {node: made[found] for node, found in roles.items() if found in made}


def _identifier(name: str) -> str:
    """Return ``name`` as a Python identifier."""
    word = re.sub(r"\W", "_", name)
    return f"_{word}" if word[0].isdigit() else word


def _value(node: fx.Node) -> Tensor:
    if node.op == "placeholder":
        value = node.meta["val"]
        assert isinstance(value, Tensor)
        return value
    constant = _constant_of(node)
    mode = detect_fake_mode([user.meta.get("val") for user in node.users])
    assert mode is not None
    with mode:
        return torch.empty_strided(
            constant.shape, constant.stride(), dtype=constant.dtype, device="cpu"
        )


def _constant_of(node: fx.Node) -> Tensor:
    module = node.graph.owning_module
    assert module is not None
    found = getattr(module, str(node.target))
    assert isinstance(found, Tensor)
    return found


class _StateTable:
    """The states of a traced model, by tensor identity."""

    def __init__(self, joint: Joint) -> None:
        model = joint.model
        self._traced = joint.tensors
        self._names: dict[int, str] = {}
        self._specs: dict[str, StateSpec] = {}
        for name, parameter in model.named_parameters(remove_duplicate=False):
            self._add(name, parameter, "parameter")
        for name, buffer in model.named_buffers(remove_duplicate=False):
            self._add(name, buffer, "buffer")

    def _add(self, name: str, tensor: Tensor, kind: Literal["parameter", "buffer"]) -> None:
        known = self._names.setdefault(id(tensor), name)
        if known != name:
            spec = self._specs[known]
            self._specs[known] = replace(spec, aliases=(*spec.aliases, name))
            return
        trainable = kind == "parameter" and tensor.requires_grad
        self._specs[name] = StateSpec(
            name, kind, tuple(tensor.shape), dtype_name(tensor.dtype), trainable
        )

    def name_of(self, desc: object) -> str:
        """Return the canonical FQN of the parameter or buffer that a descriptor stands for."""
        target = getattr(desc, "target", None)
        tensor = self._traced.get(target) if isinstance(target, str) else None
        name = self._names.get(id(tensor))
        if name is None:
            raise CaptureError(
                f"the loss reads {target!r}, a parameter or buffer of no module of the model: "
                "pass it in the batch, or make it part of the model"
            )
        return name

    def constant(self, node: fx.Node) -> str:
        """Register the tensor constant that ``node`` reads and return its name."""
        value = _constant_of(node)
        if value.requires_grad:
            raise CaptureError(
                f"{node_site(node)}: the loss reads a trainable tensor that is no parameter of the "
                "model: make it one, or freeze it"
            )
        if value.is_meta:
            raise CaptureError(f"tensor constant {node.target} has no value: it is on meta")
        value = value.detach().cpu().contiguous()
        content = hashlib.sha256(
            value.view(-1).view(torch.uint8).numpy().tobytes() if value.numel() else b""
        )
        content.update(f"{tuple(value.shape)}{value.dtype}".encode())
        name = f"const${content.hexdigest()[:12]}"
        self._specs[name] = StateSpec(
            name, "constant", tuple(value.shape), dtype_name(value.dtype), value=value
        )
        return name

    def specs(self) -> tuple[StateSpec, ...]:
        """Return all states: parameters and buffers in model order, then constants in order of
        first use.
        """
        return tuple(self._specs.values())
