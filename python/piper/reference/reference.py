"""Check mode: what a single process computes, for a ``Trainer`` to compare every value with.

    plain PyTorch     loss and gradients: model, loss_fn, autograd; local losses of each microbatch
      = the step      of one microbatch, from the IR, chunk by chunk, on every microbatch
      = the programs  each value of each instruction of each rank

If the first two differ, capture or a pass on the step is wrong; which of the two is found out by
running the captured step as well. Else the first instruction whose value differs is wrong.

Where ranks share out weights, sequences or experts, the step of the IR is about what one rank has.
The process then computes it for all that differ, and its gradients are put together again before
they are compared with plain PyTorch, which has all of the model and the batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import torch
from piper_runtime import CheckError, Program, Trainer, Transport
from piper_runtime.checking.gaps import Summary
from piper_runtime.checking.places import Places
from piper_runtime.inputs import batch as batches
from piper_runtime.names import dtype_of
from piper_runtime.states.optimizer import OptimizerFactory, call_factory, clip_factor, load_factory
from torch import Tensor, nn

from piper.frontend.exporter import export_step
from piper.mlir import ir
from piper.mlir.dialects import piper
from piper.reference.expectation import Expectation, local_flats, squared_norm, whole_gradients
from piper.reference.interpret import Results, read_steps
from piper.reference.plain import LossFunction, PlainStep, first_difference

__all__ = ["Reference", "check"]

States = Mapping[str, Tensor]
Shards = Sequence[Mapping[str, Tensor]]
Flats = Sequence[Mapping[str, Tensor]]


class Reference:
    """The single process that a program is compared with: ``Trainer(program, check=...)``.

    ``batch`` is an example of what ``loss_fn`` takes, for its structure; ``model`` is the one that
    was compiled (default: the program's) and is not changed; ``optimizer`` is as in ``Trainer``.
    ``bound`` is how far values may be off, as a fraction of the largest element, by default 1e-9 in
    float64, 1e-4 in float32 and 2e-2 in 16 bits, also of what came from these; integers must be
    equal.

    It works in every process, on the batch of all of them, on the CPU. Raises ValueError if there
    is no model or no IR in the program, or if leaves of the batch that are no tensors are not those
    that were compiled in.
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
        self.bound = bound
        self._program, self._manifest = program, program.manifest
        self._plain = PlainStep(model, loss_fn, batch, manifest=self._manifest)
        self._factory = optimizer or program.optimizer
        self._places = Places(self._manifest.mesh, self._manifest.data_axes)
        with ir.Context():
            self._steps = read_steps(
                program.texts["ir/cluster.mlir"],
                microbatches=self._manifest.microbatches,
                places=self._places,
                summed={
                    spec.name: tuple(
                        axis for axis in self._manifest.data_axes if axis not in spec.varying_axes
                    )
                    for spec in self._manifest.buckets
                },
            )

    def expect(
        self, entry_point: str, *, states: States, shards: Shards, loss_scale: float = 1.0
    ) -> Expectation:
        """Run a call; see ``piper_runtime.checking.oracle.Oracle``.

        Raises CheckError if the step of the IR is not the model's.
        """
        manifest, training = self._manifest, entry_point == "train"
        states = {**states, **self._program.constants}
        flats = local_flats(states, manifest, self._places)
        inputs = [
            batches.microbatches(shard, manifest.inputs, num_microbatches=manifest.microbatches)
            for shard in shards
        ]
        step = self._steps[entry_point]
        with torch.no_grad():
            results = step(flats, inputs, loss_scale=loss_scale if training else 1.0)
            compared = results
            if results.loss_scale != 1.0 and not _is_finite(results):
                compared = step(flats, inputs)  # plain PyTorch may overflow elsewhere
        self._check_plain(entry_point, states, shards, inputs, compared)
        return Expectation(
            step,
            results,
            flats,
            manifest=manifest,
            places=self._places,
            update=lambda: self._update(states, results),
        )

    # Plain PyTorch against the step.

    def _check_plain(
        self, entry: str, states: States, shards: Shards, inputs: Any, results: Results
    ) -> None:
        """Compare loss and gradients of the whole batch."""
        plain = self._plain(
            states, shards, training=entry == "train", loss_scale=results.loss_scale
        )
        bad = first_difference(plain, self._totals(results), self.bound)
        if bad is None:
            return
        if self._manifest.sequence is not None:
            # What was captured is attention to a part, as only a pass makes it see the others'.
            raise CheckError(f"{entry}: {bad}; the difference comes from capture or a pass")
        captured = self._captured(entry, states, inputs, results)
        same = first_difference(plain, captured, self.bound) is None
        stage = "a pass on the captured step" if same else "capture"
        raise CheckError(f"{entry}: {bad}; the difference comes from {stage}")

    def _totals(self, results: Results) -> dict[str, Tensor]:
        """Return loss and gradients by name, of the step."""
        loss = torch.stack([results.outputs[name] for name in self._manifest.losses]).sum()
        return {"the loss": loss, **whole_gradients(results, self._manifest, self._places)}

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
        arguments = [states[name].to(self._dtypes[name]) for name in reads]
        tangents = [results.tangents[name] for name in outputs]
        used = tangents if grads else []
        found: dict[str, Tensor] = {}
        for part in (part for parts in inputs for part in parts):
            with torch.no_grad():
                values, _, made = graph(*arguments, *[part[name] for name in names], *used)
            terms = [
                v * (t.double() / results.loss_scale).to(t.dtype)
                for v, t in zip(values, tangents, strict=True)
            ]
            loss = torch.stack(terms).sum()
            for name, value in zip(["the loss", *grads], [loss, *made], strict=True):
                found[name] = found[name] + value if name in found else value
        return found

    @cached_property
    def _dtypes(self) -> dict[str, torch.dtype]:
        """The dtype of each state, in which the model has it."""
        return {state.name: dtype_of(state.dtype) for state in self._manifest.states}

    # The update.

    def _update(self, states: States, results: Results) -> Flats:
        """Return the flat values of the buckets after the optimizer's step, by place."""
        updated = dict(states)
        with torch.no_grad():
            for name, gradient in whole_gradients(results, self._manifest, self._places).items():
                if name in self._parameters:
                    parameter = self._parameters[name]
                    parameter.copy_(states[name])
                    factor = self._factor_of(parameter, results)
                    scaled = gradient if factor is None else gradient * factor
                    parameter.grad = scaled.to(parameter.dtype)
            self._optimizer.step()
        updated.update((name, p.detach().clone()) for name, p in self._parameters.items())
        return local_flats(updated, self._manifest, self._places)

    def _factor_of(self, parameter: Tensor, results: Results) -> Tensor | None:
        """Return what a gradient is multiplied by, to be clipped and without the loss scale.

        A scale is undone in float32 at least, as the runtime does it: the factor has a dim, so that
        the product is as wide.
        """
        clip, scale = self._manifest.clip, results.loss_scale
        factor = None
        if clip is not None:
            squares = squared_norm(results, self._manifest, self._places)
            factor = clip_factor(squares, clip, scale=scale)
        if self._manifest.loss_scale is None:
            return factor
        wide = torch.promote_types(parameter.dtype, torch.float32)
        undone = torch.full((1,), 1 / scale, dtype=wide)
        return undone if factor is None else undone * factor

    @cached_property
    def _parameters(self) -> dict[str, nn.Parameter]:
        """The trained parameters, by the first of their names, in the dtype that is updated."""
        states = {state.name: state for state in self._manifest.states}
        return {
            name: nn.Parameter(torch.zeros(states[name].shape, dtype=dtype_of(spec.dtype)))
            for spec in self._manifest.buckets
            if spec.grad_dtype is not None
            for name in spec.members
        }

    @cached_property
    def _optimizer(self) -> torch.optim.Optimizer:
        factory = self._factory
        if factory is None and self._manifest.optimizer is not None:
            factory = load_factory(self._manifest.optimizer)
        if factory is None:
            raise ValueError("check mode expected an optimizer, got none")
        return call_factory(factory, list(self._parameters.items()))


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


def _is_finite(results: Results) -> bool:
    """Whether all gradients are."""
    return all(bool(value.isfinite().all()) for value in results.gradients.values())
