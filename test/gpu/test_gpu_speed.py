"""Step times beside eager PyTorch and torch.compile, and peak memory beside its prediction."""

from __future__ import annotations

import gc
import os

import pytest
import torch
from gpu_programs import FOLDER, SIZES, adamw, make_batch, make_model, program
from piper_runtime import LocalTransport, Trainer
from piper_runtime.devices import device_for

PAIRS = {"cpu": 3, "cuda": 20}
STEP_SIZES = {  # layers, width, context, batch, microbatches
    "cpu": (2, 16, 8, 4, 2),
    "cuda": (8, 1024, 512, 32, 4),
}
SLOWER = {"cpu": 20.0, "cuda": 1.5}  # times; tiny steps on a CPU are all overhead
MEMORY = (0.7, 1.3)  # measured over predicted: what holds of a GPU is not known yet


@pytest.mark.parametrize("other", ["eager", pytest.param("torch.compile", marks=pytest.mark.slow)])
def test_step_times_are_near(device: torch.device, other: str) -> None:
    check_ratio(device, other)


def test_step_times_beside_torch_compile_on_a_gpu(gpu: torch.device) -> None:
    """What is slow on a CPU is not left out on a GPU."""
    check_ratio(gpu, "torch.compile")


def check_ratio(device: torch.device, other: str) -> None:
    """Print the ratio of step times, with its interval; it is not far from one."""
    if os.environ.get(FOLDER):
        pytest.skip(f"{FOLDER} is set: step_time compiles its programs, which needs the compiler")
    import step_time

    kernels = "inductor" if other == "torch.compile" else "eager"
    sizes = step_time.Sizes(*STEP_SIZES[device.type])
    ours = step_time.piper_step(sizes, 1, device=str(device), kernels=kernels)
    theirs = step_time.eager_step(sizes, compiled=other == "torch.compile", device=str(device))
    print()
    ratio = step_time.compare(other, ours, theirs, PAIRS[device.type])
    assert ratio.low < SLOWER[device.type]


def test_memory_is_as_predicted(device: torch.device) -> None:
    sizes = SIZES[device.type]
    gc.collect()  # what other tests have left behind
    on = device_for(device)
    on.reset_peak()
    facts = on.memory()
    before = 0 if facts is None else facts.allocated
    trainer = Trainer(
        program(sizes),
        transport=LocalTransport(device=str(device), poison=False),
        model=make_model(sizes),
        optimizer=adamw,
        kernels="eager",
    )
    results = [trainer.step(make_batch(sizes, step)) for step in range(3)]
    measured, predicted = results[-1].memory - before, results[-1].memory_predicted
    assert predicted is not None
    print(
        f"\npeak {results[-1].memory_how} {measured / 2**20:.1f} MiB, "
        f"predicted {predicted / 2**20:.1f} MiB"
    )
    low, high = MEMORY
    assert low < measured / predicted < high
