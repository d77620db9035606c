"""Sharded data parallelism beside PyTorch's own: paired runs in one process per rank, over gloo.

    torchrun --nproc-per-node 2 benchmarks/data_parallel.py             # step times
    torchrun --nproc-per-node 4 benchmarks/data_parallel.py --memory    # bytes of each rank

Both sides train the same GPT from the same weights on the same rows and microbatches, with AdamW
and eager kernels, one thread per rank; their first losses must be equal. What is compared:

    zero=0                  DDP, gradients reduced with the last microbatch (no_sync before)
    zero=2, reduce="last"   FSDP2, reshard_after_forward=False, gradients reduced with the last
                            microbatch, parameters whole until then
    zero=3, reduce="each"   FSDP2, reshard_after_forward=True: parameters gathered and gradients
                            reduced for each microbatch

With one microbatch per step and with several. Piper's buckets and FSDP2's units are layers, and
DDP's buckets are as large as a layer. Prints the geometric mean of the ratio of step times, Piper's
over the other's, and its 95 % interval (see `paired.py`). The last lines say which bounds hold:
each interval ends at 1.02 at most, on two ranks at the default sizes. With ``--check`` the exit
status is 1 if one of them does not hold.

With ``--memory``, what ranks hold: Piper with 1F1B on two stages times ZeRO-2 (`reduce="each"`) on
the other ranks beside FSDP2 (`reshard_after_forward=True`) over all. *Kept* is what is there between
steps: parameters, gradients if they are kept, and the optimizer's state. *Peak* adds the most that
a step has had in memory on top, as the operating system counts it, on Linux: buffers of gloo and all
threads are in it, and a tensor below 64 KiB may not be, so take sizes whose tensors are larger.
*Predicted* is what Piper's compiler says of the peak.
"""

from __future__ import annotations

import ctypes
import gc
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import piper
import torch
import torch.distributed as dist
from bound import Bound, add_check, has_defaults, verdict
from paired import Batch, Ratio, Sizes, Step, adamw, compare, loss_fn, make_parser, say
from piper.strategy import Directive
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

DEFAULT = Sizes(layers=8, width=256, context=128, batch=16, microbatches=4)
MOST, BOUNDED_RANKS = 1.02, 2  # where the interval of each ratio ends, and on how many ranks
STAGES = 2  # of the pipeline whose memory is measured

M_MMAP_THRESHOLD, PAGES_FROM = -3, 1 << 16  # see mallopt(3)
RESET_PEAK = "5"  # see proc_pid_clear_refs(5)


@dataclass(frozen=True)
class Case:
    """A ZeRO stage and what PyTorch has for it."""

    zero: int
    reduce: Literal["last", "each"]
    other: str


CASES = (
    Case(0, "last", "DDP"),
    Case(2, "last", "FSDP2 reshard_after_forward=False"),
    Case(3, "each", "FSDP2 reshard_after_forward=True"),
)


def piper_trainer(sizes: Sizes, directives: Iterable[Directive], **mesh: int) -> piper.Trainer:
    """A trainer of this rank; `sizes` are those of its part of the batch."""
    strategy = piper.Strategy(
        mesh=mesh,
        directives=[
            piper.annotate({"embed": "first", "layers.*": "layer", "head": "last"}),
            piper.split(microbatches=sizes.microbatches),
            piper.update(adamw),
            piper.remat(policy="save"),  # as eager autograd does
            *directives,
        ],
    )
    model = sizes.model()
    program = piper.compile(model, loss_fn, strategy, sizes.data())
    return piper.Trainer(program, model=model, kernels="eager")


class Replicas:
    """A model that PyTorch replicates, and its training step."""

    def __init__(self, sizes: Sizes, other: str, batch: Batch) -> None:
        """Wrap the model."""
        self._sizes, self._batch, model = sizes, batch, sizes.model()
        self.gathers_each = other.endswith("True")
        self.model: nn.Module = model
        if other == "DDP":
            layer = sum(parameter.nbytes for parameter in model.layers[0].parameters())
            self.model = DistributedDataParallel(model, bucket_cap_mb=layer / 2**20)
        else:
            for part in (model.embed, *model.layers, model.head):
                fully_shard(part, reshard_after_forward=self.gathers_each)
            fully_shard(model, reshard_after_forward=self.gathers_each)
        self.optimizer = adamw(list(self.model.parameters()))

    def step(self) -> float:
        """Train on all microbatches; returns the mean loss of all ranks."""
        total, parts = torch.zeros(()), self._sizes.parts(self._batch)
        for number, part in enumerate(parts):
            with self._reducing(number + 1 == len(parts)):
                loss = loss_fn(self.model, part) / len(parts)
                loss.backward()  # type: ignore[no-untyped-call]
            total += loss.detach()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        dist.all_reduce(total)
        return float(total) / dist.get_world_size()

    def _reducing(self, is_last: bool) -> AbstractContextManager[None]:
        """Make ranks sum gradients when the case says so."""
        if isinstance(self.model, DistributedDataParallel):
            return nullcontext() if is_last else self.model.no_sync()
        assert isinstance(self.model, FSDPModule)
        self.model.set_is_last_backward(is_last)
        if not self.gathers_each:
            self.model.set_requires_gradient_sync(is_last)
            self.model.set_reshard_after_backward(is_last)
        return nullcontext()

    def kept(self) -> int:
        """Bytes of parameters and optimizer state; gradients are dropped before each step."""
        states = self.optimizer.state.values()
        moments = [value for state in states for value in state.values()]
        return sum(_local(value).nbytes for value in [*self.model.parameters(), *moments])


