"""States that ranks share out by themselves: held in parts, trained, read whole, saved, loaded."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoint_cases import buckets, everything, read, same
from expert_program import (
    ELEMENTS,
    EXPERTS,
    MEMBERS,
    ExpertModel,
    Experts,
    expert_program,
    make_batch,
    manifest_of,
)
from expert_worker import GLOO, NUM_STEPS
from mlp_program import make_adamw, make_sgd
from piper_runtime import LocalTransport, Program, ProgramError, Trainer
from piper_runtime.checkpoint.writers import choose_writers
from piper_runtime.manifest import Manifest
from piper_runtime.states.optimizer import OptimizerFactory
from piper_runtime.states.sharding import Local
from plain_steps import TOLERANCE, close, train_as_plain
from torch import Tensor
from torchrun import saved_by_ranks, torchrun

BEFORE, AFTER, RANKS = 2, 2, 6
WORKER = Path(__file__).with_name("expert_worker.py")
MESHES = [(3, 2), (1, 2), (2, 4), (1, 4), (2, 1)]
MATRIX = [Experts(edp, ep, zero) for edp, ep in MESHES for zero in (0, 1, 3)]
MATRIX += [Experts(edp, ep, zero, dim=1) for edp, ep in ((3, 2), (1, 4)) for zero in (0, 1, 3)]
Change = Callable[[dict[str, Any]], None]


def start(strategy: Experts, factory: OptimizerFactory = make_adamw, **options: Any) -> Trainer:
    model = ExpertModel(dim=strategy.dim)
    given: dict[str, Any] = {"transport": LocalTransport(seed=1), "model": model}
    return Trainer(expert_program(strategy), optimizer=factory, **(given | options))


# Training.


def train(strategy: Experts, factory: OptimizerFactory) -> None:
    plain, trainer = ExpertModel(dim=strategy.dim), start(strategy, factory)
    batches = [make_batch(step, strategy.ranks) for step in range(NUM_STEPS)]
    train_as_plain(trainer, plain, batches, factory, strategy.clip)


@pytest.mark.parametrize("strategy", MATRIX, ids=str)
@pytest.mark.parametrize("factory", [make_sgd, make_adamw])
def test_shared_out_training_is_plain_training(
    strategy: Experts, factory: OptimizerFactory
) -> None:
    train(strategy, factory)


@pytest.mark.parametrize("zero", [0, 1, 3])
def test_gradients_are_clipped_by_the_norm_of_all_experts(zero: int) -> None:
    train(Experts(zero=zero, clip=0.01), make_sgd)


# What a rank holds.


@pytest.mark.parametrize("strategy", MATRIX, ids=str)
def test_a_rank_holds_its_experts_only(strategy: Experts) -> None:
    """And of them its part, if ZeRO shares them out further."""
    trainer, model = start(strategy), ExpertModel(dim=strategy.dim)
    local = ELEMENTS // strategy.ep
    parts = strategy.edp if strategy.zero else 1
    for rank, home in trainer._homes.items():
        bucket, index = home.buckets["experts$b"], rank % strategy.ep
        members = [model.get_parameter(name).detach() for name in MEMBERS]
        own = [whole.chunk(strategy.ep, strategy.dim)[index] for whole in members]
        whole = [part.reshape(-1) for part in own]
        held = torch.cat([torch.cat(whole), torch.zeros(-local % parts).double()])
        place = rank // strategy.ep if strategy.zero else 0
        assert torch.equal(bucket.value, held.chunk(parts)[place])
        if bucket.compute is not None:
            assert torch.equal(bucket.compute, held)


def test_first_values_of_an_init_are_those_of_the_whole(tmp_path: Path) -> None:
    """The generator is that of the whole state, whoever holds it."""

    def init(name: str, shape: Any, dtype: torch.dtype, generator: torch.Generator) -> Tensor:
        return torch.randn(shape, dtype=dtype, generator=generator)

    one, other = (
        start(strategy, model=None, init=init) for strategy in (Experts(2, 1), Experts(2, 4, 3))
    )
    assert same(one.full_state_dict(), other.full_state_dict())


def test_parts_have_places_in_the_whole() -> None:
    local = Local(2, 4)
    assert local.shape((8, 3, 5)) == (2, 3, 5)
    assert local.offsets((8, 3, 5)) == (4, 0, 0)
    columns = Local(2, 3, dim=1)
    assert columns.shape((8, 6, 5)) == (8, 2, 5)
    assert columns.offsets((8, 6, 5)) == (0, 4, 0)
    assert torch.equal(columns.of(torch.arange(12).view(2, 6)), torch.tensor([[4, 5], [10, 11]]))
    assert torch.equal(local.of(torch.arange(8)), torch.tensor([4, 5]))
    whole = torch.zeros(())
    assert Local().of(whole) is whole
    assert (Local().shape(()), Local().offsets(())) == ((), ())


def test_whole_states_come_one_bucket_at_a_time() -> None:
    trainer = start(Experts(2, 4, 3))
    names = []
    for name, value in trainer.stream_state_dict():
        assert torch.equal(value, ExpertModel().get_parameter(name).detach())
        names.append(name)
    assert names == [*MEMBERS, "gain"]


# Checkpoints.


def run(trainer: Trainer, steps: int) -> list[float]:
    return [trainer.step(make_batch(trainer.steps, RANKS)).loss for _ in range(steps)]


SIX = [Experts(edp, ep, zero) for edp, ep in ((3, 2), (6, 1)) for zero in (0, 1, 3)]
COLUMNS = [replace(strategy, dim=1) for strategy in SIX]


@pytest.mark.parametrize(
    ("before", "after"), [*product(SIX, repeat=2), *product(COLUMNS, repeat=2)], ids=str
)
def test_another_layout_goes_on(before: Experts, after: Experts, tmp_path: Path) -> None:
    """The same six ranks with data, so the losses must be those of a run without a break."""
    factory = make_sgd if before.zero == after.zero else make_adamw
    first = start(before, factory)
    run(first, BEFORE)
    first.save(tmp_path / "it")
    second = start(after, factory, model=ExpertModel(seed=1, dim=after.dim))
    second.load(tmp_path / "it")
    assert second.steps == BEFORE
    assert same(second.full_state_dict(), first.full_state_dict())
    assert run(second, AFTER) == pytest.approx(run(first, AFTER), abs=TOLERANCE)
    close(second.full_state_dict(), first.full_state_dict())


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("zero", [0, 1, 3])
def test_there_and_back_changes_nothing(zero: int, dim: int, tmp_path: Path) -> None:
    """Values and what the optimizer keeps, to the bit, over four ways of holding them."""
    way = [Experts(3, 2, zero), Experts(2, 4, 3), Experts(1, 1), Experts(3, 2, zero)]
    trainers = [
        start(replace(strategy, dim=dim), model=ExpertModel(seed=n, dim=dim))
        for n, strategy in enumerate(way)
    ]
    run(trainers[0], BEFORE)
    for number, (one, other) in enumerate(pairwise(trainers)):
        one.save(tmp_path / str(number))
        other.load(tmp_path / str(number))
    assert same(everything(trainers[-1]), everything(trainers[0]))


@pytest.mark.parametrize(
    "strategy", [Experts(3, 2, 3), Experts(2, 4, 0), Experts(3, 2, 1, dim=1)], ids=str
)
def test_torch_reads_whole_experts_by_name(strategy: Experts, tmp_path: Path) -> None:
    trainer = start(strategy)
    trainer.step(make_batch(0, strategy.ranks))
    trainer.save(tmp_path / "it")
    tree = read(tmp_path / "it")
    assert same(tree["model"], trainer.full_state_dict())
    states = tree["optimizer"]["state"]
    for name, value in tree["model"].items():
        shapes = {key: kept.shape for key, kept in states[name].items()}
        assert shapes == {"step": (), "exp_avg": value.shape, "exp_avg_sq": value.shape}


def test_each_piece_is_written_once_by_who_holds_it() -> None:
    manifest = Manifest.parse(expert_program(Experts(2, 2)).texts["manifest.json"])
    written = {key: rank for key, rank in choose_writers(manifest).items() if "experts" in key[0]}
    assert {(local, member) for _, local, _, member in written} == {
        (local, member) for local in range(2) for member in range(len(MEMBERS))
    }
    for (_, local, _, _), rank in written.items():
        assert rank % 2 == local
    assert len(set(written.values())) == 4, "copies along edp share the work"


# What is refused.


def changed(change: Change) -> None:
    manifest = manifest_of(Experts())
    change(manifest)
    Manifest.parse(json.dumps(manifest))


def of_state(**entries: Any) -> Change:
    return lambda manifest: manifest["states"][0].update(entries)


def of_bucket(**entries: Any) -> Change:
    return lambda manifest: manifest["buckets"][0].update(entries)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            of_state(shard_dim=1),
            r"'experts.weight' expected a dim 1 divisible by 2, .* 'ep', got shape \(4, 3\)",
        ),
        (
            of_state(shard_dim=1, shape=[2, 6]),
            r"'experts\$b' expected members sharded along dim 0, .* got 'experts.weight' along dim 1",
        ),
        (
            of_state(shard_axis="tp"),
            r"state 'experts.weight' expected a shard axis of \['edp', 'ep'\], got 'tp'",
        ),
        (
            of_state(shape=[5, 3]),
            r"'experts.weight' expected a dim 0 divisible by 2, .* 'ep', got shape \(5, 3\)",
        ),
        (
            of_state(shape=[]),
            r"'experts.weight' expected a dim 0 divisible by 2, .* got shape \(\)",
        ),
        (
            of_state(shard_axis=None),
            r"'experts\$b' expected members sharded over \['ep'\], .* got 'experts.weight' over \[\]",
        ),
        (
            of_bucket(varying_axes=[]),
            r"'experts\$b' expected members sharded over \[\], .*, got 'experts.weight' over \['ep'\]",
        ),
        (
            of_bucket(numel=ELEMENTS),
            r"'experts\$b' expected numel 14, the sum of its members, got 28",
        ),
        (
            of_bucket(shard_axes=["ep"]),
            r"'experts\$b' expected shard axes beside its varying axes \['ep'\], got 'ep' as both",
        ),
    ],
)
def test_a_manifest_that_cannot_be(change: Change, message: str) -> None:
    with pytest.raises(ProgramError, match=message):
        changed(change)


# Between processes.


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    """Return what each rank saw under torchrun."""
    folder = tmp_path_factory.mktemp("experts")
    done = torchrun(WORKER, folder, count=GLOO.ranks)
    return folder, saved_by_ranks(folder, done, count=GLOO.ranks)


def test_processes_do_what_local_does(seen: tuple[Path, list[dict[str, Any]]]) -> None:
    trainer = start(GLOO)
    losses = [trainer.step(make_batch(step, GLOO.ranks)).loss for step in range(NUM_STEPS)]
    for found in seen[1]:
        assert found["losses"] == losses
        assert same(found["gradients"], trainer.gradients())
        assert same(found["state"], trainer.full_state_dict())


def test_local_goes_on_from_what_processes_saved(seen: tuple[Path, list[dict[str, Any]]]) -> None:
    folder, ranks = seen
    trainer = start(Experts(1, 4, 0), model=ExpertModel(seed=1))
    trainer.load(folder / "saved")
    assert same(trainer.full_state_dict(), ranks[0]["state"])
    assert [trainer.step(make_batch(NUM_STEPS, GLOO.ranks)).loss] == pytest.approx(
        ranks[0]["next"], abs=TOLERANCE
    )


def test_ranks_start_from_one_model(seen: tuple[Path, list[dict[str, Any]]]) -> None:
    """Also where they hold different experts of it."""
    for found in seen[1]:
        assert found["replicas"].startswith(
            "bucket 'experts$b' expected one first value on all ranks, got different ones on ranks "
            "0 and 1"
        )


def test_what_is_held_is_a_share_of_the_experts() -> None:
    trainer = start(Experts(2, 4))
    held = {where: bucket for where, bucket in buckets(trainer) if "experts" in where}
    assert {bucket.value.numel() for bucket in held.values()} == {ELEMENTS // EXPERTS}
    assert isinstance(trainer.program, Program)
