"""What each process of the memory test runs, under torchrun: ``memory_worker.py NAME FILE``.

NAME is a schedule, on a stage per rank or more, or ``zeroN``: a stage of ZeRO, without a pipeline;
``zeroN-aheadK`` gathers states K uses before they are read. Trains a few steps. Torch's profiler
watches first what is made until the second step has ended, and then the most that the third has at
once. Rank 0 writes both beside what is predicted, in bytes, to FILE; and what the runtime counts
beside what it predicts; what the third step leaves behind; and the bytes of the largest bucket.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import piper
import torch
import torch.nn.functional as F  # noqa: N812
from gpt import GPT, Config
from piper.schedules import SCHEDULES
from piper.simulate import Network, ProgramFacts, Roofline, device, link, simulate_program
from piper.strategy import Directive
from piper_runtime import Program, StepResult
from piper_runtime.instruction import Instruction
from piper_runtime.transports.gloo import GlooTransport
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

RANKS, MICROBATCHES, ROWS, CONTEXT, WIDTH, LAYERS = 2, 8, 4, 64, 64, 10
Batch = dict[str, Tensor]


class OneThread(GlooTransport):
    """Communicates on the thread that runs the program, the only one that the profiler watches.

    Gloo says that it is done a little before its own thread lets go of what it has moved. Whoever
    lets go last frees, so that a value freed meanwhile would never be seen to go: wait for gloo.
    """

    def submit(self, instruction: Instruction) -> None:
        """Execute any instruction here and now."""
        if instruction.message is None:
            super().submit(instruction)
            return
        in_place, results = instruction.message.in_place, instruction.results
        self._wait_for(instruction)
        self._execute(instruction)
        for handle in () if in_place else results:
            _await_sole_owner(handle.value)


def _await_sole_owner(value: Tensor) -> None:
    """Wait until nothing but one tensor has the storage; raises RuntimeError if that never is."""
    storage, deadline = value.untyped_storage(), time.monotonic() + 60
    while torch._C._storage_Use_Count(storage._cdata) > 2:
        if time.monotonic() > deadline:
            raise RuntimeError("a received storage expected one owner within 60 s, got several")
        time.sleep(1e-4)


def loss_fn(model: nn.Module, batch: Batch) -> Tensor:
    """Mean cross-entropy per byte."""
    return F.cross_entropy(model(batch["ids"]).flatten(0, 1), batch["labels"].flatten())


def adamw(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    """AdamW."""
    return torch.optim.AdamW(parameters, lr=1e-3)


def compiled(name: str, batch: Batch, model: nn.Module) -> Program:
    """The program of all ranks."""
    directives: list[Directive] = [
        piper.annotate({"embed": "first", "layers.*": "layer", "head": "last"}),
        piper.split(microbatches=MICROBATCHES),
        piper.update(adamw, clip=1.0),
    ]
    if name.startswith("zero"):
        zero, _, ahead = name.removeprefix("zero").partition("-ahead")
        prefetch, mesh = int(ahead) if ahead else None, {"dp": RANKS}
        directives += [piper.replicate(axis="dp", zero=int(zero), prefetch=prefetch)]
    else:
        mesh, named = {"pp": RANKS}, SCHEDULES[name]
        stages = named.stages(RANKS, named.chunks or 2)
        directives += [piper.place(stages=stages), piper.order(name)]
    return piper.compile(model, loss_fn, piper.Strategy(mesh=mesh, directives=directives), batch)


def measured(run: Callable[[], object]) -> tuple[int, int]:
    """Bytes that this thread has allocated more than it has freed: at the end, and at most."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        run()
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
    return now, peak


def main(name: str, output: Path) -> None:
    """Measure and predict."""
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    ids, labels = torch.randint(256, (2, MICROBATCHES * ROWS, CONTEXT), generator=generator)
    batch = {"ids": ids, "labels": labels}
    torch.manual_seed(0)
    model = GPT(Config(layers=LAYERS, width=WIDTH, heads=4, context=CONTEXT, tied=False))
    program = compiled(name, batch, model)
    trainers: list[piper.Trainer] = []
    results: list[StepResult] = []

    def start() -> None:
        """All that stays is there after a step: two show that no more comes."""
        transport = OneThread() if name.startswith("zero") else GlooTransport()
        trainers.append(piper.Trainer(program, model=model, transport=transport))
        results.extend(trainers[0].step(batch) for _ in range(2))

    kept, _ = measured(start)
    left, peak = measured(lambda: trainers[0].step(batch))
    if os.environ["RANK"] == "0":
        facts = ProgramFacts.read(program)
        prices, network = Roofline(device("cpu"), facts.kernels), Network(link("loopback"))
        predicted = simulate_program(facts, prices, network, optimizer=adamw).memory[0]
        found = {
            "kept": [kept, predicted.persistent - predicted.batch],
            "step": [peak, predicted.step],
            "left": left,
            "counted": [results[-1].memory, results[-1].memory_predicted],
            "bucket": max(bucket.numel for bucket in facts.manifest.buckets) * 4,
        }
        output.write_text(json.dumps(found))
    trainers[0].close()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
