"""Kernels of both backends against plain PyTorch on the same device."""

from __future__ import annotations

import pytest
import torch
from gpu_programs import SIZES, adamw, make_batch, make_model, plain_steps, program
from piper_runtime import LocalTransport, Trainer

STEPS = 3
BOUND = 2e-4  # of the largest element, in float32


@pytest.mark.parametrize("kernels", ["eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_a_backend_trains_as_plain_torch_does(device: torch.device, kernels: str) -> None:
    check_backend(device, kernels)


def test_inductor_on_a_gpu(gpu: torch.device) -> None:
    """What is slow on a CPU is not left out on a GPU."""
    check_backend(gpu, "inductor")


def check_backend(device: torch.device, kernels: str) -> None:
    sizes = SIZES[device.type]
    trainer = Trainer(
        program(sizes),
        transport=LocalTransport(device=str(device), poison=False),
        model=make_model(sizes),
        optimizer=adamw,
        kernels=kernels,
    )
    found = [trainer.step(make_batch(sizes, step)).loss for step in range(STEPS)]
    losses, gradients = plain_steps(sizes, device, STEPS)
    assert found == pytest.approx(losses, rel=BOUND)
    for name, gradient in trainer.gradients().items():
        expected = gradients[name]
        gap = float((gradient - expected).abs().max()) / float(expected.abs().max())
        assert gap < 50 * BOUND, name
