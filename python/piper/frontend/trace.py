"""Tracing a model with its loss into one joint forward and backward graph of ATen ops."""

from __future__ import annotations

import contextlib
import logging
import re
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import torch
import torch._dynamo
import torch.fx.traceback as fx_traceback
from torch import Tensor, fx, nn
from torch._dynamo.functional_export import dynamo_graph_capture_for_export
from torch._functorch.aot_autograd import aot_export_joint_with_descriptors
from torch._subclasses.fake_tensor import FakeTensorMode

from piper.frontend.attention import own_attention
from piper.frontend.cotangents import note_cotangents
from piper.frontend.data import CaptureError
from piper.frontend.example import Example
from piper.frontend.experts import own_experts
from piper.frontend.fake import fake_inputs, fake_model
from piper.frontend.refuse import state_change
from piper.frontend.sites import site_of_frames, site_of_text

__all__ = ["OF_FUNCTION", "Joint", "trace_joint"]

# How dynamo reports an exception of the user's code.
_RAISED = re.compile(
    r"Observed exception.*Developer debug context: raised exception ([^\n]*)", re.DOTALL
)
# In `custom` of a node's meta: what the backward of a torch.autograd.Function computes.
OF_FUNCTION: Final = "piper_of_function"
_SIDE_EFFECT = "certain side effects happened in the model.forward"


@dataclass(frozen=True, slots=True)
class Joint:
    """A traced joint graph and the fake model it was traced from.

    ``graph`` is as AOTAutograd made it: placeholders and outputs carry descriptors, nodes their
    provenance. ``fqns`` maps the graph's own name of a parameter or buffer to the tensor of the
    fake model.
    """

    graph: fx.GraphModule
    model: nn.Module
    tensors: dict[str, Tensor]


class _Step(nn.Module):
    """``loss_fn(model, batch)`` as a module of tensors; without ``backward`` it has no gradient,
    though all before computes as if it had one.
    """

    def __init__(
        self,
        model: nn.Module,
        loss_fn: Callable[..., Any],
        rebuild: Callable[..., Any],
        backward: bool,
    ) -> None:
        super().__init__()
        self.model = model
        self.loss_fn = loss_fn
        self.rebuild = rebuild
        self.backward = backward

    def forward(self, *tensors: Tensor) -> Tensor:
        loss = self.loss_fn(self.model, self.rebuild(tensors))
        if not isinstance(loss, Tensor):
            raise TypeError(f"loss_fn expected to return a tensor, got {type(loss).__name__}")
        if loss.dim() != 0:
            raise TypeError(f"loss_fn expected to return a scalar, got shape {tuple(loss.shape)}")
        return loss if self.backward else loss.detach()


def trace_joint(
    model: nn.Module,
    loss_fn: Callable[[Any, Any], Tensor],
    example: Example,
    *,
    training: bool | None = None,
    backward: bool = True,
) -> Joint:
    """Trace forward, loss and, unless ``backward`` is false, backward with fake tensors on CPU at
    the example's shapes.

    ``training`` sets the mode of the traced copy; None keeps each module's own. Raises CaptureError
    for a graph break, Python state changed by the forward, and errors in the user's code, each with
    its source line.
    """
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    twin = fake_model(mode, model)
    if training is not None:
        twin.train(training)
    inputs = fake_inputs(mode, example.inputs)
    step = _Step(twin, loss_fn, example.rebuild, backward)
    with contextlib.ExitStack() as stack:
        stack.enter_context(fx_traceback.preserve_node_meta())
        stack.enter_context(_dynamo_settings())
        stack.enter_context(own_experts(twin))
        stack.enter_context(own_attention())
        with _explained(), _refuse_side_effects(twin):
            traced = dynamo_graph_capture_for_export(step)(*inputs)
        with _explained(), note_cotangents():
            joint = aot_export_joint_with_descriptors(stack, traced, inputs)
    _tag_functions(joint.graph_module.graph)
    if not backward:
        _attach(joint.graph_module.graph)
    tensors = dict(traced.named_parameters(remove_duplicate=False))
    tensors.update(traced.named_buffers(remove_duplicate=False))
    return Joint(joint.graph_module, twin, tensors)


def _tag_functions(graph: fx.Graph) -> None:
    """Tag what the backward of a torch.autograd.Function computes, which autograd leaves untagged.

    All behind the last op of the forward pass is the backward pass. Such ops have the ``seq_nr`` of
    an op that has nothing to do with them.
    """
    ops = [node for node in graph.nodes if node.op == "call_function"]
    tags = [node.meta.get("partitioner_tag") for node in ops]
    last = max((at for at, tag in enumerate(tags) if tag == "is_forward"), default=len(ops))
    for node, tag in zip(ops[last + 1 :], tags[last + 1 :], strict=True):
        if tag != "is_backward":
            custom = {**(node.meta.get("custom") or {}), OF_FUNCTION: True}
            node.meta |= {"partitioner_tag": "is_backward", "custom": custom}
            node.meta.pop("seq_nr", None)


def _attach(graph: fx.Graph) -> None:
    """Return the loss itself instead of the copy without a gradient."""
    for node in graph.output_node().all_input_nodes:
        if node.target is torch.ops.aten.detach.default:
            node.replace_all_uses_with(node.all_input_nodes[0])
            graph.erase_node(node)


@contextlib.contextmanager
def _dynamo_settings() -> Iterator[None]:
    """Let dynamo skip logging calls; transformers adds cached methods of its own to
    ``logging.Logger``. And let sizes be numbers, also if an earlier capture had others.
    """
    names = ("warning_once", "info_once", "warning_advice")
    ignored = {getattr(logging.Logger, name) for name in names if hasattr(logging.Logger, name)}
    settings = {"ignore_logging_functions": ignored, "automatic_dynamic_shapes": False}
    with torch._dynamo.config.patch(settings):
        yield


@contextlib.contextmanager
def _refuse_side_effects(model: nn.Module) -> Iterator[None]:
    """Turn dynamo's warning about Python state changed by the forward into an error."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    for warning in caught:
        text = str(warning.message)
        changed = state_change(model, text) if _SIDE_EFFECT in text else None
        if changed:
            raise CaptureError(f"forward changes Python state that a program would lose: {changed}")
        if _SIDE_EFFECT not in text:
            warnings.warn_explicit(
                warning.message, warning.category, warning.filename, warning.lineno
            )


@contextlib.contextmanager
def _explained() -> Iterator[None]:
    """Re-raise an error of the tracer as a CaptureError with the user's source line."""
    try:
        yield
    except CaptureError:
        raise
    except Exception as error:
        site = site_of_frames(getattr(error, "real_stack", None)) or site_of_text(str(error))
        place = f"{site}: " if site else ""
        raise CaptureError(f"{place}cannot capture: {_headline(error)}") from error


def _headline(error: Exception) -> str:
    """Return the part of a tracer's message that a user can act on."""
    text = str(getattr(error, "msg", None) or error)
    raised = _RAISED.search(text)
    if raised is not None:
        return f"the traced code raised {raised[1]}"
    for footer in ("\n\nfrom user code", "\n\n  Developer debug context", "\n\nWhile executing"):
        text = text.split(footer)[0]
    return text.strip()
