"""What each process of the memory test runs, under torchrun: ``memory_worker.py NAME FILE``.

NAME is a schedule, on a stage per rank or more, or ``zeroN``: a stage of ZeRO, without a pipeline.
Trains a few steps and lets torch's profiler watch the last. Rank 0 writes the measured peak beside
the predicted one, both in bytes, to FILE; and what the runtime counts beside what it predicts.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import piper
import torch
import torch.nn.functional as F  # noqa: N812
from gpt import GPT, Config
from piper.schedules import SCHEDULES
from piper.simulate import Network, ProgramFacts, Roofline, device, link, simulate_program
from piper.strategy import Directive
from piper_runtime.state import Bucket
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

RANKS, MICROBATCHES, ROWS, CONTEXT, WIDTH, LAYERS = 2, 8, 4, 64, 64, 10
Batch = dict[str, Tensor]


def loss_fn(model: nn.Module, batch: Batch) -> Tensor:
    """Mean cross-entropy per byte."""
    return F.cross_entropy(model(batch["ids"]).flatten(0, 1), batch["labels"].flatten())


def adamw(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    """AdamW."""
    return torch.optim.AdamW(parameters, lr=1e-3)


def compiled(name: str, batch: Batch) -> piper.Trainer:
    """A trainer of this process's rank."""
    directives: list[Directive] = [
        piper.annotate({"embed": "first", "layers.*": "layer", "head": "last"}),
        piper.split(microbatches=MICROBATCHES),
        piper.update(adamw, clip=1.0),
    ]
    if name.startswith("zero"):
        mesh, zero = {"dp": RANKS}, int(name.removeprefix("zero"))
        directives += [piper.replicate(axis="dp", zero=zero)]
    else:
        mesh, named = {"pp": RANKS}, SCHEDULES[name]
        stages = named.stages(RANKS, named.chunks or 2)
        directives += [piper.place(stages=stages), piper.order(name)]
    strategy = piper.Strategy(mesh=mesh, directives=directives)
    torch.manual_seed(0)
    model = GPT(Config(layers=LAYERS, width=WIDTH, heads=4, context=CONTEXT, tied=False))
    program = piper.compile(model, loss_fn, strategy, batch)
    return piper.Trainer(program, model=model)


def kept_bytes(trainer: piper.Trainer) -> int:
    """Parameters, main gradients and optimizer state of this rank: what is there between steps."""
    (home,) = trainer._homes.values()
    return sum(_bucket_bytes(bucket) for bucket in home.buckets.values())


def _bucket_bytes(bucket: Bucket) -> int:
    held, _ = bucket.num_bytes()
    optimizer = bucket._optimizer
    assert optimizer is not None
    states = [
        value
        for state in optimizer.state.values()
        for value in state.values()
        if isinstance(value, Tensor) and value.ndim
    ]
    return held + sum(tensor.nbytes for tensor in states)


def measured_peak(trainer: piper.Trainer, batch: Batch) -> int:
    """The most bytes above those at the start that a step has allocated at once."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        trainer.step(batch)
    now = peak = 0
    kineto = profiler.profiler
    assert kineto is not None
    results = kineto.kineto_results
    assert results is not None
    events = [event for event in results.events() if event.name() == "[memory]"]
    assert events
    for event in sorted(events, key=lambda event: event.start_ns()):
        now += event.nbytes()
        peak = max(peak, now)
    return peak


def main(name: str, output: Path) -> None:
    """Measure and predict."""
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    ids, labels = torch.randint(256, (2, MICROBATCHES * ROWS, CONTEXT), generator=generator)
    batch = {"ids": ids, "labels": labels}
    trainer = compiled(name, batch)
    for _ in range(2):
        result = trainer.step(batch)
    kept, peak = kept_bytes(trainer), measured_peak(trainer, batch)
    if os.environ["RANK"] == "0":
        facts = ProgramFacts.read(trainer.program)
        prices, network = Roofline(device("cpu"), facts.kernels), Network(link("loopback"))
        simulated = simulate_program(facts, prices, network, optimizer=adamw)
        predicted = simulated.memory[0]
        step, between = predicted.step, predicted.persistent - predicted.batch
        counted = [result.memory, result.memory_predicted]
        output.write_text(
            json.dumps({"kept": [kept, between], "step": [peak, step], "counted": counted})
        )
    trainer.close()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
