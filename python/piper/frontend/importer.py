"""From captures to a module of the Piper dialect: the mesh, the states, and one captured step per
entry point.

    from piper.frontend.importer import import_captures

    with ir.Context():
        module = import_captures([capture(...), capture_eval(...)], mesh=strategy.mesh)
"""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from piper_runtime.names import dtype_of
from torch import Tensor, fx
from torch._ops import OpOverload

from piper.frontend.attributes import (
    encode_argument,
    facts_attribute,
    numbers_attribute,
    site_location,
    tag_attribute,
    tensor_type,
    type_of_dtype,
)
from piper.frontend.cotangents import COTANGENTS, PRIMALS
from piper.frontend.data import (
    Capture,
    CaptureError,
    Contribution,
    InputSpec,
    LossSpec,
    StateSpec,
    role,
    site_of,
    tag_of,
)
from piper.frontend.op_facts import node_facts
from piper.mlir import ir
from piper.mlir.dialects import piper

if TYPE_CHECKING:
    from piper.strategy.mesh import Mesh

__all__ = ["MESH", "POSITIONS", "import_captures", "import_mesh", "import_states", "import_step"]

MESH = "mesh"
# An op whose results are not all tensors says with this attribute which of them its results are.
POSITIONS = "positions"


def import_captures(captures: Iterable[Capture], *, mesh: Mesh) -> ir.Module:
    """Return a new, verified module in the current context: mesh, states, and a step per capture.

    The captures must be of one model: a state is declared once for all of them. Raises CaptureError
    for what the dialect cannot express, and for states of one name that differ.
    """
    with ir.Location.unknown():
        module = ir.Module.create()
        import_mesh(module, mesh)
        for captured in captures:
            import_step(module, captured)
    module.operation.verify()
    return module


def import_mesh(module: ir.Module, mesh: Mesh) -> piper.MeshOp:
    """Append ``piper.mesh @mesh`` to ``module``."""
    axes = [
        ir.Attribute.parse(f"#piper.axis<{axis.name} = {axis.size} {axis.role}>")
        for axis in mesh.axes
    ]
    with ir.InsertionPoint(module.body), ir.Location.unknown():
        return piper.MeshOp(sym_name=MESH, axes=ir.ArrayAttr.get(axes))


def import_states(module: ir.Module, states: Iterable[StateSpec]) -> None:
    """Append a ``piper.state`` for each state that ``module`` does not have yet.

    The symbol is the state's name. Raises CaptureError if the module has another symbol of that
    name, or the same state with another type.
    """
    known = {
        ir.StringAttr(op.attributes["sym_name"]).value: op
        for op in module.body
        if "sym_name" in op.attributes
    }
    with ir.InsertionPoint(module.body), ir.Location.unknown():
        for spec in states:
            attributes = _state_attributes(spec)
            if spec.name not in known:
                where = ir.Location.name(spec.name)
                ir.Operation.create("piper.state", attributes=attributes, loc=where)
            elif _attributes(known[spec.name]) != attributes:
                raise CaptureError(
                    f"state {spec.name!r} expected a name of its own, got that of "
                    f"{known[spec.name].operation.get_asm(use_local_scope=True)}"
                )


def _state_attributes(spec: StateSpec) -> dict[str, ir.Attribute]:
    element = type_of_dtype(dtype_of(spec.dtype))
    attributes: dict[str, ir.Attribute] = {
        "sym_name": ir.StringAttr.get(spec.name),
        "kind": ir.Attribute.parse(f"#piper<state_kind {spec.kind}>"),
        "type": ir.TypeAttr.get(ir.RankedTensorType.get(list(spec.shape), element)),
    }
    if spec.kind == "parameter" and not spec.trainable:
        attributes["frozen"] = ir.UnitAttr.get()
    if spec.aliases:
        attributes["aliases"] = ir.ArrayAttr.get([ir.StringAttr.get(a) for a in spec.aliases])
    return attributes


def _attributes(op: ir.OpView | ir.Operation) -> dict[str, ir.Attribute]:
    return {name: op.attributes[name] for name in op.attributes}


def import_step(module: ir.Module, captured: Capture) -> piper.StepOp:
    """Append the step of one capture, and the states that ``module`` does not have yet.

    The module must have a mesh (see ``import_mesh``). An op of several results has the tensors
    among them as its results; if one that is no tensor comes before a tensor, the attribute
    ``positions`` tells their places. Raises CaptureError, with the source line, for a result that
    is used but is no tensor, and for an argument or dtype that the dialect cannot express.
    """
    import_states(module, captured.states)
    with ir.InsertionPoint(module.body), ir.Location.name(captured.name):
        step = piper.StepOp(
            sym_name=captured.name,
            phase=piper.Phase.Captured,
            mesh=MESH,
            inputs=[spec.name for spec in captured.inputs],
            dims=[-1 if spec.dim is None else spec.dim for spec in captured.inputs],
            batch=_whole_batch(captured),
        )
        block = step.body.blocks.append(
            *map(_input_type, captured.inputs),
            arg_locs=[ir.Location.name(spec.name) for spec in captured.inputs],
        )
        with ir.InsertionPoint(block):
            _StepImporter(captured, block).run()
    return step


def _input_type(spec: InputSpec) -> ir.Type:
    return ir.RankedTensorType.get(list(spec.shape), type_of_dtype(dtype_of(spec.dtype)))


def _whole_batch(captured: Capture) -> int | None:
    """Return the number of examples of all microbatches and ranks, None if no input is split."""
    sizes = (spec.shape[spec.dim] for spec in captured.inputs if spec.dim is not None)
    size = next(sizes, None)
    return None if size is None else size * captured.microbatches * captured.data_shards


