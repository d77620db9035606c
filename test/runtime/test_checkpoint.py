"""Checkpoints: what is in them, and going on from them under another sharding and dtype."""

from __future__ import annotations

import copy
import json
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from checkpoint_cases import (
    AFTER,
    BEFORE,
    DP2,
    DP4,
    HSDP,
    alone,
    batch,
    buckets,
    everything,
    read,
    same,
    start,
    train,
    write,
)
from mlp_program import TiedMlp, make_adamw, make_sgd, program_texts, sealed
from mlp_program import make_batch as mlp_batch
from piper_runtime import LocalTransport, Program, Trainer
from piper_runtime.checkpoint.writers import choose_writers
from piper_runtime.states.optimizer import ELEMENTWISE
from piper_runtime.states.sharding import pad
from plain_steps import mean_loss
from sharded_oracle import SingleProcess
from sharded_program import BUCKETS, Odd, Sharding, sharded_program
from torch import Tensor, nn
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.checkpoint.state_dict_loader import load

TOLERANCE = 1e-12
SHARDING = Sharding(3, "each", DP4)
MEMBERS = [name for members in BUCKETS.values() for name in members]
SHARDINGS = [
    Sharding(0, "last", DP4),
    Sharding(1, "last", DP4),
    Sharding(3, "each", DP4),
    Sharding(2, "each", HSDP),
]


def saved(sharding: Sharding, path: Path, **options: Any) -> Trainer:
    """Train, save, and return the trainer."""
    trainer = start(sharding, **options)
    train(trainer, sharding, BEFORE)
    trainer.save(path)
    return trainer


# Going on.


@pytest.mark.parametrize("loader", SHARDINGS, ids=str)
@pytest.mark.parametrize("saver", SHARDINGS, ids=str)
def test_another_sharding_goes_on(saver: Sharding, loader: Sharding, tmp_path: Path) -> None:
    first, second = saved(saver, tmp_path / "it"), start(loader, seed=1)
    second.load(tmp_path / "it")
    assert second.steps == BEFORE
    assert same(second.full_state_dict(), first.full_state_dict())
    expected = train(first, saver, AFTER)
    assert train(second, loader, AFTER) == pytest.approx(expected, abs=TOLERANCE)


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
def test_the_same_sharding_goes_on_bit_for_bit(zero: int, tmp_path: Path) -> None:
    sharding = Sharding(zero, "each", DP4)
    first, second = saved(sharding, tmp_path / "it"), start(sharding, seed=1)
    second.load(tmp_path / "it")
    assert same(everything(second), everything(first))
    assert train(second, sharding, AFTER) == train(first, sharding, AFTER)
    assert same(everything(second), everything(first))


