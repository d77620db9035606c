"""``piper.compile``: from a model and a strategy to rank programs, one short step per level."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from piper_runtime import Program
from piper_runtime.observe.progress import phase
from piper_runtime.program import seal
from torch import Tensor, nn

from piper.arguments import check_arguments, check_fit
from piper.diagnostics import CompileError, diagnostics
from piper.emit import emit_kernels, emit_manifest, emit_programs
from piper.emit.outside import add_outside, fix_leaves
from piper.emit.symbols import Symbols
from piper.frontend import Capture, capture, capture_eval
from piper.frontend.bias import separate_biases
from piper.frontend.data import site_of
from piper.frontend.importer import import_step
from piper.frontend.sequences.lengths import refuse_lengths
from piper.frontend.sequences.part import part_of_batch
from piper.frontend.simplify import simplify
from piper.limits import Limits
from piper.mlir import ir
from piper.share import Artifact, is_shared, open_store, share
from piper.simulate.predicted import add_memory
from piper.strategy import Annotate, Strategy
from piper.user_passes import run_passes

__all__ = ["CompileError", "compile"]

LossFunction = Callable[[Any, Any], Tensor]
NO_LIMITS = Limits()


def compile(
    model: nn.Module,
    loss_fn: LossFunction,
    strategy: Strategy,
    batch: Any,
    *,
    data_shards: int | None = None,
    limits: Limits = NO_LIMITS,
    timeout: float = 1800.0,
) -> Program:
    """Compile the training and the evaluation step of a model into one program per coordinate.

    Args:
        model: any module; its parameters may be on meta, their values are not looked at.
        loss_fn: ``loss_fn(model, batch) -> loss``, a scalar that is a sum or a mean over examples,
            and perhaps ``local_loss`` terms.
        strategy: the mesh and the directives.
        batch: an example of what this process feeds to a step: a pytree of tensors. Under torchrun
            it is one data-parallel shard, else the batch of all ranks. Leaves that are no tensors
            are compiled in: every batch must have the same.
        data_shards: how many data-parallel shards `batch` holds; by default as `batch` says.
        limits: what the program of a rank may take of its device.
        timeout: seconds that a rank waits for rank 0. Under torchrun only rank 0 compiles, and all
            ranks, which must call this in the same order, get its program.

    Returns a program that a ``Trainer`` runs and ``Program.save`` writes.
    Raises TypeError for arguments of other types. Raises CaptureError for what cannot be captured and CompileError for a strategy that does not
    fit, also into the limits, each with the source lines; nothing has run by then. Raises
    ShareError on the other ranks if rank 0 fails or does not come, or if their strategy or limits
    are not the same.
    """
    check_arguments(model, loss_fn, strategy, limits=limits, data_shards=data_shards)
    make = partial(_compile, model, loss_fn, strategy, batch, data_shards, limits)
    if is_shared():
        rank = int(os.environ["RANK"])
        with open_store(timeout=timeout) as store:
            about = f"{_without_locations(str(strategy))}{limits}"
            texts, constants = share(make, store, rank=rank, about=about, timeout=timeout)
    else:
        texts, constants = make()
    factory = None if strategy.update is None else strategy.update.factory
    return Program(texts, constants=constants, model=model, optimizer=factory)


def _compile(
    model: nn.Module,
    loss_fn: LossFunction,
    strategy: Strategy,
    batch: Any,
    data_shards: int | None,
    limits: Limits,
) -> Artifact:
    """Capture, run the passes and emit: all that ``compile`` does on the rank that compiles."""
    fixed = fix_leaves(batch)
    with phase("capture", total=2) as advance:  # train and eval
        captures = _capture(model, loss_fn, strategy, batch, data_shards, advance)
    _check_chunks(strategy, model, captures[0])
    directives = strategy.ir(_batch_dims(captures[0]))
    with ir.Context(), phase("compile", total=len(_LEVELS) + 1) as advance:
        module = ir.Module.parse(directives)
        for taken in captures:
            import_step(module, taken)
        snapshots = {"strategy": f"{directives}\n", "step": _text(module)}
        for level in _LEVELS:
            _run(module, level.pipeline + (limits.options() if level.limited else ""))
            snapshots[level.name] = _text(module)
            advance()
        texts = _emit(module, snapshots["step"])
        indices = {
            f"{axis.name}$index": torch.arange(axis.size)
            for axis in strategy.mesh.axes
            if f"{axis.name}$index" in Symbols(module).states
        }
        advance()
    texts["manifest.json"] = add_outside(texts["manifest.json"], fixed=fixed, model=model)
    texts |= {f"ir/{name}.mlir": text for name, text in snapshots.items()}
    constants = {
        state.name: state.value
        for taken in captures
        for state in taken.states
        if state.value is not None
    } | indices
    return seal(texts, constants), constants


@dataclass(frozen=True)
class _Level:
    """A level of the IR, and the passes that lead to it from the one before.

    A `limited` one takes limits as options.
    """

    name: str
    pipeline: str
    limited: bool = False


_LEVELS = (
    _Level(
        "chunks",
        "piper-user-passes{at=step},piper-remat,piper-shard,piper-partition,piper-outline-chunks",
    ),
    _Level("cluster", "piper-record,piper-materialize"),
    _Level("programs", "piper-lower", limited=True),
)


def _capture(
    model: nn.Module,
    loss_fn: LossFunction,
    strategy: Strategy,
    batch: Any,
    data_shards: int | None,
    advance: Callable[[], None],
) -> list[Capture]:
    """Capture both entry points at the shape of one microbatch of one rank."""
    every = strategy.num_data_shards
    held = (1 if _is_distributed() else every) if data_shards is None else data_shards
    check_fit(strategy, model, batch, held=held, data_shards=data_shards)
    whole, sequence = batch, strategy.sequence
    if sequence is not None:
        batch = part_of_batch(batch, sequence, strategy.dims)
    captures: list[Capture] = []
    known = known_whole = ""  # the forward pass that an entry point may share with the one before
    for take in (capture, capture_eval):
        take_of = partial(
            take,
            model,
            loss_fn,
            annotations=strategy.tags,
            microbatches=strategy.microbatches,
            data_shards=every,
            held=held,
            dims=strategy.dims,
        )
        taken = take_of(batch, known=known)
        known = taken.forward
        if sequence is not None:
            larger = take_of(whole, known=known_whole)
            known_whole = larger.forward
            refuse_lengths(taken, larger, sequence)
        taken = simplify(taken)
        captures.append(separate_biases(taken) if strategy.mesh.auto else taken)
        advance()
    _check_losses(*captures)
    return captures


def _check_losses(train: Capture, evaluation: Capture) -> None:
    """Check that evaluation reports what training does."""
    trained, evaluated = ([loss.name for loss in of.losses] for of in (train, evaluation))
    both = {*trained} & {*evaluated}
    alone = [loss for loss in (*train.losses, *evaluation.losses) if loss.name not in both]
    if alone:
        raise CompileError(
            f"{site_of(alone[0].value)}: the loss has the terms {evaluated} in "
            f"evaluation and {trained} in training, expected the same"
        )


def _check_chunks(strategy: Strategy, model: nn.Module, taken: Capture) -> None:
    """Check what annotations and layouts say of chunks."""
    try:
        for annotate in strategy.all(Annotate):
            annotate.check_chunks(model, taken)
        strategy.check_chunks(taken.chunks)
    except ValueError as error:
        raise CompileError(str(error)) from None


def _without_locations(text: str) -> str:
    """Return IR without source lines, which differ between machines."""
    with ir.Context():
        return str(ir.Module.parse(text))


def _is_distributed() -> bool:
    return int(os.environ.get("WORLD_SIZE", "1")) > 1


def _batch_dims(taken: Capture) -> dict[str, int | None]:
    return {spec.name: spec.dim for spec in taken.inputs}


def _run(module: ir.Module, pipeline: str) -> None:
    try:
        run_passes(module, f"builtin.module({pipeline})")
    except ir.MLIRError as error:  # type: ignore[attr-defined]  # the stub lacks it
        raise CompileError("\n".join(diagnostics(error))) from None


def _text(module: ir.Module) -> str:
    """Return what piper-opt prints: the module, its locations, a line end."""
    return f"{module.operation.get_asm(enable_debug_info=True)}\n"


def _emit(module: ir.Module, captured: str) -> dict[str, str]:
    """Emit kernels and programs, and the manifest that describes them."""
    symbols = Symbols(module)
    texts = {"kernels.py": emit_kernels(module), **emit_programs(symbols)}
    manifest = emit_manifest(symbols, texts, captured=captured)
    return texts | {"manifest.json": add_memory(manifest, symbols)}
