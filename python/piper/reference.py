"""Check mode: what a single process computes, for a ``Trainer`` to compare every value with.

    plain PyTorch     loss and gradients of the whole batch: model, loss_fn, autograd
      = the step      of one microbatch, from the IR, chunk by chunk, on every microbatch
      = the programs  each value of each instruction of each rank

If the first two differ, capture or a pass on the step is wrong; which of the two is found out by
running the captured step as well. Else the first instruction whose value differs is wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import torch
from piper_runtime import CheckError, Program, Trainer, Transport
from piper_runtime import batch as batches
from piper_runtime.check import refuse_unchecked
from piper_runtime.compute import sumsq
from piper_runtime.gaps import BOUNDS, Summary
from piper_runtime.manifest import BucketSpec
from piper_runtime.names import dtype_of
from piper_runtime.optimizer import OptimizerFactory, clip_factor, load_factory
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils import _pytree as pytree

from piper.frontend.exporter import export_step
from piper.interpret import Results, StepFunction, read_steps
from piper.mlir import ir
from piper.mlir.dialects import piper

__all__ = ["Reference", "check"]

LossFunction = Callable[[Any, Any], Tensor]
States = Mapping[str, Tensor]
Shards = Sequence[Mapping[str, Tensor]]
CPU = torch.device("cpu")


class Reference:
    """The single process that a program is compared with: ``Trainer(program, check=...)``.

    ``batch`` is an example of what ``loss_fn`` takes, for its structure; ``model`` is the one that
    was compiled (default: the program's) and is not changed; ``optimizer`` is as in ``Trainer``.
    ``bound`` is how far values may be off, as a fraction of the largest element, by default 1e-9 in
    float64, 1e-4 in float32 and 2e-2 in 16 bits; integers must be equal.

    It works in every process, on the batch of all of them, on the CPU. Raises ValueError if there
    is no model, no IR in the program, or what a single process has not (`refuse_unchecked`).
    """

    def __init__(
        self,
        program: Program,
        loss_fn: LossFunction,
        batch: Any,
        *,
        model: nn.Module | None = None,
        optimizer: OptimizerFactory | None = None,
        bound: float | None = None,
    ) -> None:
        """Read the step from the program's IR."""
        model = program.model if model is None else model
        if model is None:
            raise ValueError("check mode expected a model, got none: the program was saved")
        if "ir/cluster.mlir" not in program.texts:
            raise ValueError("check mode expected the program's IR, got none: compile it again")
        refuse_unchecked(program.manifest)
        self.bound = bound
        self._program, self._manifest = program, program.manifest
        self._model, self._batch = model, batch
        self._loss = _Loss(model, loss_fn)
        self._factory = optimizer or program.optimizer
        self._num_shards = self._manifest.mesh.size(self._manifest.data_axes)
        self._steps = _read(program, self._num_shards)

    def expect(self, entry_point: str, *, states: States, shards: Shards) -> Expectation:
        """Run a call; see ``piper_runtime.oracle.Oracle``.

        Raises CheckError if the step of the IR is not the model's.
        """
        states = {**states, **self._program.constants}
        flats = {spec.name: _flat(spec, states) for spec in self._manifest.buckets}
        inputs = [
            batches.microbatches(
                shard, self._manifest.inputs, num_microbatches=self._manifest.microbatches
            )
            for shard in shards
        ]
        step = self._steps[entry_point]
        with torch.no_grad():
            results = step(flats, inputs)
        self._check_plain(entry_point, states, shards, inputs, results)
        return Expectation(step, results, flats, lambda: self._update(states, results))

    # Plain PyTorch against the step.

    def _check_plain(
        self, entry: str, states: States, shards: Shards, inputs: Any, results: Results
    ) -> None:
        """Compare loss and gradients of the whole batch."""
        plain = self._plain(entry, states, shards)
        ours = self._totals(results)
        bad = _first_difference(plain, ours, self.bound)
        if bad is None:
            return
        captured = self._captured(entry, states, inputs, results)
        same = _first_difference(plain, captured, self.bound) is None
        stage = "a pass on the captured step" if same else "capture"
        raise CheckError(f"{entry}: {bad}; the difference comes from {stage}")

    def _plain(self, entry: str, states: States, shards: Shards) -> dict[str, Tensor]:
        """Return loss and gradients by name, of eager PyTorch on the whole batch."""
        own = dict(self._model.named_parameters())
        values = {f"model.{name}": states[name].detach().clone() for name in own}
        buffers = {n: states[n] for n, _ in self._model.named_buffers() if n in states}
        for name, parameter in own.items():
            values[f"model.{name}"].requires_grad_(parameter.requires_grad and entry == "train")
        given = values | {f"model.{name}": value.clone() for name, value in buffers.items()}
        with _mode(self._model, entry == "train"), torch.enable_grad():
            loss = functional_call(self._loss, given, (self._whole(shards),))
            trained = {n: v for n, v in values.items() if v.requires_grad}
            made = (
                torch.autograd.grad(loss, list(trained.values()), allow_unused=True)
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
        names = iter(batches.leaves(self._batch))
        leaves, structure = pytree.tree_flatten(self._batch)
        whole = []
        for leaf, name in zip(leaves, names, strict=True):
            if name in dims:
                dim = dims[name]
                parts = [shard[name] for shard in shards]
                leaf = parts[0] if dim is None else torch.cat(parts, dim)
            whole.append(leaf)
        return pytree.tree_unflatten(whole, structure)

    def _totals(self, results: Results) -> dict[str, Tensor]:
        """Return loss and gradients by name, of the step."""
        found = {"the loss": torch.stack([results.outputs[n] for n in self._manifest.losses]).sum()}
        for spec in self._manifest.buckets:
            if spec.name in results.gradients:
                found.update(self._views(spec, results.gradients[spec.name]))
        return found

    def _views(self, spec: BucketSpec, flat: Tensor) -> Iterator[tuple[str, Tensor]]:
        """Yield the members of a bucket with their parts of a flat tensor."""
        start = 0
        for name in spec.members:
            state = self._manifest.state(name)
            yield name, flat[start : start + state.numel].view(state.shape)
            start += state.numel

    def _captured(
        self, entry: str, states: States, inputs: Any, results: Results
    ) -> dict[str, Tensor]:
        """Return loss and gradients by name, of the captured step before any pass."""
        with ir.Context():
            module = ir.Module.parse(self._program.texts["ir/step.mlir"])
            [step] = [
                op
                for op in module.body
                if isinstance(op, piper.StepOp) and op.sym_name.value == entry
            ]
            ops = list(step.body.blocks[0])
            reads = [op.symbol.value for op in ops if isinstance(op, piper.ReadOp)]
            grads = [op.state.value for op in ops if isinstance(op, piper.GradOp)]
            outputs = [
                ir.StringAttr(op.operation.attributes["name"]).value
                for op in ops
                if isinstance(op, piper.OutputOp)
            ]
            names = [ir.StringAttr(name).value for name in step.inputs]
            graph = export_step(step)
        arguments = [states[name] for name in reads]
        tangents = [results.tangents[name] for name in outputs]
        used = tangents if grads else []
        found: dict[str, Tensor] = {}
        for part in (part for parts in inputs for part in parts):
            with torch.no_grad():
                values, _, made = graph(*arguments, *[part[name] for name in names], *used)
            loss = torch.stack([v * t for v, t in zip(values, tangents, strict=True)]).sum()
            for name, value in zip(["the loss", *grads], [loss, *made], strict=True):
                found[name] = found[name] + value if name in found else value
        return found

    # The update.

    def _update(self, states: States, results: Results) -> dict[str, Tensor]:
        """Return the flat values of the buckets after the optimizer's step."""
        manifest, factor = self._manifest, None
        if manifest.clip is not None:
            factor = clip_factor(sumsq(None, CPU, *results.gradients.values()), manifest.clip)
        updated = dict(states)
        with torch.no_grad():
            for name, gradient in self._totals(results).items():
                if name in self._parameters:
                    parameter = self._parameters[name]
                    parameter.copy_(states[name])
                    scaled = gradient if factor is None else gradient * factor
                    parameter.grad = scaled.to(parameter.dtype)
            self._optimizer.step()
        updated.update((name, p.detach().clone()) for name, p in self._parameters.items())
        return {spec.name: _flat(spec, updated) for spec in manifest.buckets}

    @cached_property
    def _parameters(self) -> dict[str, nn.Parameter]:
        """The trained parameters, by the first of their names."""
        states = {state.name: state for state in self._manifest.states}
        trained = [
            states[name]
            for spec in self._manifest.buckets
            if spec.grad_dtype is not None
            for name in spec.members
        ]
        return {
            state.name: nn.Parameter(torch.zeros(state.shape, dtype=dtype_of(state.dtype)))
            for state in trained
        }

    @cached_property
    def _optimizer(self) -> torch.optim.Optimizer:
        factory = self._factory
        if factory is None and self._manifest.optimizer is not None:
            factory = load_factory(self._manifest.optimizer)
        if factory is None:
            raise ValueError("check mode expected an optimizer, got none")
        return factory(list(self._parameters.values()))


class Expectation:
    """What one call must compute; see ``piper_runtime.oracle.Expected``."""

    def __init__(
        self,
        step: StepFunction,
        results: Results,
        flats: Mapping[str, Tensor],
        update: Callable[[], dict[str, Tensor]],
    ) -> None:
        """Keep the results; the update is made when it is asked for, at most once."""
        self._step, self._results, self._flats = step, results, flats
        self._make_update = update
        self._updated: dict[str, Tensor] | None = None

    def result(self, chunk: str, index: int, *, microbatch: int, shard: int) -> Any:
        """Return one result of a chunk, None if the step has no such chunk."""
        made = self._results.chunks.get((chunk, microbatch, shard))
        return None if made is None or index >= len(made) else made[index]

    def operands(self, chunk: str, *, microbatch: int, shard: int) -> Sequence[Any] | None:
        """Return what a chunk is run on, None if the step has no such chunk."""
        return self._results.operands.get((chunk, microbatch, shard))

    def contributions(self, bucket: str) -> Iterable[tuple[str, int]]:
        """Return chunk and index of every result that adds to the gradient of a bucket."""
        return self._step.contributions.get(bucket, ())

    def bucket(self, name: str, *, updated: bool) -> Tensor | None:
        """Return the flat value of a bucket before or after the update."""
        if not updated:
            return self._flats.get(name)
        if self._updated is None:
            self._updated = self._make_update()
        return self._updated.get(name)

    def gradient(self, bucket: str) -> Tensor | None:
        """Return the flat sum of all gradients of a bucket."""
        return self._results.gradients.get(bucket)

    def tangent(self, loss: str) -> Tensor | None:
        """Return the number that the backward of a loss starts with."""
        return self._results.tangents.get(loss)

    def output(self, name: str) -> Tensor | None:
        """Return an output; ``grad_norm`` is the sum of squares of all gradients."""
        if name == "grad_norm" and name not in self._results.outputs:
            return sumsq(None, CPU, *self._results.gradients.values())
        return self._results.outputs.get(name)


def check(
    program: Program,
    loss_fn: LossFunction,
    batch: Any,
    *,
    model: nn.Module | None = None,
    optimizer: OptimizerFactory | None = None,
    transport: Transport | str | None = None,
    steps: int = 1,
    bound: float | None = None,
    **options: Any,
) -> Summary:
    """Train on one batch in check mode, evaluate it, and return what was compared.

    Arguments, and other ``options``, are those of ``Reference`` and ``Trainer``. Under
    torchrun all processes call it, each with its own shard. Raises InstructionError, naming the
    first instruction whose value differs from that of the single process, or CheckError if the
    captured step is not the model's.
    """
    reference = Reference(program, loss_fn, batch, model=model, optimizer=optimizer, bound=bound)
    trainer = Trainer(
        program, model=model, optimizer=optimizer, transport=transport, check=reference, **options
    )
    try:
        for _ in range(steps):
            trainer.step(batch)
        if "eval" in program.manifest.entry_points:
            trainer.evaluate(batch)
    finally:
        trainer.close()
    assert trainer.checked is not None
    return trainer.checked


class _Loss(nn.Module):
    """The loss as a module, so that all states of the model can be given."""

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


def _read(program: Program, shards: int) -> dict[str, StepFunction]:
    with ir.Context():
        return read_steps(
            program.texts["ir/cluster.mlir"],
            microbatches=program.manifest.microbatches,
            shards=shards,
        )


def _flat(spec: BucketSpec, states: States) -> Tensor:
    return torch.cat([states[name].reshape(-1) for name in spec.members])


def _first_difference(
    plain: Mapping[str, Tensor], ours: Mapping[str, Tensor], bound: float | None
) -> str | None:
    """Return in words which value is off first, relative to the largest gradient of all."""
    gradients = [value for name, value in plain.items() if name != "the loss"]
    scale = max((float(value.abs().max()) for value in gradients), default=1.0)
    for name, value in plain.items():
        what = name if name == "the loss" else f"the gradient of {name!r}"
        if name not in ours:
            return f"{what} expected from plain PyTorch, got none"
        by = float(value.abs()) if name == "the loss" else scale
        gap = float((ours[name].double() - value.double()).abs().max()) / (by or 1.0)
        most = BOUNDS.get(value.dtype, 0.0) if bound is None else bound
        if not gap <= most:
            return f"{what} differs from plain PyTorch by {gap:.1e}, bound {most:.0e}"
    return None
