"""Step time against what PyTorch offers for the same: paired runs in one process.

    python benchmarks/step_time.py                                  # one rank: eager, torch.compile
    torchrun --nproc-per-node 2 benchmarks/step_time.py             # two: torch's own 1F1B

Both sides train the same GPT from the same weights on the same microbatches in the same order, with
AdamW, one thread per rank; their first losses must be equal. Eager kernels are compared with eager
PyTorch, and those of Inductor with torch.compile. Prints the geometric mean of the ratio of step
times, Piper's over the other's, and its 95 % interval (see `paired.py`).

On two ranks it also prints how near each side comes to a pipeline whose stages are never late
(`two_stages.py`), measured in the same rounds, and where the time of a step goes on each rank:
compute; communication that was under way while the rank did not compute (Piper only: torch does not
tell it from waiting); and the rest, in which it waits.

The last lines say which bounds hold: the interval of each ratio ends at 1.03 at most on one rank,
and at 1.02 on two. They are of the default sizes. With ``--check`` the exit status is 1 if one of
them does not hold.
"""

from __future__ import annotations

import os
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain

import piper
import torch
import torch.distributed as dist
from bound import Bound, add_check, has_defaults, verdict
from paired import (
    Ratio,
    Sizes,
    Step,
    adamw,
    check_losses,
    compare,
    describe,
    loss_fn,
    make_parser,
    rounds,
    say,
    timed,
)
from piper_runtime import LocalTransport
from piper_runtime.observe.spans import Recorder, exposed, met_at, work
from two_stages import RANKS, Alone, TorchPipeline, gathered, ideal_seconds

KERNELS = ("eager", "inductor")
OTHERS = {"eager": "eager", "inductor": "torch.compile"}  # what kernels are compared with
DEFAULT = Sizes(layers=8, width=256, context=128, batch=32, microbatches=8)
MOST = {1: 1.03, RANKS: 1.02}  # where the interval of a ratio ends, by ranks
WATCHED = 10  # steps of which it is shown where their time goes


def piper_trainer(sizes: Sizes, ranks: int, *, kernels: str) -> piper.Trainer:
    """A trainer of Piper; on several ranks 1F1B over gloo."""
    directives = [
        piper.annotate({"embed": "first", "layers.*": "layer", "head": "last"}),
        piper.split(microbatches=sizes.microbatches),
        piper.update(adamw),
        piper.remat(policy="save"),  # as eager autograd does
    ]
    if ranks > 1:
        half = sizes.layers // 2
        directives += [piper.place(stages=[1 + half, half + 1]), piper.order("1F1B")]
    strategy = piper.Strategy(mesh={"pp": ranks} if ranks > 1 else {}, directives=directives)
    model = sizes.model()
    program = piper.compile(model, loss_fn, strategy, sizes.data())
    transport = None if ranks > 1 else LocalTransport(poison=False)
    return piper.Trainer(program, model=model, transport=transport, kernels=kernels)


def piper_step(sizes: Sizes, *, kernels: str) -> Step:
    """A step of Piper on one rank."""
    trainer, batch = piper_trainer(sizes, 1, kernels=kernels), sizes.data()
    return lambda: trainer.step(batch).loss


def eager_step(sizes: Sizes, *, compiled: bool) -> Step:
    """Gradient accumulation over the microbatches in plain PyTorch."""
    model = sizes.model()
    optimizer = adamw(list(model.parameters()))
    loss_of = torch.compile(loss_fn) if compiled else loss_fn
    parts = sizes.parts(sizes.data())

    def step() -> float:
        optimizer.zero_grad(set_to_none=True)
        total = torch.zeros(())
        for part in parts:
            loss = loss_of(model, part) / sizes.microbatches
            loss.backward()  # type: ignore[no-untyped-call]
            total += loss.detach()
        optimizer.step()
        return float(total)

    return step