OPTIONS: dict[str, dict[str, Any]] = {
    "Adam": {"amsgrad": True, "fused": True},
    "RMSprop": {"momentum": 0.9, "centered": True},
    "SGD": {"momentum": 0.9, "dampening": 0.1},
}


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_every_elementwise_optimizer_goes_on(name: str, tmp_path: Path) -> None:
    """With options that differ between the parameters of one bucket."""

    def factory(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        matrices = [p for p in parameters if p.dim() > 1]
        others = [p for p in parameters if p.dim() <= 1]
        groups: list[dict[str, Any]] = [
            {"params": matrices},
            {"params": others, "lr": 1e-3},
        ]
        made: torch.optim.Optimizer = getattr(torch.optim, name)(
            [g for g in groups if g["params"]], lr=1e-2, **OPTIONS.get(name, {})
        )
        return made

    saver, loader = Sharding(3, "each", DP4), Sharding(1, "last", DP4)
    first = saved(saver, tmp_path / "it", factory=factory)
    second = start(loader, factory, seed=1)
    second.load(tmp_path / "it")
    expected = train(first, saver, AFTER)
    assert train(second, loader, AFTER) == pytest.approx(expected, abs=TOLERANCE)


def test_what_a_group_keeps_may_differ(tmp_path: Path) -> None:
    """SGD keeps nothing of parameters without momentum."""

    def factory(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        groups = [{"params": [p], "momentum": 0.9 * (p.dim() > 1)} for p in parameters]
        return torch.optim.SGD(groups, lr=0.1)

    sharding = Sharding(3, "each", DP4)
    first = saved(sharding, tmp_path / "it", factory=factory)
    assert read(tmp_path / "it")["optimizer"]["state"].keys() == {"fc.weight", "out.weight"}
    second = start(sharding, factory, seed=1)
    second.load(tmp_path / "it")
    assert train(second, sharding, AFTER) == train(first, sharding, AFTER)


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
def test_values_are_rounded_to_the_dtype_that_keeps_them(zero: int, tmp_path: Path) -> None:
    """First to that of the value, then to that of what chunks read, as a step would."""
    wide = saved(Sharding(3, "each", DP4), tmp_path / "wide")
    narrow = Sharding(zero, "last", DP4, dtype="float32", compute="bfloat16")
    trainer = start(narrow, seed=1)
    trainer.load(tmp_path / "wide")
    whole = wide.full_state_dict()
    for name, value in trainer.full_state_dict().items():
        assert torch.equal(value, whole[name].float().bfloat16())
    for where, bucket in buckets(trainer):
        assert bucket.compute is not None
        flat = torch.cat([whole[name].reshape(-1) for name in bucket.spec.members])
        flat = pad(flat.float().bfloat16(), bucket.shard.padded)
        assert torch.equal(bucket.compute, bucket.shard.of(flat) if zero == 3 else flat), where
        for kept in bucket.optimizer.state.values() if bucket.optimizer else ():
            assert {value.dtype for value in kept.values()} == {torch.float32}
    again = start(narrow, seed=2)
    trainer.save(tmp_path / "narrow")
    assert read(tmp_path / "narrow")["model"]["gain"].dtype == torch.float32
    again.load(tmp_path / "narrow")
    assert same(everything(again), everything(trainer))
    assert train(again, narrow, AFTER) == train(trainer, narrow, AFTER)


@pytest.mark.parametrize("name", ["AdamW", "Adagrad"])
def test_before_the_first_step_an_optimizer_is_new(name: str, tmp_path: Path) -> None:
    """Adagrad has state from the start. A trainer that has made steps forgets its own."""
    sharding, factory = Sharding(1, "last", DP4), getattr(torch.optim, name)
    first = start(sharding, factory)
    first.save(tmp_path / "it")
    second = saved(sharding, tmp_path / "other", factory=factory, seed=1)
    second.load(tmp_path / "it")
    assert second.steps == 0
    assert same(everything(second), everything(first))
    assert train(second, sharding, AFTER) == train(first, sharding, AFTER)


def test_if_all_steps_were_skipped_an_optimizer_is_new(tmp_path: Path) -> None:
    sharding = Sharding(1, "last", DP4)
    first, second = start(sharding), start(sharding, seed=1)
    first.steps = first.num_skipped = 2
    first.save(tmp_path / "it")
    second.load(tmp_path / "it")
    assert (second.steps, second.num_skipped) == (2, 2)
    assert same(everything(second), everything(first))


def test_there_are_no_gradients_before_the_next_step(tmp_path: Path) -> None:
    sharding = Sharding(2, "each", DP4)
    trainer = saved(sharding, tmp_path / "it")
    trainer.load(tmp_path / "it")
    with pytest.raises(RuntimeError, match="gradients expected a step before, got none"):
        trainer.gradients()
    trainer.step(batch(sharding, BEFORE))
    assert trainer.gradients().keys() == set(MEMBERS)


def test_a_trainer_that_checks_refuses(tmp_path: Path) -> None:
    """What it compares with has not made the steps."""
    sharding = Sharding(1, "last", DP2)
    saved(sharding, tmp_path / "it")
    trainer = start(sharding, check=SingleProcess(sharding, make_adamw))
    with pytest.raises(ValueError, match="load expected a trainer without check, which compares"):
        trainer.load(tmp_path / "it")


# What is in a checkpoint.


def test_torch_reads_whole_tensors_by_name(tmp_path: Path) -> None:
    trainer = saved(Sharding(3, "each", DP4), tmp_path / "it")
    tree = read(tmp_path / "it")
    assert tree.keys() == {"model", "optimizer", "train_state"}
    assert same(tree["model"], trainer.full_state_dict())
    assert tree["train_state"] == {"step": torch.tensor(BEFORE), "skipped": torch.tensor(0)}
    states = tree["optimizer"]["state"]
    assert states.keys() == set(MEMBERS)
    for name, value in tree["model"].items():
        shapes = {key: kept.shape for key, kept in states[name].items()}
        assert shapes == {"step": (), "exp_avg": value.shape, "exp_avg_sq": value.shape}


def test_plain_pytorch_goes_on(tmp_path: Path) -> None:
    """Model and optimizer by torch's own functions, from keys of their own convention."""
    sharding, factory = Sharding(3, "each", DP4), make_adamw
    trainer = saved(sharding, tmp_path / "it", factory=factory)
    model = Odd(seed=1)
    optimizer = factory(list(model.parameters()))
    options = StateDictOptions(flatten_optimizer_state_dict=True)
    tree = {
        "model": model.state_dict(),
        "optimizer": get_optimizer_state_dict(model, optimizer, options=options),
    }
    planner = DefaultLoadPlanner(allow_partial_load=True)  # options, such as lr, are not there
    with alone():
        load(tree, checkpoint_id=tmp_path / "it", planner=planner, no_dist=True)
    model.load_state_dict(tree["model"])
    set_optimizer_state_dict(model, optimizer, tree["optimizer"], options=options)
    for step in range(BEFORE, BEFORE + AFTER):
        optimizer.zero_grad()
        loss = mean_loss(model, batch(sharding, step))
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        found = trainer.step(batch(sharding, step)).loss
        assert found == pytest.approx(loss.item(), abs=TOLERANCE)


def tied(seed: int = 0) -> Trainer:
    model = TiedMlp()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(seed)
    return Trainer(
        Program(program_texts()), model=model, optimizer=make_sgd, transport=LocalTransport()
    )


def rename(tree: dict[str, Any]) -> None:
    """Let a tied weight be there under its other name."""
    for kept in (tree["model"], tree["optimizer"]["state"]):
        kept["head.weight"] = kept.pop("embed.weight")


def double(tree: dict[str, Any]) -> None:
    """Let a tied weight be there under both names, as plain PyTorch saves it."""
    tree["model"]["head.weight"] = tree["model"]["embed.weight"]


@pytest.mark.parametrize("change", [rename, double])
def test_a_tied_weight_is_there_once_under_any_name(
    change: Callable[[dict[str, Any]], None], tmp_path: Path
) -> None:
    """Two pipeline stages hold it; it is saved under its first name."""
    first, second = tied(), tied(seed=1)
    first.step(mlp_batch(0))
    first.save(tmp_path / "it")
    tree = read(tmp_path / "it")
    assert "embed.weight" in tree["model"]
    assert "head.weight" not in tree["model"]
    assert "head.weight" not in tree["optimizer"]["state"]
    change(tree)
    write(tree, tmp_path / "other")
    second.load(tmp_path / "other")
    assert same(everything(second), everything(first))
    assert second.step(mlp_batch(1)).loss == first.step(mlp_batch(1)).loss


def test_states_that_no_rank_holds_an_element_of(tmp_path: Path) -> None:
    """One is not used by the step, and one has no elements."""

    def more(seed: int) -> Trainer:
        texts = dict(sharded_program(SHARDING).texts)
        manifest = json.loads(texts["manifest.json"])
        buffer = {"name": "table", "kind": "buffer", "shape": [3, 2], "dtype": "float32"}
        nothing = {"name": "none", "kind": "parameter", "shape": [0, 2], "dtype": "float64"}
        manifest["states"].append(buffer | {"trainable": False, "aliases": ["also"]})
        manifest["states"].append(nothing | {"trainable": True, "aliases": []})
        manifest["buckets"][0]["members"].insert(1, "none")
        model = Odd(seed)
        model.register_buffer("also", torch.arange(6.0).view(2, 3).t() + seed)
        model.register_parameter("none", nn.Parameter(torch.ones(0, 2, dtype=torch.float64)))
        program = Program(sealed(texts | {"manifest.json": json.dumps(manifest)}))
        return Trainer(program, model=model, optimizer=make_adamw, transport="local")

    first, second = more(0), more(1)
    train(first, SHARDING, BEFORE)
    first.save(tmp_path / "it")
    tree = read(tmp_path / "it")
    assert torch.equal(tree["model"]["table"], torch.arange(6.0).view(2, 3).t())
    assert tree["model"]["none"].shape == (0, 2)
    assert "also" not in tree["model"]
    assert "none" not in tree["optimizer"]["state"]
    second.load(tmp_path / "it")
    assert same(second.full_state_dict(), first.full_state_dict())
    assert train(second, SHARDING, AFTER) == train(first, SHARDING, AFTER)


def test_writing_is_spread() -> None:
    """Replicas, and stages that hold a state twice, write different pieces."""
    manifest = Program(program_texts()).manifest
    buckets = {spec.name: spec for spec in manifest.buckets}
    written: dict[int, list[str]] = {rank: [] for rank in range(4)}
    for (bucket, _, _, member), rank in choose_writers(manifest).items():
        written[rank].append(buckets[bucket].members[member])
    assert written == {
        0: ["embed.weight"],
        1: ["layers.0.weight", "layers.0.bias"],
        2: ["layers.1.weight"],
        3: ["layers.1.bias"],
    }


# Whole states, one bucket at a time.


def test_a_stream_keeps_no_bucket_that_was_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = start(Sharding(3, "each", DP4))
    expected = trainer.full_state_dict()
    taken: list[weakref.ref[Tensor]] = []
    broadcast = trainer.transport.broadcast

    def looking(value: Tensor, *, owner: int) -> Tensor:
        assert all(flat() is None for flat in taken)
        return broadcast(value, owner=owner)

    monkeypatch.setattr(trainer.transport, "broadcast", looking)
    names = []
    for name, value in trainer.stream_state_dict():
        assert torch.equal(value, expected[name])
        assert value._base is not None
        taken.append(weakref.ref(value._base))
        names.append(name)
        del value
    assert sorted(names) == sorted(MEMBERS)


def test_rounded_states_do_not_keep_what_they_were_rounded_from() -> None:
    trainer = start(Sharding(3, "each", DP4, dtype="float32", compute="bfloat16"))
    for value in trainer.full_state_dict().values():
        assert value.untyped_storage().nbytes() == value.nbytes


def test_to_safetensors_and_back(tmp_path: Path) -> None:
    first = tied()
    first.step(mlp_batch(0))
    model = copy.deepcopy(TiedMlp())
    model.load_state_dict(first.full_state_dict())
    safetensors.torch.save_model(model, str(tmp_path / "model.safetensors"))
    other = TiedMlp()
    safetensors.torch.load_model(other, tmp_path / "model.safetensors")
    second = Trainer(Program(program_texts()), model=other, optimizer=make_sgd)
    assert same(second.full_state_dict(), first.full_state_dict())
