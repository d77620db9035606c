"""``Trainer``: holds the state of this process's ranks and runs entry points on batches."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from piper_runtime.checking.check import make_checker
from piper_runtime.checking.gaps import Summary
from piper_runtime.checking.oracle import Oracle
from piper_runtime.checks import EntryFacts, check_calls, check_entry_point
from piper_runtime.determinism import check_agreement, check_environment
from piper_runtime.determinism import deterministic as deterministic_algorithms
from piper_runtime.devices import device_for
from piper_runtime.errors import ProgramError
from piper_runtime.failures.faults import Fault, arm, hooked
from piper_runtime.home import Home, make_home
from piper_runtime.inputs import batch as batches
from piper_runtime.inputs.agreement import check_batch, check_replicas, digest_of
from piper_runtime.inputs.feed import feed_all, feed_one
from piper_runtime.kernels import bind_kernels
from piper_runtime.manifest import BucketSpec, StateSpec
from piper_runtime.names import dtype_of
from piper_runtime.observe.memory import MemoryMeter
from piper_runtime.observe.metrics import Metrics
from piper_runtime.observe.progress import tell
from piper_runtime.observe.result import StepResult, check_peak, count_tokens, peak_resident
from piper_runtime.observe.watch import Watch
from piper_runtime.observe.windows import Steps, Submit
from piper_runtime.program import Program
from piper_runtime.rank import Rank
from piper_runtime.states.held import Held
from piper_runtime.states.loss_scale import LossScale, LossScaler, unscaled
from piper_runtime.states.optimizer import OptimizerFactory, load_factory
from piper_runtime.states.state import Init, Weights, make_buckets
from piper_runtime.states.whole import gather_buckets, loose_states
from piper_runtime.stepper import Stepper
from piper_runtime.transports import Transport, transport_from
from piper_runtime.transports.local import LocalTransport

__all__ = ["Trainer"]

GRAD_NORM = "grad_norm"
SCALE = "loss_scale."


class Trainer:
    """Runs a compiled program on the ranks of this process.

    ``program`` is a ``Program`` or the path of a compiled directory. ``transport`` is a transport,
    ``"local"``, ``"gloo"``, ``"nccl"`` or None for what the environment says; the choice is printed
    to stderr by the process of rank 0. First values come from ``model`` where it is materialised (default:
    the program's model, if it was compiled in this process), else from ``init(name, shape, dtype,
    generator)`` with a generator seeded by ``seed`` and the name. ``optimizer`` maps a list of
    parameters to a torch optimizer (default: the one the strategy named).

    ``metrics``, a ``Metrics`` or the path of its file, gets a line of JSON per step and measures
    what ranks do; ``peak_flops``, FLOPs per second that a device could do, gives the MFU.

    Between processes, a rank that stands still for ``timeout`` seconds (default 300) ends all, with
    a report. ``check`` compares every value of every call with what it expects (see ``Oracle`` and
    ``piper.Reference``); ``fault``, or the variable PIPER_FAULT, breaks one instruction on purpose
    (see ``Fault``).

    ``kernels`` is ``"eager"`` (default on a CPU), or ``"inductor"`` (default on a GPU), which compiles
    each kernel once and keeps it (see ``piper_runtime.kernels``). ``deterministic`` lets torch use
    deterministic algorithms only while a program runs: an op that has none is an InstructionError.

    ``loss_scale`` is None without ``update(loss_scale=)``; its ``value`` multiplies the losses of
    the next step. ``num_skipped`` counts the steps that changed nothing because their gradients
    were not finite.

    A batch is what THIS process feeds: its data-parallel shard under torchrun, the concatenation
    in data-parallel order under local. Leaves that are no tensors were compiled in: they must have
    the same values.

    Raises ProgramError if a program is not valid, ValueError if the world is not the mesh, if a
    weight is missing or has another shape, if replicas start from different values, or for a peak
    that is of no use or a fault that cannot be, and TypeError for an optimizer that is not
    elementwise.
    """

    def __init__(
        self,
        program: Program | str | Path,
        *,
        transport: Transport | str | None = None,
        model: nn.Module | None = None,
        init: Init | None = None,
        optimizer: OptimizerFactory | None = None,
        seed: int = 0,
        metrics: Metrics | str | Path | None = None,
        peak_flops: float | None = None,
        timeout: float | None = None,
        check: Oracle | None = None,
        fault: Fault | str | None = None,
        kernels: str | None = None,
        deterministic: bool = False,
    ) -> None:
        """Check the program, open the communicators and make the state."""
        self.program = program if isinstance(program, Program) else Program.open(program)
        self.transport = transport_from(transport, timeout=timeout)
        if deterministic:
            check_environment(self.transport)
        self._running = partial(_running, deterministic)
        self.steps = self._first_step = self.num_skipped = 0
        self._manifest = manifest = self.program.manifest
        self.loss_scale = None if manifest.loss_scale is None else LossScaler(manifest.loss_scale)
        self._last_scale = 1.0
        self._peak_flops = check_peak(peak_flops, manifest)
        metrics = Metrics(metrics) if isinstance(metrics, str | Path) else metrics
        self._loaded = self.program.load(self.transport.device)
        self._facts = {
            name: check_entry_point(self._loaded, name) for name in manifest.entry_points
        }
        check_calls(self._facts.values())
        self._fault = arm(fault, self._loaded)
        self.transport.start(manifest)
        device_for(self.transport.device).keep_memory()
        self._meter = MemoryMeter(manifest, self.transport)
        self._watch = Watch(self.program, self.transport, metrics, self._meter)
        self.transport.guard(self._loaded)
        self._checker = make_checker(check, manifest, self.transport)
        check_agreement(self.transport, enabled=deterministic)
        coordinates = {rank: manifest.mesh.coordinate(rank) for rank in self.transport.ranks}
        self.kernels = bind_kernels(
            self.program,
            self._loaded,
            backend=kernels,
            device=self.transport.device,
            coordinates=set(coordinates.values()),
            deterministic=deterministic,
            say=tell if 0 in self.transport.ranks else None,
        )
        model = self.program.model if model is None else model
        weights = Weights(self.program, model=model, init=init, seed=seed)
        self._homes = self._make_homes(weights, coordinates)
        self._loose = loose_states(self.program, weights)
        self._make_optimizers(optimizer or self.program.optimizer)
        if 0 in self.transport.ranks:
            print(f"piper: {self.transport.describe(manifest.mesh)}", file=sys.stderr)

    def step(self, batch: Any) -> StepResult:
        """Run one training step; the result is the same on every rank.

        Raises ValueError or TypeError if the batch does not have the program's signature,
        InstructionError if an instruction fails here, RemoteError if one fails elsewhere and
        StallError if no rank goes on.
        """
        if not self._watch.looks:
            return self._step(batch)
        return self._watch.run(self.steps + 1, partial(self._step, batch))

    def trace(self, path: str | Path, *, steps: Steps = None) -> AbstractContextManager[None]:
        """Record the instructions of all ranks while the block runs, or of ``steps`` in it.

        ``path`` becomes JSON for ui.perfetto.dev and ``piper trace``; the process of rank 0 writes
        it after the last step. Under torchrun all ranks open the block. Raises ValueError for steps
        that are not consecutive, are over, or differ between ranks.
        """
        return self._watch.trace(path, steps, done=self.steps)

    def profile(
        self, path: str | Path, *, steps: Steps = None, rank: int = 0
    ) -> AbstractContextManager[None]:
        """Run torch's profiler in the process of ``rank`` in the block, or for ``steps`` of it.

        ``path`` becomes JSON for ui.perfetto.dev. Raises ValueError for steps that are not
        consecutive or are over, an unknown rank, or if another of torch's windows is open.
        """
        return self._watch.profile(path, steps, rank=rank, done=self.steps)

    def snapshot_memory(
        self, path: str | Path, *, steps: Steps = None, rank: int = 0
    ) -> AbstractContextManager[None]:
        """Record every allocation of the process of ``rank`` in the block, or for ``steps`` of it.

        On a CPU ``path`` becomes JSON for ui.perfetto.dev with a counter of bytes, on CUDA a
        snapshot for pytorch.org/memory_viz. Raises ValueError as ``profile`` does, and for other
        devices.
        """
        return self._watch.snapshot_memory(path, steps, rank=rank, done=self.steps)

    def _step(self, batch: Any) -> StepResult:
        start = time.perf_counter()
        outputs = self.outputs("train", batch)
        seconds = time.perf_counter() - start
        skipped = self._end_step(outputs)
        losses = {name: outputs[name] for name in self._manifest.losses}
        sumsq, reading = outputs.get(GRAD_NORM), self._meter.read(self._homes)
        return StepResult(
            step=self.steps,
            loss=sum(losses.values()),
            losses=losses,
            grad_norm=None if sumsq is None else math.sqrt(sumsq),
            skipped=skipped,
            num_skipped=self.num_skipped if self._manifest.skips else None,
            loss_scale=None if self.loss_scale is None else self._last_scale,
            seconds=seconds,
            memory=reading.memory,
            memory_of=reading.of,
            memory_how=reading.how,
            memory_predicted=reading.predicted,
            resident=peak_resident(),
            tokens=count_tokens(self._manifest),
            devices=self._manifest.mesh.world_size,
            flops=self._manifest.model_flops("train"),
            executed_flops=self._manifest.executed_flops("train"),
            peak_flops=self._peak_flops,
        )

    def _end_step(self, outputs: Mapping[str, float]) -> bool:
        """Count a training step; returns whether it changed nothing.

        Ranks skip by the sum of squares that is an output, so this process knows what they did.
        """
        self.steps += 1
        skipped = self._manifest.skips and not math.isfinite(outputs[GRAD_NORM])
        self.num_skipped += skipped
        if self.loss_scale is not None:
            self.loss_scale.update(skipped=skipped)
        return skipped

    def evaluate(self, batch: Any) -> float:
        """Return the loss of ``batch`` without changing any state."""
        outputs = self.outputs("eval", batch)
        return sum(outputs[name] for name in self._manifest.losses)

    def outputs(self, entry_point: str, batch: Any) -> dict[str, float]:
        """Run an entry point and return all that it outputs, the same on every rank.

        A value belongs to the first rank that reports it. Errors are those of ``step``.
        """
        facts = self._facts.get(entry_point)
        if facts is None:
            known = list(self._manifest.entry_points)
            raise ProgramError(f"program expected entry point {entry_point!r}, got only {known}")
        self.transport.begin(entry_point, step=self.steps + 1)
        try:
            with self._running():
                ranks = self._enqueue(entry_point, batch)
                self.transport.drain()
                outputs = self._share_outputs(facts, ranks)
            self.transport.end()
            return outputs
        except BaseException as error:
            self.transport.abort(error)
            raise

    def stepper(self, batch: Any, *, entry_point: str = "train") -> Stepper:
        """Begin a call of an entry point, to be executed instruction by instruction.

        For the local transport only: TypeError for another. Errors are those of ``step``.
        """
        transport = self.transport
        if not isinstance(transport, LocalTransport):
            raise TypeError(f"stepper expected the local transport, got {transport.name}")
        transport.begin(entry_point, step=self.steps + 1)
        with self._running():
            ranks = self._enqueue(entry_point, batch)
        finish = partial(self._finish, entry_point, ranks)
        return Stepper(transport, ranks, running=self._running, finish=finish)

    def gradients(self) -> dict[str, Tensor]:
        """Return the reduced main gradients of the last step, before clipping, by every name.

        The tensors are copies on the CPU in the gradient dtype, complete on every rank; aliases of
        a tied weight share one. With a loss scale they are divided by it, in float32 at least.
        Raises RuntimeError before the first step.
        """
        if self.steps == self._first_step:
            raise RuntimeError("gradients expected a step before, got none")
        facts = self._facts["train"]
        specs = [spec for spec in self._manifest.buckets if spec.name in facts.accumulated]
        for spec in specs:
            if spec.name in facts.scattered and spec.name not in facts.updated:
                raise RuntimeError(
                    f"gradients expected an update of {spec.name!r}, which keeps the part of its "
                    "gradient that a rank gets from a reduction, got none in the program"
                )
        gradients = {n: value for state, value in self._gather(specs, "grad") for n in state.names}
        return gradients if self.loss_scale is None else unscaled(gradients, self._last_scale)

    def full_state_dict(self) -> dict[str, Tensor]:
        """Return what the model's ``state_dict()`` has, as copies on the CPU, on every rank.

        These are parameters and persistent buffers, by every name. They are whole, and of the
        model's dtype: a value that is kept in a wider one is rounded. Every process calls this,
        since ranks may hold parts.
        """
        found = dict(self.stream_state_dict())
        states = self._held().states()
        return {n: found[state.saved_names[0]] for state in states for n in state.saved_names}

    def stream_state_dict(self) -> Iterator[tuple[str, Tensor]]:
        """Yield what ``full_state_dict`` returns, a tied weight under its first name only.

        No more than one bucket is whole at a time, beside what the caller keeps. Every process
        takes all there is, before another call.
        """
        held = self._held()
        loose = [(s, held.loose[s.name]) for s in held.states() if s.name in held.loose]
        for state, value in chain(loose, self._gather(self._manifest.buckets, "value")):
            if state.saved_names:
                value = value.to(dtype_of(state.dtype))
                yield state.saved_names[0], value
            del value  # else it would still be there while the next bucket is put together

    def save(self, path: str | Path) -> None:
        """Write a checkpoint, from which training can go on under another strategy.

        ``path`` is a folder that all processes share, new or of an older checkpoint, which is
        replaced when the new one is complete. Every process calls this, between two steps. Raises
        CheckpointError if one of them cannot write.
        """
        from piper_runtime.checkpoint import save_checkpoint  # torch's takes a second to import

        save_checkpoint(self._held(), Path(path), numbers=self._numbers())

    def load(self, path: str | Path) -> None:
        """Go on from a checkpoint, which this or another strategy of the model has saved.

        Values are rounded to the dtype in which this strategy keeps them. Every process calls this,
        between two steps. Raises CheckpointError, and changes nothing, if the checkpoint does not
        fit: names, shapes, or what the optimizer keeps; ValueError in check mode.
        """
        from piper_runtime.checkpoint import load_checkpoint

        if self._checker is not None:
            raise ValueError(
                "load expected a trainer without check, which compares with an optimizer that has "
                "made all steps itself"
            )
        manifest, numbers = self._manifest, load_checkpoint(self._held(), Path(path))
        self.steps = self._first_step = int(numbers["step"])
        self.num_skipped = int(numbers.get("skipped", 0))
        scale = {n.removeprefix(SCALE): v for n, v in numbers.items() if n.startswith(SCALE)}
        if scale and self.loss_scale is not None and isinstance(manifest.loss_scale, LossScale):
            self.loss_scale.load_state_dict(scale)

    @property
    def checked(self) -> Summary | None:
        """What check mode has compared so far, in this process."""
        return None if self._checker is None else self._checker.summary

    def close(self) -> None:
        """Release threads and communicators of the transport."""
        self._watch.close()
        self.transport.close()

    # Running.

    def _enqueue(self, entry: str, batch: Any) -> dict[int, Rank]:
        """Call the rank programs of an entry point, which hand instructions to the transport."""
        manifest, ranks = self._manifest, {}
        with torch.inference_mode(False):  # an oracle may differentiate
            shards = self._shards(batch)
            submit = self._submit(entry, shards)
        scale = 1.0 if self.loss_scale is None else self.loss_scale.value
        if entry == "train":
            self._last_scale = scale
        for index, home in self._homes.items():
            shard = shards[manifest.mesh.index(index, manifest.data_axes) if len(shards) > 1 else 0]
            inputs = batches.microbatches(
                shard, manifest.inputs, num_microbatches=manifest.microbatches
            )
            self._meter.begin(index, inputs)
            ranks[index] = Rank(home, inputs=inputs, submit=submit, loss_scale=scale)
            self._loaded.entry_point(manifest.mesh.coordinate(index), entry)(ranks[index])
        return ranks

    def _submit(self, entry: str, shards: list[dict[str, Tensor]]) -> Submit:
        """Return how instructions are submitted: past whoever checks them, or breaks one."""
        hooks = []
        if self._checker is not None:
            scale, held = 1.0 if self.loss_scale is None else self.loss_scale.value, self._held()
            hooks.append(self._checker.begin(entry, shards=shards, held=held, loss_scale=scale))
        if self._fault is not None and self._fault.strikes(entry, self.steps + 1):
            hooks.append(self._fault.attach)
        return hooked(self._watch.submit, hooks)

    def _finish(self, entry: str, ranks: dict[int, Rank]) -> dict[str, float]:
        """Return the outputs of a call that was executed step by step."""
        outputs = self._share_outputs(self._facts[entry], ranks)
        if entry == "train":
            self._end_step(outputs)
        return outputs

    def _shards(self, batch: Any) -> list[dict[str, Tensor]]:
        """Check the batch and cut it, on the device; on the first step compare it across ranks."""
        manifest = self._manifest
        if self._is_local:
            shards = feed_all(batch, manifest)
        else:
            shards = [feed_one(batch, manifest, rank) for rank in self._homes]
        device = self.transport.device
        shards = [{name: value.to(device) for name, value in shard.items()} for shard in shards]
        if self.steps == self._first_step and not self._is_local:
            check_batch(self.transport, manifest, shards[0])
        return shards

    def _share_outputs(self, facts: EntryFacts, ranks: dict[int, Rank]) -> dict[str, float]:
        """Return every output on every process; it belongs to the first rank that reports it."""
        mesh, values = self._manifest.mesh, {}
        for name, coordinate in sorted(facts.outputs.items()):
            owner = mesh.first_rank(coordinate)
            here = owner in ranks
            value = ranks[owner].outputs[name].double() if here else torch.zeros(()).double()
            values[name] = float(self.transport.broadcast(value.cpu(), owner=owner))
        if GRAD_NORM in values:
            values[GRAD_NORM] /= self._last_scale**2
        return values

    # State.

    def _make_homes(self, weights: Weights, coordinates: Mapping[int, int]) -> dict[int, Home]:
        """Return what each rank of this process holds, checked to be the same in all processes."""
        digests: dict[str, str] = {}

        def look(name: str, flat: Tensor) -> None:
            digests[name] = digest_of([flat])

        device, alone = self.transport.device, self._is_local
        buckets = make_buckets(
            self._manifest, weights, coordinates, device, look=None if alone else look
        )
        if not alone:
            check_replicas(self.transport, digests)
        poison = self.transport.poison
        return {
            rank: make_home(self._loaded, rank, buckets=held, device=device, poison=poison)
            for rank, held in buckets.items()
        }

    def _make_optimizers(self, factory: OptimizerFactory | None) -> None:
        updated = self._facts["train"].updated if "train" in self._facts else set()
        if updated and factory is None:
            if self._manifest.optimizer is None:
                raise ValueError("program updates parameters, expected an optimizer, got none")
            factory = load_factory(self._manifest.optimizer)
        held = [bucket for home in self._homes.values() for bucket in home.buckets.values()]
        for bucket in held:
            if bucket.spec.name in updated and factory is not None:
                if not bucket.trainable:
                    raise ProgramError(
                        f"update expected trained parameters, got {bucket.spec.name!r}"
                    )
                bucket.make_optimizer(factory)

    def _gather(self, specs: Sequence[BucketSpec], slot: str) -> Iterator[tuple[StateSpec, Tensor]]:
        """Yield the states of a slot of buckets, whole."""
        return gather_buckets(
            specs, slot, manifest=self._manifest, homes=self._homes, transport=self.transport
        )

    def _held(self) -> Held:
        """Return what is saved and loaded."""
        updated = self._facts["train"].updated if "train" in self._facts else set()
        return Held(self._manifest, self.transport, self._homes, self._loose, updated)

    def _numbers(self) -> dict[str, float]:
        """Return the numbers of a checkpoint."""
        numbers: dict[str, float] = {"step": self.steps, "skipped": self.num_skipped}
        scale = {} if self.loss_scale is None else self.loss_scale.state_dict()
        return numbers | {f"{SCALE}{name}": value for name, value in scale.items()}

    # Numbers.

    @property
    def _is_local(self) -> bool:
        """Whether this process stands for all ranks."""
        return len(self.transport.ranks) == self._manifest.mesh.world_size


@contextmanager
def _running(deterministic: bool) -> Iterator[None]:
    """Set what torch does while instructions are executed.

    Nothing that they make is differentiated. In inference mode torch does not prepare for that,
    which saves the host a part of every op; what outlives the call is made outside (``Bucket``).
    """
    with torch.inference_mode(), deterministic_algorithms(deterministic):
        yield
