"""Capturing a training step, or its evaluation, of an unmodified model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor, fx, nn

from piper.frontend.annotations import match_modules
from piper.frontend.checkpoints import find_recomputed
from piper.frontend.copies import fold_copies
from piper.frontend.cotangents import find_cotangents
from piper.frontend.coupling.check import refuse_coupling
from piper.frontend.coupling.functions import of_functions, refuse_functions
from piper.frontend.coupling.twins import forward_text
from piper.frontend.data import Capture, CaptureError, Contribution, InputSpec, LossSpec
from piper.frontend.example import Example, slice_example
from piper.frontend.gradients import split_contributions, unused_states
from piper.frontend.joint import CleanGraph, clean_graph, sweep
from piper.frontend.losses import make_losses
from piper.frontend.refuse import refuse_hooks, refuse_ops
from piper.frontend.tags import find_sites, tag_ops
from piper.frontend.trace import trace_joint

__all__ = ["capture", "capture_eval"]

LossFunction = Callable[[Any, Any], Tensor]


def capture(
    model: nn.Module,
    loss_fn: LossFunction,
    batch: Any,
    *,
    annotations: Mapping[str, str],
    microbatches: int,
    data_shards: int,
    held: int | None = None,
    dims: Mapping[str, int | None] | None = None,
    known: str = "",
) -> Capture:
    """Capture forward, loss and backward of ``loss_fn(model, batch)`` at one microbatch of one
    rank.

    ``batch`` is an example with all microbatches and data shards, or ``held`` of these, along the
    batch dim; only its shapes and dtypes are used (and leaves that are not tensors, as constants).
    ``dims`` gives the
    batch dim of inputs by name, None for a replicated one; the default is 0. ``annotations`` maps
    module path globs to tags. The model may be on any device, meta included, and is not touched;
    its modules' training flags are taken as they are.

    Raises CaptureError, with names and source lines, for whatever the program could not do as the
    model does: hooks, graph breaks, Python or buffer state changed by the forward, random ops,
    losses that are not one sum or mean beside local losses, parameters under no annotation, and
    trainable parameters without a gradient.
    """
    modules = _check(model, annotations)
    example = slice_example(
        batch, microbatches=microbatches, data_shards=held or data_shards, dims=dims
    )
    step = _Step("train", model, loss_fn, example, modules, microbatches, data_shards, known)
    return _finish(step, step.trace(example))


def capture_eval(
    model: nn.Module,
    loss_fn: LossFunction,
    batch: Any,
    *,
    annotations: Mapping[str, str],
    microbatches: int,
    data_shards: int,
    held: int | None = None,
    dims: Mapping[str, int | None] | None = None,
    known: str = "",
) -> Capture:
    """Capture forward and loss as after ``model.eval()``: as ``capture``, without tangent and
    gradients.
    """
    modules = _check(model, annotations)
    example = slice_example(
        batch, microbatches=microbatches, data_shards=held or data_shards, dims=dims
    )
    step = _Step("eval", model, loss_fn, example, modules, microbatches, data_shards, known)
    return _finish(step, step.trace(example))


def _check(model: nn.Module, annotations: Mapping[str, str]) -> dict[str, str]:
    """Refuse what can be refused before tracing; return the tag of each annotated module."""
    refuse_hooks(model)
    return match_modules(model, annotations)


@dataclass(frozen=True, slots=True)
class _Step:
    """What is captured, and how to capture its forward pass for more examples."""

    name: str
    model: nn.Module
    loss_fn: LossFunction
    example: Example
    modules: Mapping[str, str]
    microbatches: int
    data_shards: int
    known: str

    def trace(self, example: Example, *, backward: bool = True) -> CleanGraph:
        """Trace the step at the shapes of an example; evaluation has no backward pass anyway."""
        training, backward = (None, backward) if self.name == "train" else (False, False)
        joint = trace_joint(self.model, self.loss_fn, example, training=training, backward=backward)
        return clean_graph(joint, example.inputs, backward=backward)


def _larger(example: Example, times: int) -> Example:
    """Return the example with more examples in it."""

    def shape(spec: InputSpec) -> tuple[int, ...]:
        return tuple(
            size * times if dim == spec.dim else size for dim, size in enumerate(spec.shape)
        )

    return replace(
        example, inputs=tuple(replace(spec, shape=shape(spec)) for spec in example.inputs)
    )


def _num_examples(example: Example) -> int:
    sizes = (spec.shape[spec.dim] for spec in example.inputs if spec.dim is not None)
    return next(sizes, 1)


def _refuse_dependence(step: _Step, graph: fx.Graph, losses: Sequence[LossSpec]) -> None:
    """Refuse a loss that is another one for more examples, as ``coupling`` tells, and gradients."""
    functions = of_functions(graph)
    times = step.microbatches * step.data_shards
    whole = _larger(step.example, times)
    counts = (_num_examples(step.example), _num_examples(whole))
    try:
        clean = step.trace(whole, backward=bool(functions))
        twins = make_losses(clean)
    except CaptureError as error:
        raise CaptureError(
            f"{error}; this happens for the {counts[1]} examples of the whole batch, and not for "
            f"the {counts[0]} of a microbatch: expected a forward pass that takes any number, with "
            "sizes that are read from its inputs"
        ) from error
    fold_copies(clean.graph)
    sweep(clean.graph)
    refuse_coupling(losses, twins, counts)
    refuse_functions(functions, of_functions(clean.graph), counts)


def _finish(step: _Step, clean: CleanGraph) -> Capture:
    """Apply the loss contract, check, tag, split gradients, and freeze the result."""
    graph, example = clean.graph, step.example
    losses = make_losses(clean)
    fold_copies(graph)
    _set_output(graph, losses, [node for nodes in clean.gradients.values() for node in nodes])
    sweep(graph)
    sites = find_sites(graph)
    refuse_ops(sites, sites.__getitem__)
    forward = forward_text([loss.value for loss in losses if not loss.local])
    if step.microbatches * step.data_shards > 1 and forward != step.known:
        _refuse_dependence(step, graph, losses)
    recomputed = find_recomputed(graph.nodes)
    tagging = tag_ops(graph, states=clean.states, modules=step.modules, counts=_counts(losses))
    contributions: tuple[Contribution, ...] = ()
    tags = dict(tagging.tags)
    if clean.tangent is not None:
        contributions, added = split_contributions(
            graph, states=clean.states, gradients=clean.gradients, tagging=tagging
        )
        tags.update(added)
    _set_output(graph, losses, [part.node for part in contributions])
    sweep(graph)
    cotangents = find_cotangents(graph, tags)
    for node in graph.nodes:
        if node.op == "call_function":
            site = sites.get(node) or sites[node.all_input_nodes[0]]
            again = node in recomputed and tags[node].pass_ == "F"
            node.meta = {"val": node.meta["val"], "tag": tags[node], "site": site}
            node.meta |= {"recompute": True} if again else {}
        node.meta |= cotangents.get(node, {})
    graph.lint()
    return Capture(
        name=step.name,
        graph=graph,
        inputs=example.inputs,
        states=clean.states,
        losses=losses,
        gradients=contributions,
        chunks=tagging.chunks,
        unused=unused_states(graph, clean.states),
        microbatches=step.microbatches,
        data_shards=step.data_shards,
        forward=forward,
    )


def _counts(losses: Iterable[LossSpec]) -> tuple[fx.Node, ...]:
    return tuple(loss.count for loss in losses if loss.count is not None)


def _set_output(graph: fx.Graph, losses: Sequence[LossSpec], gradients: list[fx.Node]) -> None:
    """Replace the output by ``((loss, ...), (count, ...), (gradient, ...))``."""
    graph.erase_node(graph.output_node())
    graph.output((tuple(loss.value for loss in losses), _counts(losses), tuple(gradients)))