class _StepImporter:
    """Builds the body of one step at the current insertion point."""

    def __init__(self, captured: Capture, block: ir.Block) -> None:
        self._captured = captured
        self._inputs = {
            spec.name: value for spec, value in zip(captured.inputs, block.arguments, strict=True)
        }
        self._values: dict[fx.Node, ir.Value[ir.Type]] = {}
        self._results: dict[fx.Node, dict[int, ir.Value[ir.Type]]] = {}
        self._tangents: dict[str, ir.Value[ir.Type]] = {}

    def run(self) -> None:
        """Emit reads, ops with each tangent after its count, gradients, then outputs."""
        for loss in self._captured.losses:
            if loss.count is None:
                self._emit_tangent(loss)
        for node in self._captured.graph.nodes:
            self._emit_node(node)
            for loss in self._captured.losses:
                if loss.count is node:
                    self._emit_tangent(loss)
        for part in self._captured.gradients:
            self._emit_gradient(part)
        for loss in self._captured.losses:
            self._emit_output(loss)

    def _emit_node(self, node: fx.Node) -> None:
        if node.op == "placeholder":
            self._emit_placeholder(node)
        elif node.target is operator.getitem:
            self._take_result(node)
        elif node.op == "call_function":
            self._emit_op(node)

    def _emit_placeholder(self, node: fx.Node) -> None:
        found = role(node)
        if found.kind == "input":
            self._values[node] = self._inputs[found.name]
        elif found.kind == "state":
            type_, where = tensor_type(node.meta["val"]), ir.Location.name(found.name)
            read = piper.ReadOp(result=type_, symbol=found.name, loc=where)
            self._values[node] = read.result

    def _emit_tangent(self, loss: LossSpec) -> None:
        """Emit the tangent of a loss, which stands for its placeholder."""
        tangent = piper.TangentOp(
            result=tensor_type(loss.value.meta["val"]),
            loss=loss.name,
            coeff=loss.coeff,
            after=[],
            count=None if loss.count is None else self._values[loss.count],
            loc=site_location(site_of(loss.value)),
        )
        if loss.tangent is not None and COTANGENTS in loss.tangent.meta:
            numbers = numbers_attribute([loss.tangent.meta[COTANGENTS]])
            tangent.operation.attributes[COTANGENTS] = numbers
        self._tangents[loss.name] = tangent.result
        if loss.tangent is not None:
            self._values[loss.tangent] = tangent.result

    def _emit_op(self, node: fx.Node) -> None:
        assert isinstance(node.target, OpOverload), node.target
        tensors = _tensor_results(node)
        operands: list[ir.Value[ir.Type]] = []

        def operand(argument: fx.Node) -> int:
            operands.append(self._values[argument])
            return len(operands) - 1

        try:
            args = ir.ArrayAttr.get([encode_argument(value, operand) for value in node.args])
            # Operands are numbered in the order of print, where keywords are sorted.
            kwargs = {
                name: encode_argument(node.kwargs[name], operand) for name in sorted(node.kwargs)
            }
            types = [tensor_type(value) for value in tensors.values()]
        except (TypeError, ValueError) as error:
            raise _refuse(node, f"expected what a program can hold, got {error}") from error
        made = piper.TorchOp(
            results_=types,
            inputs=operands,
            op_name=str(node.target),
            args=args,
            kwargs=ir.DictAttr.get(kwargs),
            facts=facts_attribute(node_facts(node)),
            recompute=node.meta.get("recompute", False),
            tag=tag_attribute(tag_of(node)),
            loc=site_location(site_of(node)),
        )
        positions = list(tensors)
        if positions != list(range(len(positions))):
            made.operation.attributes[POSITIONS] = ir.DenseI64ArrayAttr.get(positions)
        for key in (PRIMALS, COTANGENTS):
            lists = [_noted(node, position, key) for position in positions]
            if any(lists):
                made.operation.attributes[key] = numbers_attribute(lists)
        results = dict(zip(positions, made.operation.results, strict=True))
        self._results[node] = results
        if isinstance(node.meta["val"], Tensor):
            self._values[node] = results[0]

    def _take_result(self, node: fx.Node) -> None:
        producer, position = node.args
        assert isinstance(producer, fx.Node)
        assert isinstance(position, int)
        results = self._results[producer]
        if position not in results:
            raise _refuse(producer, f"expected only tensors to be used, got result {position}")
        self._values[node] = results[position]

    def _emit_gradient(self, part: Contribution) -> None:
        is_op = part.node.op == "call_function"
        piper.GradOp(
            state=part.state,
            value=self._values[part.node],
            tag=tag_attribute(part.tag),
            loc=site_location(site_of(part.node)) if is_op else ir.Location.name(part.state),
        )

    def _emit_output(self, loss: LossSpec) -> None:
        piper.OutputOp(
            name=loss.name,
            value=self._values[loss.value],
            after=[],
            scale=self._tangents[loss.name],
            loc=site_location(site_of(loss.value)),
        )


def _tensor_results(node: fx.Node) -> dict[int, Tensor]:
    """Return the results of an op that are tensors, by position."""
    value: Any = node.meta["val"]
    results = value if isinstance(value, (list, tuple)) else (value,)
    return {place: result for place, result in enumerate(results) if isinstance(result, Tensor)}


def _noted(node: fx.Node, position: int, key: str) -> tuple[int, ...]:
    """Return the numbers noted on a result of an op: on its node, or on that which takes it."""
    if isinstance(node.meta["val"], Tensor):
        return tuple(node.meta.get(key, ()))
    takers = [user for user in node.users if user.args[1:] == (position,)]
    return tuple(sorted({number for user in takers for number in user.meta.get(key, ())}))


def _refuse(node: fx.Node, what: str) -> CaptureError:
    return CaptureError(f"{site_of(node)}: op {node.target} {what}")
