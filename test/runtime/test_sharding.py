"""Sharded state: every ZeRO stage trains as plain PyTorch does, and users see whole tensors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from mlp_program import make_adamw, make_sgd
from op_log import OpLog
from piper_runtime import LocalTransport, Trainer
from piper_runtime.states.optimizer import ELEMENTWISE, OptimizerFactory
from piper_runtime.states.state import Bucket
from plain_steps import mean_loss, train_as_plain
from sharded_program import BUCKETS, SIZES, Odd, Sharding, make_batch, sharded_program
from sharding_worker import DP4, HSDP, NUM_RANKS, SHARDINGS
from sharding_worker import NUM_STEPS as NUM_GLOO_STEPS
from torch import nn
from torchrun import saved_by_ranks, torchrun

NUM_STEPS = 3
DP2 = (("dp", 2),)
TWO = (("outer", 2), ("inner", 2))
WORKER = Path(__file__).with_name("sharding_worker.py")

MATRIX = [
    Sharding(zero, reduce, mesh, axes)
    for mesh, axes in (
        (DP2, ("dp",)),
        (DP4, ("dp",)),
        (HSDP, ("dp",)),
        (TWO, ("outer", "inner")),
    )
    for zero in (0, 1, 2, 3)
    for reduce in ("last", "each")
]


def start(sharding: Sharding, factory: OptimizerFactory = make_sgd) -> Trainer:
    program = sharded_program(sharding)
    transport = LocalTransport(seed=1)
    return Trainer(program, model=Odd(), optimizer=factory, transport=transport)


def buckets(trainer: Trainer) -> list[dict[str, Bucket]]:
    """Return the buckets of each rank."""
    return [dict(home.buckets) for _, home in sorted(trainer._homes.items())]


def train(
    sharding: Sharding, factory: OptimizerFactory, plain: OptimizerFactory | None = None
) -> None:
    """Train as one process does with ``plain``, or the same optimizer."""
    batches = [make_batch(step, sharding.ranks) for step in range(NUM_STEPS)]
    train_as_plain(start(sharding, factory), Odd(), batches, plain or factory, sharding.clip)


@pytest.mark.parametrize("sharding", MATRIX, ids=str)
@pytest.mark.parametrize("factory", [make_sgd, make_adamw])
def test_sharded_training_is_plain_training(sharding: Sharding, factory: OptimizerFactory) -> None:
    train(sharding, factory)


IN_ONE_KERNEL: dict[str, tuple[Callable[..., torch.optim.Optimizer], set[str]]] = {
    "sgd foreach": (make_sgd, {"_foreach_mul_"}),
    "adamw foreach": (make_adamw, {"_foreach_mul_", "_foreach_addcdiv_"}),
    "sgd fused": (make_sgd, {"_fused_sgd_"}),
    "adamw fused": (make_adamw, {"_fused_adamw_"}),
}
"""Optimizers with a flag, and the ops on several tensors that they call."""
SEVERAL = {"_foreach_mul_", "_foreach_addcdiv_", "_fused_sgd_", "_fused_adamw_"}


@pytest.mark.parametrize("sharding", MATRIX, ids=str)
@pytest.mark.parametrize("kind", IN_ONE_KERNEL)
def test_a_rank_may_update_its_part_in_one_kernel(sharding: Sharding, kind: str) -> None:
    """As in plain PyTorch that updates one tensor after the other."""
    make, expected = IN_ONE_KERNEL[kind]
    flag = kind.split()[1]
    with OpLog() as ops:
        train(sharding, partial(make, **{flag: True}), partial(make, foreach=False))
    assert ops.names & SEVERAL == expected


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
def test_gradients_are_clipped_by_the_norm_of_all_parts(zero: int) -> None:
    train(Sharding(zero, "last", DP4, clip=0.01), make_adamw)


@pytest.mark.parametrize(
    ("sharding", "name"),
    [
        pytest.param(
            sharding,
            name,
            id=f"{sharding}-{name}",
            marks=[] if sharding.zero == 3 and name == "RMSprop" else pytest.mark.slow,
        )
        for sharding in (Sharding(1, "last", DP4), Sharding(3, "each", DP4))
        for name in ELEMENTWISE
    ],
)
def test_every_elementwise_optimizer_trains_as_plain(sharding: Sharding, name: str) -> None:
    """Also where the norm is clipped."""
    factory = partial(getattr(torch.optim, name), lr=0.01)
    train(replace(sharding, clip=0.01), factory)


# What a rank holds.


@pytest.mark.parametrize("sharding", MATRIX, ids=str)
def test_ranks_hold_parts_padded_at_the_end(sharding: Sharding) -> None:
    trainer = start(sharding)
    trainer.step(make_batch(0, sharding.ranks))
    for held in buckets(trainer):
        for name, bucket in held.items():
            part = sharding.padded(name) // sharding.shards
            assert bucket.value.shape == (part,)
            sharded = sharding.zero >= 2 and sharding.reduce == "each"
            assert bucket.grad.shape == (part if sharded else sharding.padded(name),)
            if bucket.compute is not None:
                assert bucket.compute.shape == (sharding.padded(name),)
                assert not bucket.compute[SIZES[name] :].any()
    whole = trainer.full_state_dict()
    for name, members in BUCKETS.items():
        flat = torch.cat([whole[member].reshape(-1) for member in members])
        parts = [held[name].value for held in buckets(trainer)]
        kept = [parts[trainer._manifest.mesh.owner(0, (sharding.axes, index))]
                for index in range(sharding.shards)]  # fmt: skip
        assert torch.equal(torch.cat(kept)[: SIZES[name]], flat)
        assert not torch.cat(kept)[SIZES[name] :].any()


@pytest.mark.parametrize("zero", [1, 2])
def test_a_value_is_a_view_of_what_chunks_read(zero: int) -> None:
    trainer = start(Sharding(zero, "last", DP4))
    for rank, held in enumerate(buckets(trainer)):
        for bucket in held.values():
            assert bucket.compute is not None
            own = bucket.shard.of(bucket.compute)
            assert bucket.shard.index == rank
            assert bucket.value.data_ptr() == own.data_ptr()
            assert bucket.value.shape == own.shape


def test_an_optimizer_keeps_state_of_its_part_only() -> None:
    trainer = start(Sharding(1, "last", DP4), make_adamw)
    trainer.step(make_batch(0, NUM_RANKS))
    kept = [
        sum(
            value.numel()
            for bucket in held.values()
            for state in _optimizer(bucket).state.values()
            for key, value in state.items()
            if key == "exp_avg"
        )
        for held in buckets(trainer)
    ]
    assert kept == [8 + 6 + 1 + 1, 8 + 6 + 1, 8 + 6 + 1, 5 + 6]
    assert sum(kept) == sum(SIZES.values())


def _optimizer(bucket: Bucket) -> torch.optim.Optimizer:
    assert bucket._optimizer is not None
    return bucket._optimizer


def test_a_factory_sees_as_many_dims_as_members_have() -> None:
    """So that one which does not decay vectors does the same to parts of matrices."""
    seen: list[list[tuple[int, ...]]] = []

    def make(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        seen.append([tuple(parameter.shape) for parameter in parameters])
        decayed = [p for p in parameters if p.ndim >= 2]
        others = [p for p in parameters if p.ndim < 2]
        groups = [{"params": decayed, "weight_decay": 0.5}, {"params": others, "weight_decay": 0.0}]
        return torch.optim.AdamW(groups, lr=0.1)

    train(Sharding(3, "last", DP4), make)
    shapes = seen[:16]  # by rank, then by bucket; plain PyTorch comes behind
    assert [shapes[4 * rank] for rank in range(4)] == [[(1, 8)], [(1, 8)], [(1, 5), (3,)],
                                                       [(4,), ()]]  # fmt: skip
    assert [shapes[4 * rank + 2] for rank in range(4)] == [[(1,)], [(1,)], [(1,)], [(0,)]]


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
def test_values_may_be_wider_than_what_chunks_compute_in(zero: int) -> None:
    """Parameters of a float32 model are updated in float64: no step is rounded away."""
    sharding = Sharding(zero, "each", DP4, compute="float32")
    model = Odd(dtype=torch.float32)
    factory = make_adamw
    trainer = Trainer(sharded_program(sharding), model=model, optimizer=factory)
    plain = Odd(dtype=torch.float32)
    masters = [nn.Parameter(p.detach().double()) for p in plain.parameters()]
    optimizer = factory(masters)
    for step in range(NUM_STEPS):
        batch = make_batch(step, sharding.ranks, torch.float32)
        trainer.step(batch)
        optimizer.zero_grad()
        mean_loss(plain, batch).backward()  # type: ignore[no-untyped-call]
        for master, parameter in zip(masters, plain.parameters(), strict=True):
            assert parameter.grad is not None
            master.grad, parameter.grad = parameter.grad.double(), None
        optimizer.step()
        for master, parameter in zip(masters, plain.parameters(), strict=True):
            parameter.data.copy_(master)
    got = trainer.full_state_dict()
    for (name, parameter), master in zip(plain.named_parameters(), masters, strict=True):
        assert got[name].dtype == torch.float32
        assert float((got[name] - parameter.detach()).abs().max()) <= 1e-6
        assert master.dtype == torch.float64
    for held in buckets(trainer):
        for name, bucket in held.items():
            assert bucket.value.dtype == torch.float64
            assert bucket.compute is not None
            size = sharding.padded(name)
            own = size // sharding.shards
            assert bucket.compute.shape == (own if zero == 3 else size,)
            part = bucket.compute if zero == 3 else bucket.shard.of(bucket.compute)
            assert torch.equal(part, bucket.value.float())
            assert bucket.compute.untyped_storage().data_ptr() != (
                bucket.value.untyped_storage().data_ptr()
            )


# Between processes.


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Run the worker under torchrun once; return what each rank saved."""
    folder = tmp_path_factory.mktemp("sharding")
    done = torchrun(WORKER, folder, count=NUM_RANKS)
    return saved_by_ranks(folder, done, count=NUM_RANKS)


