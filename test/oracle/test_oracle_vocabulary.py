"""Parts of a vocabulary, and of other dims that ranks need not divide, train as plain PyTorch does:
rows are looked up in parts of the table, and losses computed of parts of the logits.
"""

# ruff: noqa: N812  (plain PyTorch style)

from __future__ import annotations

import copy
import itertools
from collections import OrderedDict
from functools import cache
from pathlib import Path

import piper
import pytest
import small_tensors
import torch
import torch.nn.functional as F
from ir_facts import exchanged_shapes
from oracle import LossFunction, Step, adamw, check_steps, piper_steps, plain_steps, sgd
from piper_runtime import InstructionError, Program, Trainer
from rounding import check_as_near
from small_gpt import TAGS, Batch, token_loss
from small_tensors import CLIP, By, Config, Tensors
from strategies import Captures
from torch import Tensor, nn
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

NAMES = ("1F1B", "Interleaved1F1B", "ZBVZeroBubble", "DualPipeV")
SIZES = (24, 23)


def vocabulary_case(number: int, tp: int, sequence: bool, tied: bool) -> Tensors:
    """Schedules and stages of ZeRO in turns."""
    name, zero = NAMES[(number + number // 4) % 4], number // 2 % 4
    head: By = "whole" if tied else "vocabulary"
    return Tensors(
        name, 2, 2, 4, zero=zero, tp=tp, embed="vocabulary", head=head, sequence=sequence
    )


MATRIX = [
    (vocabulary_case(number, tp, sequence, tied), Config(kv_heads=tp, tied=tied, vocabulary=size))
    for number, (size, tp, sequence, tied) in enumerate(
        itertools.product(SIZES, (2, 4), (False, True), (False, True))
    )
]
QUICK = (10, 13)


def compile_case(case: Tensors, config: Config) -> Program:
    (batch,) = small_tensors.batches(case, steps=1, config=config)
    return small_tensors.captures(config).compile(case.plan(), batch)


@pytest.mark.parametrize(
    ("case", "config"),
    [
        pytest.param(
            case, config, id=f"{case}-{config.vocabulary}{'-tied' * config.tied}", marks=marks
        )
        for number, (case, config) in enumerate(MATRIX)
        for marks in [[] if number in QUICK else [pytest.mark.slow]]
    ],
)
def test_parts_of_the_vocabulary(case: Tensors, config: Config) -> None:
    """Two and four ranks, with parts of the sequence or without, one table or two, and a size that
    they divide or not; nothing as wide as the vocabulary is exchanged.
    """
    model, program = small_tensors.captures(config).model, compile_case(case, config)
    given = small_tensors.batches(case, config=config)
    for factory in (sgd, adamw):
        expected = plain_steps(model, token_loss, given, factory, clip=CLIP)
        check_steps(piper_steps(program, model, given, factory), expected)
    padded = -(-config.vocabulary // case.tp) * case.tp
    widths = {size for shape in exchanged_shapes(program) for size in shape}
    assert not widths & {config.vocabulary, padded, padded // case.tp}


BF16_MATRIX = [
    (vocabulary_case(number, 2, sequence, tied), Config(tied=tied, rms=rms, vocabulary=23))
    for number, (sequence, tied, rms) in enumerate(itertools.product((False, True), repeat=3))
]
QUICK_BF16 = (0, 5)


@pytest.mark.parametrize("wide", [False, True], ids=["bf16", "fp32"])
@pytest.mark.parametrize(
    ("case", "config"),
    [
        pytest.param(
            case, config, id=f"{case}{'-tied' * config.tied}{'-rms' * config.rms}", marks=marks
        )
        for number, (case, config) in enumerate(BF16_MATRIX)
        for marks in [[] if number in QUICK_BF16 else [pytest.mark.slow]]
    ],
)
def test_bf16_is_as_near_as_plain_bf16(case: Tensors, config: Config, wide: bool) -> None:
    """Three steps of SGD in bf16 on two ranks with 12 and 11 words: at most twice as far from fp64
    as plain PyTorch in bf16. Gradients are summed over ranks and microbatches in bf16, or in fp32.
    """
    given = small_tensors.batches(case, config=config)
    narrow = small_tensors.captures(config, dtype=torch.bfloat16)
    dtype = torch.float32 if wide else torch.bfloat16
    program = narrow.compile(case.plan(reduce_dtype=dtype), given[0])
    found = piper_steps(program, narrow.model, given, sgd)
    assert {value.dtype for value in found[0].gradients.values()} == {dtype}
    plain = plain_steps(narrow.model, token_loss, given, sgd, clip=CLIP)
    exact = plain_steps(copy.deepcopy(narrow.model).double(), token_loss, given, sgd, clip=CLIP)
    check_as_near(found, plain, exact)


# Losses and layers of a small model without stages.


class Uneven(nn.Module):
    """Thirteen features between two products, for which ranks have padding: behind a nonlinearity
    that makes ones of zeros, and where a norm needs all of them.
    """

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, 13), nn.Linear(13, 8)
        self.wide, self.norm, self.narrow = nn.Linear(8, 13), nn.LayerNorm(13), nn.Linear(13, 8)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.down(torch.cos(self.up(x)))
        y: Tensor = x + self.narrow(self.norm(self.wide(x)))
        return y


def make_model() -> nn.Sequential:
    torch.manual_seed(0)
    parts: dict[str, nn.Module] = {
        "embed": nn.Embedding(23, 8),
        "layers": nn.Sequential(Uneven(), Uneven()),
        "head": nn.Linear(8, 23),
    }
    return nn.Sequential(OrderedDict(parts)).double()


SHARDS = [
    piper.shard("embed.weight", axis="tp"),
    piper.shard("head.*", axis="tp"),
    piper.shard("layers.*.up.*", axis="tp"),
    piper.shard("layers.*.down.weight", axis="tp", dim=1),
    piper.shard("layers.*.wide.*", axis="tp"),
    piper.shard("layers.*.narrow.weight", axis="tp", dim=1),
]
STRATEGIES = {  # of one batch size
    "whole": (Tensors("1F1B", 0, 1, 4, tp=1), []),
    "tp2-zero3": (Tensors("1F1B", 0, 2, 2, zero=3, tp=2), SHARDS),
    "tp4-zero1": (Tensors("1F1B", 0, 2, 2, zero=1, tp=4), SHARDS),
}


@cache
def batches() -> list[Batch]:
    """The same for all of them."""
    case, _ = STRATEGIES["tp2-zero3"]
    return small_tensors.batches(case, steps=4, config=Config(vocabulary=23))


@cache
def compiled(name: str) -> Program:
    case, shards = STRATEGIES[name]
    strategy = case.strategy(TAGS, adamw, clip=CLIP, more=list(shards))
    return Captures(make_model(), token_loss).compile(strategy, batches()[0])


def start(name: str) -> Trainer:
    return Trainer(compiled(name), transport="local", model=make_model(), optimizer=adamw)


@cache
def plain() -> list[Step]:
    return plain_steps(make_model(), token_loss, batches(), adamw, clip=CLIP)


@pytest.mark.parametrize("name", ["tp2-zero3", "tp4-zero1"])
def test_parts_of_other_dims(name: str) -> None:
    """What a rank has as padding is left out of sums, and of what is gathered."""
    program = compiled(name)
    found = piper_steps(program, make_model(), batches(), adamw)
    check_steps(found, plain())
    assert "piper.clear_padding" in program.texts["ir/chunks.mlir"]


def by_position(model: nn.Module, batch: Batch) -> Tensor:
    """The classes are the second of three dims."""
    return F.cross_entropy(model(batch["ids"]).transpose(1, 2), batch["labels"])


def weighted(model: nn.Module, batch: Batch) -> Tensor:
    """A class counts by its number."""
    logits = model(batch["ids"]).flatten(0, 1)
    labels = batch["labels"].flatten()
    losses = F.cross_entropy(logits, labels, torch.arange(23.0).double(), reduction="none")
    return losses.sum()


def unreduced(model: nn.Module, batch: Batch) -> Tensor:
    """What is wrong counts for more: a loss of each label, and what is not linear in it (Lin et al.,
    2017, "Focal Loss for Dense Object Detection").
    """
    logits = model(batch["ids"]).flatten(0, 1)
    losses = F.cross_entropy(logits, batch["labels"].flatten(), reduction="none")
    return (losses * (1 - torch.exp(-losses)).square()).sum()


def masked(model: nn.Module, batch: Batch) -> Tensor:
    """Losses of all labels, of which some count, with the classes second of three dims."""
    logits, labels = model(batch["ids"]).transpose(1, 2), batch["labels"]
    losses = F.cross_entropy(logits, labels.clamp(min=0), reduction="none")
    return (losses * (labels > 3)).sum()


def spread(model: nn.Module, batch: Batch) -> Tensor:
    """A softmax without labels."""
    logits: Tensor = model(batch["ids"])
    return logits.softmax(-1).pow(3).sum()


@pytest.mark.parametrize(
    "loss_fn",
    [by_position, weighted, unreduced, masked, pytest.param(spread, marks=pytest.mark.slow)],
)
def test_other_losses(loss_fn: LossFunction) -> None:
    """Softmax by itself, and classes along another dim, are of parts; what has no op for that gets
    what is gathered.
    """
    case = Tensors("1F1B", 0, 1, 1, tp=2)
    model, given = make_model(), small_tensors.batches(case, config=Config(vocabulary=23))
    strategy = case.strategy(TAGS, adamw, clip=CLIP, more=SHARDS[:2])
    program = Captures(model, loss_fn).compile(strategy, given[0])
    expected = plain_steps(model, loss_fn, given, adamw, clip=CLIP)
    check_steps(piper_steps(program, model, given, adamw), expected)
    widths = {size for shape in exchanged_shapes(program) for size in shape}
    assert bool(widths & {23, 24}) == (loss_fn is weighted)


@pytest.mark.parametrize(
    ("loss_fn", "sequence"),
    [
        (masked, True),
        (unreduced, False),
        pytest.param(masked, False, marks=pytest.mark.slow),
        pytest.param(unreduced, True, marks=pytest.mark.slow),
    ],
)
def test_losses_of_labels_beside_other_axes(loss_fn: LossFunction, sequence: bool) -> None:
    """A number per token is summed, or left as parts of the sequence, and nothing wider."""
    config = Config(vocabulary=23)
    case = Tensors(
        "1F1B", 2, 2, 2, zero=1, embed="vocabulary", head="vocabulary", sequence=sequence
    )
    model, given = small_tensors.captures(config).model, small_tensors.batches(case, config=config)
    program = Captures(model, loss_fn).compile(case.plan(), given[0])
    expected = plain_steps(model, loss_fn, given, sgd, clip=CLIP)
    check_steps(piper_steps(program, model, given, sgd), expected)
    widths = {size for shape in exchanged_shapes(program) for size in shape}
    assert not widths & {23, 24, 12}


# Padding is nobody's business.


def padding_of(trainer: Trainer) -> list[Tensor]:
    """What ranks hold of states behind the end of the whole."""
    found = []
    for bucket in (one for home in trainer._homes.values() for one in home.buckets.values()):
        if bucket.compute is None or bucket.local.count == 1:
            continue
        for member, view in zip(bucket.members, bucket.views(bucket.compute).values(), strict=True):
            dim, start = bucket.local.dim, bucket.local.offsets(member.shape)
            own = max(0, min(view.shape[dim], member.shape[dim] - start[dim]))
            found.append(view.narrow(dim, own, view.shape[dim] - own))
    return found


def test_padding_stays_zero() -> None:
    """Whatever the optimizer does with weights, momenta and decay."""
    trainer = start("tp4-zero1")
    for batch in batches():
        trainer.step(batch)
    padding = padding_of(trainer)
    assert sum(values.numel() for values in padding) > 100
    assert not any(values.any() for values in padding)


@pytest.mark.parametrize(
    ("saver", "loader"),
    [("tp4-zero1", "tp2-zero3"), ("tp2-zero3", "whole"), ("whole", "tp4-zero1")],
)
def test_checkpoints_have_no_padding(saver: str, loader: str, tmp_path: Path) -> None:
    """Training goes on from one with another number of ranks as if it had not been interrupted."""
    first, second = start(saver), start(loader)
    for batch in batches()[:2]:
        first.step(batch)
    first.save(tmp_path / "it")
    second.load(tmp_path / "it")
    steps = []
    for batch in batches()[2:]:
        result = second.step(batch)
        states = second.full_state_dict()
        steps.append(Step(result.loss, result.grad_norm, second.gradients(), states))
    check_steps(steps, plain()[2:])
    saved = FileSystemReader(tmp_path / "it").read_metadata().state_dict_metadata
    for name, value in make_model().state_dict().items():
        entry = saved[f"model.{name}"]
        assert isinstance(entry, TensorStorageMetadata)
        assert entry.size == value.shape


@pytest.mark.parametrize("name", ["ids", "labels"])
def test_numbers_that_are_none_are_refused(name: str) -> None:
    """An id, or a label, that the whole vocabulary has not, though a part has a place for it."""
    trainer, batch = start("tp4-zero1"), batches()[0]
    wrong = {**batch, name: batch[name].clone()}
    wrong[name][0, 0] = 23
    with pytest.raises(InstructionError, match=r"out of (range|bounds)"):
        trainer.step(wrong)
