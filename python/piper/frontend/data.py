"""What a capture is: plain data about one entry point of a training step, and the error that
refuses one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

import torch
from piper_runtime.inputs.batch import InputSpec
from torch import Tensor, fx

__all__ = [
    "Capture",
    "CaptureError",
    "Contribution",
    "InputSpec",
    "LossSpec",
    "OpSite",
    "Pass",
    "Role",
    "StateSpec",
    "Tag",
]

Pass = Literal["F", "B", "P"]


class CaptureError(ValueError):
    """A model, loss or batch that cannot be captured; the message names the culprit and its source
    line.
    """


@dataclass(frozen=True, slots=True)
class OpSite:
    """Where an op was written: the innermost frame of the user's code (not torch's own), and the
    module that ran it.

    ``module`` is the FQN of the innermost module, "" for the model itself or the loss function.
    """

    file: str
    line: int
    module: str = ""

    def __str__(self) -> str:
        """Return ``file:line (module)``."""
        place = f"{self.file}:{self.line}"
        return f"{place} ({self.module})" if self.module else place


@dataclass(frozen=True, slots=True)
class Tag:
    """The chunk and pass of an op.

    ``chunk`` is ``<tag>.<occurrence>``, from the outermost annotation; ``pass_`` is F (forward), B
    (backward) or P (preamble: forward ops that depend on batch inputs, buffers and constants only,
    never on parameters). The chunk of a P op is ``loss`` if only the loss count needs it, else
    ``preamble``.
    """

    chunk: str
    pass_: Pass

    def __str__(self) -> str:
        """Return ``chunk$pass``."""
        return f"{self.chunk}${self.pass_}"


@dataclass(frozen=True, slots=True)
class Role:
    """What a placeholder stands for: an input, a state or the tangent of a loss, by name."""

    kind: Literal["input", "state", "tangent"]
    name: str


@dataclass(frozen=True, slots=True)
class StateSpec:
    """A parameter, buffer or lifted constant.

    ``name`` is the first FQN in ``named_parameters`` order, ``aliases`` the other FQNs of a tied
    tensor; a constant (a tensor that is neither parameter nor buffer) is called ``const$<hash of
    its content>``. ``shape`` is the whole shape, ``dtype`` a torch name without ``torch.``.
    ``value`` is set for constants only.
    """

    name: str
    kind: Literal["parameter", "buffer", "constant"]
    shape: tuple[int, ...]
    dtype: str
    trainable: bool = False
    aliases: tuple[str, ...] = ()
    value: Tensor | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class LossSpec:
    """A loss: ``value`` (scalar node, a SUM over the microbatch), ``count`` (int64 scalar node
    computed from inputs only, or None for a loss that is a sum already) and ``coeff``.

    The reported loss is coeff * sum(value) / max(1, sum(count)) over all microbatches and ranks,
    and the tangent placeholder (None in an eval capture) is to be fed coeff / max(1, sum(count)).
    A ``local`` one counts itself: what is reported is its mean over microbatches and ranks.
    """

    name: str
    value: fx.Node
    count: fx.Node | None
    coeff: float
    tangent: fx.Node | None
    local: bool = False


@dataclass(frozen=True, slots=True)
class Contribution:
    """``node`` adds to the gradient of ``state`` in chunk ``tag``.

    ``tag`` names a chunk that reads the state; it differs from the node's own tag when the gradient
    was made in another chunk. The value may be a stride-0 expand, a view, or shared with another
    state or a cotangent.
    """

    state: str
    node: fx.Node
    tag: Tag


@dataclass(frozen=True, slots=True)
class Capture:
    """One entry point (``train`` or ``eval``) at the shape of one microbatch of one rank.

    ``graph`` holds placeholders (see ``role``), ATen ops and one output ``(values, counts,
    contributions)``, each a tuple in the order of ``losses`` (absent counts left out) and
    ``gradients``. Every op node has ``meta["val"]`` (fake result), ``meta["tag"]`` (Tag) and
    ``meta["site"]`` (OpSite); an op that the model asks to compute again in the backward pass has a
    true ``meta["recompute"]``. Values that chunks pass on have a number in ``meta["primals"]``,
    which ``meta["cotangents"]`` of backward nodes and tangents name. Every input has a
    placeholder; a state has one only if it is read. ``chunks`` is in forward order; ``unused``
    names the parameters and buffers that nothing reads. ``forward`` is the text of what the loss is
    made of: two captures that have the same compute the same.
    """

    name: str
    graph: fx.Graph
    inputs: tuple[InputSpec, ...]
    states: tuple[StateSpec, ...]
    losses: tuple[LossSpec, ...]
    gradients: tuple[Contribution, ...]
    chunks: tuple[str, ...]
    unused: tuple[str, ...]
    microbatches: int
    data_shards: int
    forward: str = field(default="", repr=False)

    def ops(self) -> Iterator[fx.Node]:
        """Yield the op nodes in graph order."""
        return (node for node in self.graph.nodes if node.op == "call_function")

    def placeholders(self) -> Mapping[Role, fx.Node]:
        """Return the placeholder of each role, in graph order."""
        return {role(node): node for node in self.graph.nodes if node.op == "placeholder"}

    def module(self) -> fx.GraphModule:
        """Return the graph as a callable of tensors in placeholder order (for tests)."""
        return fx.GraphModule(torch.nn.Module(), self.graph)


def role(node: fx.Node) -> Role:
    """Return the role of a placeholder."""
    found = node.meta["role"]
    assert isinstance(found, Role)
    return found


def tag_of(node: fx.Node) -> Tag:
    """Return the tag of an op node."""
    found = node.meta["tag"]
    assert isinstance(found, Tag)
    return found


def site_of(node: fx.Node) -> OpSite:
    """Return the source location of an op node."""
    found = node.meta["site"]
    assert isinstance(found, OpSite)
    return found