@pytest.mark.slow
@pytest.mark.parametrize("sharding", SHARDINGS, ids=str)
def test_gloo_trains_to_the_bits_of_local(seen: list[dict[str, Any]], sharding: Sharding) -> None:
    trainer = start(sharding, make_adamw)
    results = [trainer.step(make_batch(step, NUM_RANKS)) for step in range(NUM_GLOO_STEPS)]
    for rank in seen:
        got = rank[str(sharding)]
        assert got["losses"] == [result.loss for result in results]
        assert got["norms"] == [result.grad_norm for result in results]
        for what, expected in (
            ("gradients", trainer.gradients()),
            ("state", trainer.full_state_dict()),
        ):
            assert got[what].keys() == expected.keys()
            assert all(torch.equal(got[what][name], expected[name]) for name in expected)


@pytest.mark.slow
def test_check_mode_compares_every_value_on_gloo(seen: list[dict[str, Any]]) -> None:
    for rank in seen:
        compared, unknown = rank["checked"]
        assert compared > 50
        assert unknown == 0


@pytest.mark.slow
def test_gloo_refuses_parts_of_different_values(seen: list[dict[str, Any]]) -> None:
    for rank in seen:
        assert (
            "expected one first value on all ranks, got different ones on ranks 0 and 3"
            in (rank["replicas"])
        )
