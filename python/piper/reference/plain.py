"""Loss and gradients of a whole batch by plain PyTorch, from what ranks have of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from piper_runtime import batch as batches
from piper_runtime.checking.gaps import BOUNDS
from piper_runtime.fixed import check_fixed
from piper_runtime.manifest import Manifest
from piper_runtime.mesh import Mesh
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils import _pytree as pytree

__all__ = ["LossFunction", "PlainStep", "first_difference"]

LossFunction = Callable[[Any, Any], Tensor]
States = Mapping[str, Tensor]
Shards = Sequence[Mapping[str, Tensor]]


class PlainStep:
    """A model and its loss, as plain PyTorch computes them.

    ``batch`` is an example of what ``loss_fn`` takes, for its structure. The model is not changed.
    """

    def __init__(
        self, model: nn.Module, loss_fn: LossFunction, batch: Any, *, manifest: Manifest
    ) -> None:
        """Make a module of model and loss, so that all states of the model can be given.

        Raises ValueError if leaves that are no tensors are not those that were compiled in.
        """
        if manifest.leaves is not None:
            check_fixed(batches.leaves(batch), manifest.leaves)
        self._model, self._batch, self._manifest = model, batch, manifest
        self._loss = _Loss(model, loss_fn)

    def __call__(
        self, states: States, shards: Shards, *, training: bool, loss_scale: float = 1.0
    ) -> dict[str, Tensor]:
        """Return loss and gradients by name; gradients are times the loss scale.

        States are given in the dtype that the model has.
        """
        own = dict(self._model.named_parameters())
        values = {
            f"model.{name}": states[name].detach().to(parameter.dtype, copy=True)
            for name, parameter in own.items()
        }
        buffers = {n: states[n] for n, _ in self._model.named_buffers() if n in states}
        for name, parameter in own.items():
            values[f"model.{name}"].requires_grad_(parameter.requires_grad and training)
        given = values | {f"model.{name}": value.clone() for name, value in buffers.items()}
        with _mode(self._model, training), torch.enable_grad():
            loss = functional_call(self._loss, given, (self._whole(shards),))
            trained = {n: v for n, v in values.items() if v.requires_grad}
            tangent = torch.full_like(loss, loss_scale)
            made = (
                torch.autograd.grad(loss, list(trained.values()), tangent, allow_unused=True)
                if trained
                else ()
            )
        gradients = {
            name.removeprefix("model."): gradient
            for name, gradient in zip(trained, made, strict=True)
            if gradient is not None
        }
        return {"the loss": loss.detach(), **gradients}

    def _whole(self, shards: Shards) -> Any:
        """Return the whole batch in the structure of the example."""
        dims = {spec.name: spec.dim for spec in self._manifest.inputs}
        rows = _join_sequences(shards, self._manifest)
        names = iter(batches.leaves(self._batch))
        leaves, structure = pytree.tree_flatten(self._batch)
        whole = []
        for leaf, name in zip(leaves, names, strict=True):
            if name in dims:
                dim = dims[name]
                parts = [shard[name] for shard in rows]
                leaf = parts[0] if dim is None else torch.cat(parts, dim)
            whole.append(leaf)
        return pytree.tree_unflatten(whole, structure)


def first_difference(
    plain: Mapping[str, Tensor], ours: Mapping[str, Tensor], bound: float | None
) -> str | None:
    """Return in words which value is off first, relative to the largest gradient of all.

    Elements that are finite on neither side are equal.
    """
    gradients = [value for name, value in plain.items() if name != "the loss"]
    scale = max((_largest(value) for value in gradients), default=1.0)
    for name, value in plain.items():
        what = name if name == "the loss" else f"the gradient of {name!r}"
        if name not in ours:
            return f"{what} expected from plain PyTorch, got none"
        by = _largest(value) if name == "the loss" else scale
        differs = (ours[name] != value) & (ours[name].isfinite() | value.isfinite())
        gaps = (ours[name][differs].double() - value[differs].double()).abs()
        gap = (float(gaps.max()) if gaps.numel() else 0.0) / (by or 1.0)
        most = BOUNDS.get(value.dtype, 0.0) if bound is None else bound
        if not gap <= most:
            return f"{what} differs from plain PyTorch by {gap:.1e}, bound {most:.0e}"
    return None


class _Loss(nn.Module):
    """The loss as a module."""

    def __init__(self, model: nn.Module, loss_fn: LossFunction) -> None:
        super().__init__()
        self.model = model
        self._loss_fn = loss_fn

    def forward(self, batch: Any) -> Tensor:
        return self._loss_fn(self.model, batch)


@contextmanager
def _mode(model: nn.Module, training: bool) -> Iterator[None]:
    """Let the model be as it is, or as after ``eval()``."""
    before = {module: module.training for module in model.modules()}
    if not training:
        model.eval()
    try:
        yield
    finally:
        for module, flag in before.items():
            module.training = flag


def _join_sequences(shards: Shards, manifest: Manifest) -> Shards:
    """Return the shards of a batch, of parts of sequences that ranks have of each."""
    sequence = manifest.sequence
    if sequence is None:
        return shards
    mesh = Mesh(tuple(axis for axis in manifest.mesh.axes if axis.name in manifest.data_axes))
    rows: dict[int, list[Mapping[str, Tensor]]] = {}
    for index, shard in enumerate(shards):  # of one row, in the order of the sequence's axis
        rows.setdefault(mesh.index(index, manifest.batch_axes), []).append(shard)
    return [
        {
            name: _join([part[name] for part in parts], sequence.dims[name])
            if name in sequence.dims
            else value
            for name, value in parts[0].items()
        }
        for _, parts in sorted(rows.items())
    ]


def _join(parts: Sequence[Tensor], dim: int) -> Tensor:
    """Return a sequence of its parts: of two pieces each, one from the front, one from the back."""
    pairs = [part.chunk(2, dim) for part in parts]
    front, back = [pair[0] for pair in pairs], [pair[1] for pair in reversed(pairs)]
    return torch.cat([*front, *back], dim)


def _largest(value: Tensor) -> float:
    """Return the largest finite magnitude."""
    finite = value[value.isfinite()]
    return float(finite.abs().max()) if finite.numel() else 0.0
