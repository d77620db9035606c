"""Sequences shared out by ranks train as plain PyTorch does, in fp64."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import hf_models
import piper
import pytest
import torch
from hf_models import FAMILIES
from ir_facts import count_ops
from oracle import BOUND, adamw, check_steps, piper_steps, plain_steps, randomize, sgd
from oracle_processes import check_processes
from piper.mlir import ir
from piper_runtime import Program
from sequence_models import (
    CLIP,
    DIMS,
    LENGTH,
    ROWS,
    WIDTH,
    Config,
    Sequences,
    batches,
    captures,
    llama,
    llama_loss,
    padded,
    token_loss,
)
from small_gpt import Batch
from strategies import Captures
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

NAMES = ("1F1B", "ZBVZeroBubble", "DualPipeV")
PLAIN = Config()
MATRIX = [
    Sequences(name, 2, 2, 4, zero=zero, cp=2) for name, zero in itertools.product(NAMES, range(4))
]
QUICK = {MATRIX[0], MATRIX[7], MATRIX[10]}
PARALLEL = [
    Sequences(name, 2, 2, 4, zero=zero, tp=2) for name, zero in itertools.product(NAMES, range(4))
]
QUICK_PARALLEL = {PARALLEL[1], PARALLEL[4], PARALLEL[11]}


def compile_case(case: Sequences, config: Config = PLAIN) -> Program:
    (batch,) = batches(case, steps=1)
    return captures(config).compile(case.plan(), batch)


def check(case: Sequences, config: Config = PLAIN) -> None:
    """Three steps each of SGD with momentum and of AdamW, clipped, equal plain PyTorch."""
    model, given = captures(config).model, batches(case)
    program = compile_case(case, config)
    for factory in (sgd, adamw):
        expected = plain_steps(model, token_loss, given, factory, clip=CLIP)
        assert any(step.grad_norm > CLIP for step in expected if step.grad_norm is not None)
        check_steps(piper_steps(program, model, given, factory), expected)


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=str(case), marks=[] if case in QUICK else pytest.mark.slow)
        for case in MATRIX
    ],
)
def test_context_parallelism_equals_plain_pytorch(case: Sequences) -> None:
    """Beside pipelines and shards of states; labels are next tokens, also behind borders."""
    check(case)


@pytest.mark.parametrize(
    ("case", "config"),
    [
        (Sequences("1F1B", 0, 0, 2, cp=2), Config(kv_heads=4)),
        (Sequences("1F1B", 0, 0, 1, cp=4, zero=3), Config(kv_heads=1)),
        (Sequences("1F1B", 0, 0, 2, cp=4), Config(causal=False)),
        pytest.param(
            Sequences("1F1B", 2, 2, 2, cp=2), Config(causal=False), marks=pytest.mark.slow
        ),
        pytest.param(Sequences("DualPipeV", 2, 0, 4, cp=4), PLAIN, marks=pytest.mark.slow),
        (Sequences("1F1B", 0, 0, 1, cp=2, tp=2, heads=False), PLAIN),
    ],
    ids=str,
)
def test_ranks_heads_and_kinds_of_attention(case: Sequences, config: Config) -> None:
    """Two or four ranks; as many heads of keys as of queries or one; causal and not; beside tensor
    parallelism of products other than attention's, and parts of parts.
    """
    check(case, config)


@pytest.mark.parametrize("policy", ["min_cut", pytest.param("full", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", ["1F1B", pytest.param("ZBVZeroBubble", marks=pytest.mark.slow)])
def test_keys_and_values_are_gathered_right_before_they_are_used(
    name: str, policy: Literal["min_cut", "full"]
) -> None:
    """By the next run, once forward and once backward: none waits for the backward pass."""
    case = Sequences(name, 2, 0, 4, cp=2)
    (batch,) = batches(case, steps=1)
    program = captures(PLAIN).compile(case.plan(more=[piper.remat(policy=policy)]), batch)
    gathered = 0
    for rank in range(2):
        body = program.texts[f"program_pp{rank}.py"].split("def train(r):")[1].split("\ndef ")[0]
        pending: list[str] = []
        for line in body.splitlines():
            if ".all_gather(" in line and "comm='exchange.cp" in line:
                pending.append(line.split(",")[0].strip())
            elif ".run(" in line:
                assert all(f" {value}," in line for value in pending), line
                gathered += len(pending)
                pending = []
    assert gathered == 2 * 4 * 2 * 2  # layers, microbatches, keys and values, passes


def test_padding_with_ignored_labels_changes_nothing() -> None:
    """A length that ranks cannot share out is padded by the user: the plain model, which is not
    told, sees the sequences as they are.
    """
    case = Sequences("1F1B", 0, 0, 2, cp=2)
    short = batches(case, length=LENGTH - 3)
    given = [padded(batch, LENGTH) for batch in short]
    model = captures(PLAIN).model
    found = piper_steps(compile_case(case), model, given, sgd)
    check_steps(found, plain_steps(model, token_loss, short, sgd, clip=CLIP))


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=str(case), marks=[] if case in QUICK_PARALLEL else pytest.mark.slow)
        for case in PARALLEL
    ],
)
def test_sequence_parallelism_equals_plain_pytorch(case: Sequences) -> None:
    check(case)


def pass_of(op: ir.Operation | ir.OpView) -> str | None:
    """F, B or W of a run in the training step, else nothing."""
    if op.name != "piper.run":
        return None
    piece = str(op.attributes["chunk"]).strip('@"').partition("$")[2]
    return None if piece.endswith(".eval") else piece[:1]


def uses(program: Program) -> Iterator[tuple[ir.Operation, str, str | None]]:
    """Yield ops of chunks in data order, the type of a value that they make, and who takes it."""
    found: list[tuple[ir.Operation, str, str | None]] = []

    def visit(op: ir.Operation) -> ir.WalkResult:
        for value in op.results if op.name in ("piper.run", "piper.all_gather") else ():
            found.extend((op, str(value.type), pass_of(use.owner)) for use in value.uses)
        return ir.WalkResult.ADVANCE

    with ir.Context():
        module = ir.Module.parse(program.texts["ir/chunks.mlir"])
        module.operation.walk(visit, ir.WalkOrder.PRE_ORDER)
        yield from found


@pytest.mark.parametrize("policy", [pytest.param("save", marks=pytest.mark.slow), "full"])
def test_sequence_parallelism_exchanges_and_keeps_parts(policy: Literal["save", "full"]) -> None:
    """Behind each of two products of a layer sums are left as parts, in both directions, and parts
    are gathered before; what was gathered is not kept, but gathered again.
    """
    case = Sequences("1F1B", 2, 1, 2, tp=2)
    (batch,) = batches(case, steps=1)
    program = captures(PLAIN).compile(case.plan(more=[piper.remat(policy=policy)]), batch)
    counts = count_ops(program, "chunks")
    forward, backward, evaluation = 2, 2, 2
    assert counts["piper.reduce_scatter"] >= PLAIN.layers * (forward + backward + evaluation)
    whole, part = (f"tensor<{ROWS}x{length}x{WIDTH}xf64>" for length in (LENGTH, LENGTH // case.tp))
    gathered, kept = set(), set()
    for op, type_, taker in uses(program):
        if op.name == "piper.all_gather" and type_ == whole:
            taken = {pass_of(use.owner) for use in op.results[0].uses}
            assert len(taken) == 1
            gathered |= taken
        elif pass_of(op) == "F" and taker == "B":
            kept.add((str(op.attributes["chunk"]).strip('@"'), type_))
    assert {"F", "B"} <= gathered
    hidden = {(name, type_) for name, type_ in kept if name.startswith("layer.")}
    assert any(type_ == part for _, type_ in hidden)
    if policy == "full":  # else the first layer keeps what it has of the embedding, which is whole
        assert not any(type_ == whole for _, type_ in hidden)


def test_sequence_parallelism_lets_losses_cut_the_sequence() -> None:
    """All ranks have the whole batch, so that next tokens may be found by cutting."""
    case = Sequences("1F1B", 0, 1, 2, tp=2)
    given, model = batches(case), captures(PLAIN).model
    program = Captures(model, shifting_loss).compile(case.plan(), given[0])
    expected = plain_steps(model, shifting_loss, given, sgd, clip=CLIP)
    check_steps(piper_steps(program, model, given, sgd), expected)


def test_flops_are_those_of_whole_sequences() -> None:
    """But for what every rank adds up of its own: gradients, a number per element."""
    programs = [compile_case(Sequences("1F1B", 0, 1, 2, cp=cp)) for cp in (0, 2)]
    counts = [program.manifest.model_flops("train") for program in programs]
    assert counts[0] is not None
    assert counts[1] == pytest.approx(counts[0], rel=0.01)


def test_fewer_heads_of_keys_than_ranks_are_refused() -> None:
    """Where these share heads out: each would need the same ones."""
    message = (
        "piper.attention_part.default computes with what ranks along axis 'tp' hold parts of, but "
        r"dim 1 of its operand of type 'tensor<2x1x8x2xf64>' is not divided by 2"
    )
    with pytest.raises(piper.CompileError, match=message):
        compile_case(Sequences("1F1B", 0, 0, 1, cp=2, tp=2), Config(kv_heads=1))


def shifting_loss(model: nn.Module, batch: Batch) -> Tensor:
    logits = model(batch["ids"], batch["positions"])
    return cross_entropy(logits[:, :-1].flatten(0, 1), batch["labels"][:, 1:].flatten())


def packing_loss(model: nn.Module, batch: Batch) -> Tensor:
    logits = model(input_ids=batch["ids"], position_ids=batch["positions"], use_cache=False).logits
    return cross_entropy(logits.flatten(0, 1), batch["labels"].flatten())


def counting_loss(model: nn.Module, batch: Batch) -> Tensor:
    logits = model(input_ids=batch["ids"], use_cache=False).logits
    return cross_entropy(logits.flatten(0, 1), batch["labels"].flatten())


def shifted_inputs_loss(model: nn.Module, batch: Batch) -> Tensor:
    ids = batch["ids"]
    logits = model(ids[:, :-1], batch["positions"][:, :-1])
    return cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())


def pooled_loss(model: nn.Module, batch: Batch) -> Tensor:
    logits = model(batch["ids"], batch["positions"]).sum(1)
    return cross_entropy(logits, batch["labels"][:, 0])


@pytest.mark.parametrize(
    "case",
    [
        Sequences("1F1B", 2, 0, 2, cp=2),
        pytest.param(Sequences("ZBVZeroBubble", 2, 2, 4, zero=2, cp=2), marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_unmodified_llama_equals_itself(case: Sequences) -> None:
    model, given = llama(), batches(case, steps=2)
    program = Captures(model, llama_loss).compile(case.plan(tags=FAMILIES["llama"].tags), given[0])
    expected = plain_steps(model, llama_loss, given, sgd, clip=CLIP)
    floor = max(BOUND, 10 * hf_models.floor(model, hf_models.make_batch(case)))
    check_steps(piper_steps(program, model, given, sgd), expected, bound=floor)


def mistral(window: int) -> nn.Module:
    """A layer whose attention sees so many positions up to its own."""
    from transformers import MistralConfig, MistralForCausalLM

    torch.manual_seed(0)
    sizes: dict[str, Any] = {"vocab_size": 32, "hidden_size": 16, "intermediate_size": 32}
    sizes |= {"num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2}
    config = MistralConfig(**sizes, max_position_embeddings=32, sliding_window=window)
    model: nn.Module = MistralForCausalLM(config).double()
    randomize(model)
    return model


def test_mistral_whose_window_is_all_positions_equals_itself() -> None:
    """Its mask is causal at the whole length, as plain PyTorch has it."""
    case = Sequences("1F1B", 0, 0, 1, cp=2)
    model, given = mistral(LENGTH), batches(case, steps=2)
    program = Captures(model, llama_loss).compile(case.plan(tags=FAMILIES["llama"].tags), given[0])
    expected = plain_steps(model, llama_loss, given, sgd, clip=CLIP)
    check_steps(piper_steps(program, model, given, sgd), expected)


@pytest.mark.parametrize(
    "window", [LENGTH // 2, pytest.param(LENGTH - 1, marks=pytest.mark.slow)], ids=str
)
def test_mistral_with_a_window_within_the_sequence_is_refused(window: int) -> None:
    """At the length of a part, of four positions, both masks are causal."""
    case = Sequences("1F1B", 0, 0, 1, cp=2)
    (batch,) = batches(case, steps=1)
    message = (
        r"modeling_mistral.py:\d+ \(model.layers.0.self_attn\): attention sees a window of "
        f"{window} of all {LENGTH} positions where ranks along axis 'cp' have parts of sequences"
    )
    with pytest.raises(piper.CaptureError, match=message):
        Captures(mistral(window), llama_loss).compile(case.plan(tags=FAMILIES["llama"].tags), batch)


def length_loss(model: nn.Module, batch: Batch) -> Tensor:
    """A mean, but for the labels that do not count."""
    logits = model(batch["ids"], batch["positions"]).flatten(0, 1)
    total = cross_entropy(logits, batch["labels"].flatten(), reduction="sum")
    return total / batch["ids"].shape[1]


def test_numbers_that_follow_the_length_are_refused() -> None:
    """They would be those of a part."""
    case = Sequences("1F1B", 0, 0, 1, cp=2)
    (batch,) = batches(case, steps=1)
    message = r"test_oracle_sequences.py:\d+.* is 4 for a part of 4 positions and 8 for all 8"
    with pytest.raises(piper.CaptureError, match=message):
        Captures(captures(PLAIN).model, length_loss).compile(case.plan(), batch)


@pytest.mark.parametrize(
    ("loss", "names", "message"),
    [
        (counting_loss, ("ids", "labels"), "aten.arange.default numbers positions from 0 on every"),
        pytest.param(
            packing_loss,
            tuple(DIMS),
            "attention has a mask that is no constant where ranks along axis 'cp' have parts",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_uses_of_llama_that_a_part_cannot_compute_are_refused(
    loss: Callable[[nn.Module, Batch], Tensor], names: tuple[str, ...], message: str
) -> None:
    """Positions by counting; a mask that depends on positions."""
    case = Sequences("1F1B", 0, 0, 2, cp=2)
    (batch,) = batches(case, steps=1)
    given = {name: batch[name] for name in names}
    plan = case.plan(tags=FAMILIES["llama"].tags, dims={name: DIMS[name] for name in names})
    with pytest.raises(piper.CaptureError, match=message):
        Captures(llama(), loss).compile(plan, given)


@pytest.mark.parametrize("loss", [shifting_loss, shifted_inputs_loss, pooled_loss])
def test_losses_that_cut_or_join_the_sequence_are_refused(
    loss: Callable[[nn.Module, Batch], Tensor],
) -> None:
    """Next tokens by cutting; sums over positions that go on."""
    case = Sequences("1F1B", 0, 0, 2, cp=2)
    (batch,) = batches(case, steps=1)
    with pytest.raises(
        piper.CompileError, match=r"several positions of the seq|goes on with a sum"
    ):
        Captures(captures(PLAIN).model, loss).compile(case.plan(), batch)


@pytest.mark.parametrize(
    ("dims", "message"),
    [
        ({"tokens": 1}, r"expected names of tensor inputs \['ids', .*\], got 'tokens'"),
        ({"ids": 2}, "sequence dim of input 'ids' expected a dim below 2, got 2"),
        (
            {"ids": 0},
            "sequence dim of input 'ids' expected another dim than that of the batch, got 0",
        ),
    ],
)
def test_dims_that_inputs_do_not_have_are_refused(dims: dict[str, int], message: str) -> None:
    case = Sequences("1F1B", 0, 0, 2, cp=2)
    (batch,) = batches(case, steps=1)
    with pytest.raises(piper.CaptureError, match=message):
        captures(PLAIN).compile(case.plan(dims=dims), batch)


def test_a_length_that_ranks_cannot_share_is_refused() -> None:
    case = Sequences("1F1B", 0, 0, 2, cp=4)
    (batch,) = batches(case, steps=1, length=LENGTH + 4)
    with pytest.raises(
        piper.CaptureError, match=r"'ids' .* a multiple of 8 positions.*got 12: pad"
    ):
        captures(PLAIN).compile(case.plan(), batch)


@pytest.mark.slow
def test_gloo_does_what_local_does(tmp_path: Path) -> None:
    """Four processes, each of which feeds its rows with whole sequences."""
    case = Sequences("1F1B", 0, 2, 2, zero=1, cp=2)
    given, model = batches(case), captures(PLAIN).model
    program = compile_case(case)
    local = piper_steps(program, model, given, adamw)
    check_steps(local, plain_steps(model, token_loss, given, adamw, clip=CLIP))
    check_processes(program, model, given, local, tmp_path)