def _local(value: Tensor) -> Tensor:
    return value.to_local() if isinstance(value, DTensor) else value


def compare_times(sizes: Sizes, pairs: int) -> dict[str, Ratio]:
    """All cases, with one microbatch and with several; returns their ratios."""
    ranks, batch = dist.get_world_size(), sizes.data(seed=dist.get_rank())
    ratios = {}
    for count in sorted({1, sizes.microbatches}):
        cut = replace(sizes, microbatches=count)
        for case in CASES:
            shared = piper.replicate(axis="dp", zero=case.zero, reduce=case.reduce)
            trainer = piper_trainer(cut, [shared], dp=ranks)
            name = f"zero={case.zero}, reduce={case.reduce!r}, {count} microbatches"
            say(f"{name}:")
            theirs = Replicas(cut, case.other, batch)
            ratios[name] = compare(case.other, stepper(trainer, batch), theirs.step, pairs)
            trainer.close()
    return ratios


def bounds(ratios: Mapping[str, Ratio]) -> Iterator[Bound]:
    """What ratios of the default sizes may be at most."""
    for name, ratio in ratios.items():
        yield ratio.bound(name, MOST)


def stepper(trainer: piper.Trainer, batch: Batch) -> Step:
    """A step of Piper."""
    return lambda: trainer.step(batch).loss


def allocated(step: Callable[[], object]) -> int:
    """The most bytes above those at the start that the process had in memory in a step.

    All threads count. Linux and glibc: what is as large as a tensor gets pages of its own, which go
    back at once.
    """
    libc = ctypes.CDLL("libc.so.6")
    libc.mallopt(M_MMAP_THRESHOLD, PAGES_FROM)
    step()  # what it allocates once is there now
    gc.collect()
    libc.malloc_trim(0)
    Path("/proc/self/clear_refs").write_text(RESET_PEAK)
    before = _resident("VmRSS")
    step()
    return _resident("VmHWM") - before


def _resident(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    (kib,) = (line.split()[1] for line in lines if line.startswith(f"{name}:"))
    return int(kib) * 1024


def compare_memory(sizes: Sizes) -> None:
    """Piper on two stages beside FSDP2; `sizes.batch` rows are those of one rank of FSDP2."""
    ranks = dist.get_world_size()
    copies, rank = ranks // STAGES, dist.get_rank()
    half = sizes.layers // 2
    fed = replace(sizes, batch=sizes.batch * STAGES, microbatches=sizes.microbatches * STAGES)
    directives = [
        piper.place(stages=[1 + half, half + 1]),
        piper.order("1F1B"),
        piper.replicate(axis="dp", zero=2, reduce="each"),
    ]
    trainer = piper_trainer(fed, directives, pp=STAGES, dp=copies)
    batch = fed.data(seed=rank % copies)
    ours = stepper(trainer, batch)
    ours()
    (home,) = trainer._homes.values()
    sizes_of = [bucket.num_bytes() for bucket in home.buckets.values()]
    optimizer = sum(moments for _, moments in sizes_of)
    spec = trainer.program.manifest.memory["train"][trainer.program.manifest.mesh.coordinate(rank)]
    predicted = spec.peak(optimizer=optimizer, inside=True) - spec.batch
    _say_memory("piper", sum(map(sum, sizes_of)), allocated(ours), predicted)
    trainer.close()

    theirs = Replicas(sizes, CASES[-1].other, sizes.data(seed=rank))
    step = allocated(theirs.step)
    _say_memory("FSDP2", theirs.kept(), step, None)


def _say_memory(name: str, kept: int, step: int, predicted: int | None) -> None:
    parts = [f"kept {kept / 2**20:.2f} MiB", f"peak {(kept + step) / 2**20:.2f} MiB"]
    if predicted is not None:
        parts.append(f"predicted {predicted / 2**20:.2f} MiB")
    line = f"{name}, rank {dist.get_rank()}: {', '.join(parts)}"
    lines = [line] * dist.get_world_size()
    dist.all_gather_object(lines, line)
    say("\n".join(lines))


def main() -> int:
    """Compare times, or memory; returns the exit status."""
    parser = make_parser(__doc__, DEFAULT)
    parser.add_argument("--memory", action="store_true", help="compare memory, on 4 ranks or more")
    add_check(
        parser, f"the interval of each ratio ends at {MOST:g} at most, on {BOUNDED_RANKS} ranks"
    )
    options = vars(parser.parse_args())
    bounded = has_defaults(parser, options, vars(DEFAULT))
    pairs, memory, check = (options.pop(name) for name in ("pairs", "memory", "check"))
    sizes = replace(DEFAULT, **options)
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    if ranks < 2 or (memory and (ranks < 2 * STAGES or ranks % STAGES)):
        wanted = f"a multiple of {STAGES} from {2 * STAGES} on" if memory else "at least 2"
        parser.error(f"expected ranks by torchrun, {wanted}, got {ranks}")
    if check and (memory or ranks != BOUNDED_RANKS):
        got = f"{ranks} ranks{' and --memory' * memory}"
        parser.error(f"--check expected {BOUNDED_RANKS} ranks and no --memory, got {got}")
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    say(f"{sizes} on each of {ranks} ranks")
    ratios = {}
    if memory:
        compare_memory(sizes)
    else:
        ratios = compare_times(sizes, pairs)
    dist.destroy_process_group()
    return verdict(bounds(ratios) if bounded and ranks == BOUNDED_RANKS else (), check=check)


if __name__ == "__main__":
    sys.exit(main())
