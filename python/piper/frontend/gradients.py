"""The contributions to each parameter's gradient, one per chunk that reads the parameter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import fx

from piper.frontend.cotangents import is_accumulation
from piper.frontend.data import CaptureError, Contribution, StateSpec, Tag, role
from piper.frontend.loss import is_backward
from piper.frontend.tags import Tagging

__all__ = ["split_contributions", "unused_states"]

aten = torch.ops.aten


def split_contributions(
    graph: fx.Graph,
    *,
    states: Sequence[StateSpec],
    gradients: Mapping[str, Sequence[fx.Node]],
    tagging: Tagging,
) -> tuple[tuple[Contribution, ...], dict[fx.Node, Tag]]:
    """Return the contributions in state order, and the tags of adds made on the way.

    An accumulation add that joins contributions from several chunks that read the parameter (tied
    weights) is taken apart, so that each chunk contributes on its own. Raises CaptureError for a
    trainable parameter that the loss reads but that gets no gradient.
    """
    readers = _reading_chunks(graph, tagging)
    found: list[Contribution] = []
    added: dict[fx.Node, Tag] = {}
    for spec in states:
        if not spec.trainable or spec.name not in readers:
            continue
        nodes = gradients.get(spec.name, ())
        if not nodes:
            raise CaptureError(
                f"parameter {spec.name!r} is read by the loss but gets no gradient: freeze it with "
                "requires_grad_(False), or remove the detach or no_grad around it"
            )
        for node in nodes:
            for part in _parts(node, readers[spec.name], tagging, added):
                found.append(
                    Contribution(spec.name, part, _tag(part, readers[spec.name], tagging, added))
                )
    return tuple(found), added


def unused_states(graph: fx.Graph, states: Sequence[StateSpec]) -> tuple[str, ...]:
    """Return the names of the parameters and buffers that no op reads."""
    read = {
        role(node).name
        for node in graph.nodes
        if node.op == "placeholder" and role(node).kind == "state"
    }
    return tuple(spec.name for spec in states if spec.name not in read)


def _reading_chunks(graph: fx.Graph, tagging: Tagging) -> dict[str, set[int]]:
    """Return the chunks whose forward reads each state."""
    chunks: dict[str, set[int]] = {}
    for node in graph.nodes:
        if node.op != "placeholder" or role(node).kind != "state":
            continue
        numbers = {
            tagging.index[user]
            for user in node.users
            if user in tagging.index and not is_backward(user)
        }
        if numbers:
            chunks[role(node).name] = numbers
    return chunks


def _parts(
    node: fx.Node, readers: set[int], tagging: Tagging, added: dict[fx.Node, Tag]
) -> list[fx.Node]:
    """Return the node itself, or one node per chunk if it adds up contributions of several chunks
    in ``readers``.
    """
    terms = _terms(node)
    chunks = [tagging.index.get(term) for term in terms]
    if len(set(chunks)) < 2 or not all(chunk in readers for chunk in chunks):
        return [node]
    parts: dict[int, fx.Node] = {}
    for term, chunk in zip(terms, chunks, strict=True):
        assert chunk is not None
        if chunk not in parts:
            parts[chunk] = term
            continue
        with node.graph.inserting_before(node):
            total = node.graph.call_function(aten.add.Tensor, (parts[chunk], term))
        total.meta = dict(node.meta)
        added[total] = Tag(tagging.chunks[chunk], "B")
        parts[chunk] = total
    return list(parts.values())


def _terms(node: fx.Node) -> list[fx.Node]:
    """Return the terms of a tree of autograd's accumulation adds, first term first."""
    if not is_accumulation(node):
        return [node]
    return [term for arg in node.all_input_nodes for term in _terms(arg)]


def _tag(node: fx.Node, readers: set[int], tagging: Tagging, added: Mapping[fx.Node, Tag]) -> Tag:
    """Return the tag of a contribution: its node's, unless that chunk does not read the state."""
    if node in added:
        return added[node]
    own = tagging.index.get(node)
    if own not in readers:
        earlier = [chunk for chunk in readers if own is None or chunk <= own]
        own = max(earlier or readers)
    return Tag(tagging.chunks[own], "B")
