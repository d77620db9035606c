"""Trainers of the hand-written sharded programs, and what they hold, for tests of checkpoints."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from mlp_program import make_adamw
from piper_runtime import Trainer
from piper_runtime.states.optimizer import OptimizerFactory
from piper_runtime.states.state import Bucket
from sharded_program import Odd, Sharding, make_batch, sharded_program
from torch import Tensor
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
from torch.distributed.checkpoint.state_dict_saver import save

DP2, DP4, HSDP = (("dp", 2),), (("dp", 4),), (("rep", 2), ("dp", 2))
BEFORE, AFTER = 2, 3


def start(
    sharding: Sharding, factory: OptimizerFactory = make_adamw, *, seed: int = 0, **options: Any
) -> Trainer:
    """Return a trainer of all ranks in this process, of the model with this seed."""
    dtype = getattr(torch, sharding.compute or sharding.dtype)
    program = sharded_program(sharding)
    model = Odd(seed, dtype)
    options = {"transport": "local"} | options
    return Trainer(program, model=model, optimizer=factory, **options)


def batch(sharding: Sharding, step: int) -> dict[str, Tensor]:
    """Return the batch of a step; it depends on the number of ranks alone."""
    return make_batch(step, sharding.ranks, getattr(torch, sharding.compute or sharding.dtype))


def train(trainer: Trainer, sharding: Sharding, steps: int) -> list[float]:
    """Take the next steps; return their losses."""
    return [trainer.step(batch(sharding, trainer.steps)).loss for _ in range(steps)]


def buckets(trainer: Trainer) -> Iterator[tuple[str, Bucket]]:
    """Yield the buckets of all ranks, and which they are."""
    for rank, home in trainer._homes.items():
        for name, bucket in home.buckets.items():
            yield f"{name} of rank {rank}", bucket


def everything(trainer: Trainer) -> dict[str, Tensor]:
    """Return copies of all that a step depends on, rank by rank."""
    found = {"steps": torch.tensor(trainer.steps)}
    for where, bucket in buckets(trainer):
        found[f"value of {where}"] = bucket.value
        if bucket.compute is not None:
            found[f"compute of {where}"] = bucket.compute
        for index, parameter in enumerate(bucket.parameters):
            assert bucket.optimizer is not None
            for name, value in bucket.optimizer.state.get(parameter, {}).items():
                found[f"{name} of {index} in {where}"] = value
    return {name: value.clone() for name, value in found.items()}


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    """Whether both hold the same bits."""
    assert one.keys() == other.keys()
    return all(
        value.dtype == other[name].dtype and torch.equal(value, other[name])
        for name, value in one.items()
    )


def read(path: Path) -> dict[str, Any]:
    """Read a checkpoint with torch's own tool: a tree of whole tensors."""
    file = path.with_name(f"{path.name}.pt")
    dcp_to_torch_save(path, file)
    return dict(torch.load(file))


def write(tree: dict[str, Any], path: Path) -> None:
    """Write a tree of whole tensors as plain PyTorch does."""
    with alone():
        save(tree, checkpoint_id=path, no_dist=True)


@contextmanager
def alone() -> Iterator[None]:
    """Let torch not warn that there is only one process."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        yield
