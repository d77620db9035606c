"""Assigning every op to a chunk and a pass.

Chunks are numbered in forward order. A forward op belongs to the chunk of its outermost annotation,
and is refused if a later chunk must run first; an op under no annotation joins its latest producer.
A backward op belongs to the chunk of the first forward op with its ``seq_nr``, lowered to the
earliest chunk among its backward producers; one of an autograd.Function, which has none, to the
chunk of the annotation in which it was written. An accumulation add, or an op autograd made from
nothing, has only its producers. An op of parameters alone joins its first reader, or else the chunk
that reads them, too. So chunks are convex by construction.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import fx

from piper.frontend.annotations import Hit, annotated_nodes
from piper.frontend.data import CaptureError, OpSite, StateSpec, Tag, role
from piper.frontend.loss import is_backward
from piper.frontend.sites import node_site

__all__ = ["Tagging", "find_sites", "tag_ops"]

_ROOT_CURE = (
    ": mark what reads parameters of the model itself by `with piper.annotate('first'):` in its "
    "forward, or make the whole model one chunk by piper.annotate({'': 'model'})"
)


@dataclass(frozen=True, slots=True)
class Tagging:
    """The result: chunk names in forward order, the chunk number of each F and B op, and the tag of
    every op.
    """

    chunks: tuple[str, ...]
    index: Mapping[fx.Node, int]
    tags: Mapping[fx.Node, Tag]


def tag_ops(
    graph: fx.Graph,
    *,
    states: Sequence[StateSpec],
    modules: Mapping[str, str],
    counts: Sequence[fx.Node],
) -> Tagging:
    """Tag every op of ``graph``; ``modules`` maps annotated module paths to tags, ``counts`` are
    those of losses.

    Raises CaptureError for parameters that an op under no annotation reads and no annotated module
    owns.
    """
    ops = [node for node in graph.nodes if node.op == "call_function"]
    preamble = _preamble(graph, {spec.name for spec in states if spec.kind == "parameter"})
    for count in counts:
        if count not in preamble:
            raise CaptureError(
                f"{node_site(count)}: the loss count must depend on inputs only, got labels made "
                "from parameters"
            )
    forward = [node for node in ops if not is_backward(node) and node not in preamble]
    backward = [node for node in ops if is_backward(node)]
    hits = annotated_nodes(forward, modules)
    _refuse_uncovered(graph, states, modules, hits)
    if forward and not hits:
        raise CaptureError(
            "no annotation names a chunk: no op that reads parameters runs in a module that is "
            f"annotated, got {', '.join(map(repr, modules))}"
        )
    numbers = _number_chunks(forward, hits)
    index = _tag_forward(forward, hits, numbers)
    unnumbered = [node for node in backward if node.meta.get("seq_nr") is None]
    own = annotated_nodes(unnumbered, modules) if modules else {}
    given = {node: numbers[hit.key] for node, hit in own.items() if hit.key in numbers}
    _tag_backward(backward, index, _forward_by_seq(ops, index), given)
    names = _chunk_names(forward, hits)
    tags = {node: Tag(names[index[node]], "F") for node in forward}
    tags.update((node, Tag(names[index[node]], "B")) for node in backward)
    tags.update(_preamble_tags([node for node in ops if node in preamble], counts))
    return Tagging(names, index, tags)


def _preamble(graph: fx.Graph, parameters: set[str]) -> set[fx.Node]:
    """Return the forward ops that depend on no parameter."""
    free: set[fx.Node] = set()
    for node in graph.nodes:
        if node.op == "placeholder":
            found = role(node)
            is_state = found.kind == "state"
            is_free = found.kind == "input" or (is_state and found.name not in parameters)
        else:
            is_free = not is_backward(node) and all(arg in free for arg in node.all_input_nodes)
        if is_free:
            free.add(node)
    return {node for node in free if node.op == "call_function"}


def _preamble_tags(preamble: Sequence[fx.Node], counts: Sequence[fx.Node]) -> dict[fx.Node, Tag]:
    """Tag what only counts need ``loss``, the rest ``preamble``."""
    counting = set(counts)
    for node in reversed(preamble):
        if node.users and all(user in counting for user in node.users):
            counting.add(node)
    return {node: Tag("loss" if node in counting else "preamble", "P") for node in preamble}


def _refuse_uncovered(
    graph: fx.Graph,
    states: Sequence[StateSpec],
    modules: Mapping[str, str],
    hits: Mapping[fx.Node, Hit],
) -> None:
    parameters = {spec.name: spec for spec in states if spec.kind == "parameter"}
    missing: dict[str, list[str]] = {}
    for node in graph.nodes:
        if node.op != "placeholder" or role(node).kind != "state":
            continue
        if role(node).name not in parameters:
            continue
        spec = parameters[role(node).name]
        readers = [
            user for user in node.users if user.op == "call_function" and not is_backward(user)
        ]
        owners = [name.rpartition(".")[0] for name in (spec.name, *spec.aliases)]
        if not any(user in hits for user in readers) and not any(
            _covered(owner, modules) for owner in owners
        ):
            missing.setdefault(owners[0], []).append(
                f"{spec.name} (read at {node_site(readers[0])})"
            )
    if missing:
        told = "; ".join(
            f"{_owner(owner)} owns {', '.join(names)}" for owner, names in missing.items()
        )
        cure = _ROOT_CURE if "" in missing else ""
        raise CaptureError(
            f"uncovered: no annotation covers parameters that the loss needs: {told}{cure}"
        )


def _owner(path: str) -> str:
    return f"module {path!r}" if path else "the model itself (path '')"


def _covered(path: str, modules: Mapping[str, str]) -> bool:
    """Return whether ``path`` or a module around it is annotated."""
    parts = path.split(".") if path else []
    return any(".".join(parts[:length]) in modules for length in range(len(parts) + 1))


def _number_chunks(forward: Sequence[fx.Node], hits: Mapping[fx.Node, Hit]) -> dict[str, int]:
    numbers: dict[str, int] = {}
    for node in forward:
        if node in hits:
            numbers.setdefault(hits[node].key, len(numbers))
    return numbers


def _chunk_names(forward: Sequence[fx.Node], hits: Mapping[fx.Node, Hit]) -> tuple[str, ...]:
    """Return the name of each chunk: its tag and how many chunks before it have that tag."""
    tags = {hits[node].key: hits[node].tag for node in forward if node in hits}
    seen: Counter[str] = Counter()
    names = []
    for tag in tags.values():
        names.append(f"{tag}.{seen[tag]}")
        seen[tag] += 1
    return tuple(names)


def _tag_forward(
    forward: Sequence[fx.Node], hits: Mapping[fx.Node, Hit], numbers: Mapping[str, int]
) -> dict[fx.Node, int]:
    index: dict[fx.Node, int] = {}
    pending = []
    for node in forward:
        known = [index[arg] for arg in node.all_input_nodes if arg in index]
        if node in hits:
            own = numbers[hits[node].key]
            _refuse_not_convex(node, own, index, hits)
            known.append(own)
        if known:
            index[node] = max(known)
        else:
            pending.append(node)  # reads parameters only, under no annotation
    for node in reversed(pending):
        readers = [index[user] for user in node.users if user in index]
        if readers:
            index[node] = min(readers)
    for node in pending:
        if node not in index:
            index[node] = _beside_parameters(node, index, last=len(numbers) - 1)
    return index


def _beside_parameters(node: fx.Node, index: Mapping[fx.Node, int], *, last: int) -> int:
    """Return the chunk of an op of a loss that is made of parameters alone, such as the sum of
    their squares: where a parameter is read otherwise, so that it need not be held elsewhere, too.
    """
    made = [index[arg] for arg in node.all_input_nodes if arg in index]
    if made:
        return max(made)
    others = [index[user] for arg in node.all_input_nodes for user in arg.users if user in index]
    return min(others, default=last)


def _refuse_not_convex(
    node: fx.Node, own: int, index: Mapping[fx.Node, int], hits: Mapping[fx.Node, Hit]
) -> None:
    """Refuse an op of a chunk that must run before what the op needs."""
    late = next((arg for arg in node.all_input_nodes if index.get(arg, own) > own), None)
    if late is None:
        return
    other = f" of tag {hits[late].tag!r}" if late in hits else ""
    raise CaptureError(
        f"{node_site(node)}: the chunk of tag {hits[node].tag!r} is not convex: this op needs the "
        f"value made at {node_site(late)} by a chunk{other} that starts after it; annotate them as "
        "one chunk"
    )


def _forward_by_seq(ops: Sequence[fx.Node], index: Mapping[fx.Node, int]) -> dict[int, int]:
    """Return the chunk of the first forward op with each ``seq_nr``."""
    chunks: dict[int, int] = {}
    for node in ops:
        if not is_backward(node) and "seq_nr" in node.meta and node in index:
            chunks.setdefault(node.meta["seq_nr"], index[node])
    return chunks


def _tag_backward(
    backward: Sequence[fx.Node],
    index: dict[fx.Node, int],
    by_seq: Mapping[int, int],
    given: Mapping[fx.Node, int],
) -> None:
    made = set(backward)
    pending = []
    for node in backward:
        known = [index[arg] for arg in node.all_input_nodes if arg in made and arg in index]
        number = node.meta.get("seq_nr")
        own = given.get(node) if number is None else by_seq.get(number)
        if own is not None and not node.meta.get("is_gradient_acc"):
            known.append(own)
        if known:
            index[node] = min(known)
        else:
            pending.append(
                node
            )  # made from nothing, such as a zero: joins its first reader in backward order
    for node in reversed(pending):
        index[node] = max(index[user] for user in node.users if user in index)


def find_sites(graph: fx.Graph) -> dict[fx.Node, OpSite]:
    """Return the source location of every op.

    A backward op has that of the first forward op with its ``seq_nr``; an op without any takes a
    producer's, or else a reader's.
    """
    ops = [node for node in graph.nodes if node.op == "call_function"]
    by_seq: dict[int, OpSite] = {}
    sites: dict[fx.Node, OpSite] = {}
    for node in ops:
        site = node_site(node)
        number = node.meta.get("seq_nr")
        if is_backward(node) and number in by_seq and not node.meta.get("is_gradient_acc"):
            site = by_seq[number]
        elif site is not None and number is not None and not is_backward(node):
            by_seq.setdefault(number, site)
        known = [sites[arg] for arg in node.all_input_nodes if arg in sites]
        if site is not None or known:
            sites[node] = site or known[-1]
    for node in reversed(ops):
        if node not in sites:
            sites[node] = next(sites[user] for user in node.users if user in sites)
    return sites
