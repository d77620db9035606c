"""Loss and gradients by plain PyTorch, from what ranks have of the batch.

The main term of the loss is one of the whole batch. Those that are declared local are the mean of
what each microbatch of each rank has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from piper_runtime.checking.gaps import BOUNDS
from piper_runtime.inputs import batch as batches
from piper_runtime.inputs.fixed import check_fixed
from piper_runtime.manifest import Manifest
from piper_runtime.mesh import Mesh
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils import _pytree as pytree

from piper.reference.local_terms import KeptTerms, WithoutTerms

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

        States are given in the dtype that the model has. Terms of the loss that are declared local
        are the mean of what each microbatch of each shard has.
        """
        rows = _join_sequences(shards, self._manifest)
        gradients = _Gradients(self._model, self._loss, states, training=training)
        total, has_local = gradients.of_main(self._whole(rows), scale=loss_scale)
        parts = [part for row in rows for part in self._microbatches(row)] if has_local else []
        for part in parts:
            terms = gradients.of_local(self._whole([part]), scale=loss_scale, count=len(parts))
            for name, value in terms.items():
                total[name] = total[name] + value if name in total else value
        return total

    def _microbatches(self, row: Mapping[str, Tensor]) -> Sequence[Mapping[str, Tensor]]:
        """Return the microbatches of a shard."""
        return batches.microbatches(
            row, self._manifest.inputs, num_microbatches=self._manifest.microbatches
        )

    def _whole(self, rows: Shards) -> Any:
        """Return the batch of all rows in the structure of the example."""
        dims = {spec.name: spec.dim for spec in self._manifest.inputs}
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


class _Gradients:
    """Loss and gradients by name of one batch; states are given in the dtype that the model has."""

    def __init__(self, model: nn.Module, loss: _Loss, states: States, *, training: bool) -> None:
        self._model, self._loss, self._training = model, loss, training
        self._values = {
            f"model.{name}": states[name]
            .detach()
            .to(parameter.dtype, copy=True)
            .requires_grad_(parameter.requires_grad and training)
            for name, parameter in model.named_parameters()
        }
        self._buffers = {
            f"model.{name}": states[name] for name, _ in model.named_buffers() if name in states
        }

    def of_main(self, batch: Any, *, scale: float) -> tuple[dict[str, Tensor], bool]:
        """Return the loss but for its local terms, gradients times ``scale``, and whether there are
        local terms.
        """
        with torch.enable_grad(), WithoutTerms() as terms:
            loss = self._run(batch)
        derived = [loss] if loss.requires_grad else []
        found = self._derive(derived, [torch.full_like(loss, scale)] * len(derived))
        return {"the loss": loss.detach(), **found}, bool(terms.values)

    def of_local(self, batch: Any, *, scale: float, count: int) -> dict[str, Tensor]:
        """Return the part of the loss that is its local terms, and gradients times ``scale``.

        Both are divided by ``count``.
        """
        with torch.enable_grad(), KeptTerms() as kept:
            loss = self._run(batch)
        factors = torch.autograd.grad(loss / count, kept.leaves)
        terms = [f * v.detach() for f, v in zip(factors, kept.values, strict=True)]
        derived = [i for i, value in enumerate(kept.values) if value.requires_grad]
        found = self._derive(
            [kept.values[i] for i in derived], [factors[i] * scale for i in derived]
        )
        return {"the loss": torch.stack([term.to(loss.dtype) for term in terms]).sum(), **found}

    def _run(self, batch: Any) -> Tensor:
        given = self._values | {name: value.clone() for name, value in self._buffers.items()}
        with _mode(self._model, self._training):
            loss: Tensor = functional_call(self._loss, given, (batch,))
        return loss

    def _derive(self, outputs: list[Tensor], tangents: list[Tensor]) -> dict[str, Tensor]:
        """Return the gradients of what is trained, by name; none where there is none."""
        trained = {n: v for n, v in self._values.items() if v.requires_grad}
        if not outputs or not trained:
            return {}
        made = torch.autograd.grad(outputs, list(trained.values()), tangents, allow_unused=True)
        return {
            name.removeprefix("model."): gradient
            for name, gradient in zip(trained, made, strict=True)
            if gradient is not None
        }


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