def compare_pipelines(sizes: Sizes, kernels: str, pairs: int) -> Ratio:
    """Two ranks: Piper, torch's pipelining and the ideal, in the same rounds; returns the ratio."""
    rank, compiled = dist.get_rank(), kernels == "inductor"
    trainer, batch = piper_trainer(sizes, RANKS, kernels=kernels), sizes.data()
    theirs = TorchPipeline(sizes, rank, compiled=compiled)
    alone = Alone(sizes, rank, compiled=compiled)
    name = "compiled torch pipelining" if compiled else "torch pipelining"

    def ours() -> float:
        return trainer.step(batch).loss

    def ideal() -> float:
        return ideal_seconds(gathered(alone.measure()), sizes.microbatches)

    check_losses({"piper": ours, name: theirs.step})
    ideal()
    sides = {"piper": lambda: timed(ours), name: lambda: timed(theirs.step), "ideal": ideal}
    found = rounds(sides, pairs)
    say(f"{kernels} kernels: {describe(found)}, {pairs} rounds")
    ratio = Ratio.of(found["piper"], found[name])
    say(f"  ratio {ratio}")
    for side in ("piper", name):
        say(f"  {side} reaches {Ratio.of(found['ideal'], found[side])} of the ideal")
    watch_piper(trainer, batch)
    watch_torch(theirs, name)
    trainer.close()
    return ratio


def watch_piper(trainer: piper.Trainer, batch: dict[str, torch.Tensor]) -> None:
    """Print where the time of Piper's steps goes on each rank."""
    transport, rank = trainer.transport, dist.get_rank()
    seconds, parts = [], []
    for _ in range(WATCHED):
        recorder = transport.observer = Recorder()
        seconds.append(timed(lambda: trainer.step(batch)))
        transport.observer = None
        spans = recorder.spans(trainer.steps)
        met = met_at(chain.from_iterable(transport.gather(spans)))
        parts.append((work(spans) / 1e9, exposed(spans, met) / 1e9))
    compute, talk = (statistics.fmean(part) for part in zip(*parts, strict=True))
    _say_parts("piper", rank, statistics.fmean(seconds), compute, talk)


def watch_torch(pipeline: TorchPipeline, name: str) -> None:
    """Print where the time of torch's steps goes on each rank."""
    pipeline.clock.clear()
    seconds = [timed(pipeline.step) for _ in range(WATCHED)]
    compute = pipeline.busy() / WATCHED
    _say_parts(name, dist.get_rank(), statistics.fmean(seconds), compute, None)


def _say_parts(name: str, rank: int, whole: float, compute: float, talk: float | None) -> None:
    parts = [f"compute {compute * 1e3:.1f} ms"]
    if talk is not None:
        parts.append(f"communication {talk * 1e3:.1f} ms")
    rest = whole - compute - (talk or 0.0)
    line = f"  {name}, rank {rank}: {', '.join(parts)}, the rest {rest * 1e3:.1f} ms"
    lines = [line] * dist.get_world_size()
    dist.all_gather_object(lines, line)
    say("\n".join(lines))


def compare_all(sizes: Sizes, kernels: Sequence[str], pairs: int) -> dict[str, Ratio]:
    """The ratio of each kind of kernels, on one rank or on two."""
    if dist.is_initialized():
        return {one: compare_pipelines(sizes, one, pairs) for one in kernels}
    found = {}
    for one in kernels:
        theirs = eager_step(sizes, compiled=one == "inductor")
        found[one] = compare(OTHERS[one], piper_step(sizes, kernels=one), theirs, pairs)
    return found


def bounds(ratios: Mapping[str, Ratio], ranks: int) -> Iterator[Bound]:
    """What ratios of the default sizes may be at most."""
    for kernels, ratio in ratios.items():
        yield ratio.bound(f"{kernels} kernels, ranks: {ranks}", MOST[ranks])


def main() -> int:
    """Compare; returns the exit status."""
    parser = make_parser(__doc__, DEFAULT)
    parser.add_argument("--kernels", choices=KERNELS, help="default: one after the other")
    most = " and ".join(f"{most:g} on {ranks}" for ranks, most in MOST.items())
    add_check(parser, f"the interval of each ratio ends at most at {most} ranks")
    options = vars(parser.parse_args())
    bounded = has_defaults(parser, options, vars(DEFAULT))
    check, pairs, chosen = (options.pop(name) for name in ("check", "pairs", "kernels"))
    sizes = replace(DEFAULT, **options)
    torch.set_num_threads(1)
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    if ranks > RANKS:
        raise ValueError(f"expected 1 or {RANKS} ranks, got {ranks}")
    say(str(sizes))
    if ranks == RANKS:
        dist.init_process_group("gloo")
    ratios = compare_all(sizes, KERNELS if chosen is None else (chosen,), pairs)
    if ranks == RANKS:
        dist.destroy_process_group()
    return verdict(bounds(ratios, ranks) if bounded else (), check=check)


if __name__ == "__main__":
    sys.exit(main())
