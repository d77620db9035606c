"""Check mode: equal values pass, and the first instruction that is wrong is named."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import piper
import pytest
import torch
from mlp_program import sealed
from piper_runtime import (
    CheckError,
    InstructionError,
    LocalTransport,
    Program,
    ProgramError,
    Trainer,
)
from piper_runtime.checking.check import make_checker
from piper_runtime.program import seal
from shared_model import Batch, Model, make_batch, make_model, make_strategy, token_loss
from torch import Tensor, nn

Edit = Callable[[str], str]
STAGE_0, STAGE_1, KERNELS = "program_pp0.py", "program_pp1.py", "kernels.py"


@pytest.fixture(scope="module")
def program() -> Program:
    return piper.compile(make_model(), token_loss, make_strategy(), make_batch())


def edited(program: Program, file: str, edit: Edit) -> Program:
    """The program with one file changed."""
    text = edit(program.texts[file])
    assert text != program.texts[file]
    texts = sealed({**program.texts, file: text})
    return Program(texts, model=program.model, optimizer=program.optimizer)


def replaced(old: str, new: str) -> Edit:
    """Replace the only match of a pattern."""

    def edit(text: str) -> str:
        assert len(re.findall(old, text)) == 1, (old, re.findall(old, text))
        return re.sub(old, new, text)

    return edit


def in_train(edit: Edit) -> Edit:
    """Edit the training program only."""
    return lambda text: edit(text[: text.index("def eval(")]) + text[text.index("def eval(") :]


def found(program: Program) -> str:
    """What check mode says of a program."""
    with pytest.raises(InstructionError) as caught:
        piper.check(program, token_loss, make_batch())
    assert isinstance(caught.value.__cause__, CheckError)
    return str(caught.value)


# What is right.


def test_every_value_of_a_step_and_an_evaluation_is_compared(program: Program) -> None:
    summary = piper.check(program, token_loss, make_batch(), steps=2)
    assert summary.compared > 400
    assert summary.unknown == 0
    assert summary.gap < 1e-13
    assert str(summary).startswith(f"{summary.compared} values equal those of the single process, ")


@pytest.mark.parametrize(
    ("order", "stages"), [("ZBH1", 2), ("DualPipe", 2), ("DualPipeV", 4), ("Interleaved1F1B", 4)]
)
def test_other_schedules_pass_whatever_their_chunks_are(order: str, stages: int) -> None:
    strategy = make_strategy(order, stages=stages)
    made = piper.compile(make_model(), token_loss, strategy, make_batch())
    transport = LocalTransport(seed=3, delays=True)
    summary = piper.check(made, token_loss, make_batch(), transport=transport)
    assert summary.compared > 200
    assert summary.gap < 1e-13


@pytest.mark.parametrize("reduce", ["last", "each"])
@pytest.mark.parametrize("zero", [1, 2, 3])
def test_sharded_states_pass_with_gradients_in_a_wider_dtype(zero: int, reduce: str) -> None:
    """The step of the IR has gathers, conversions and reductions, which one process has not."""
    strategy = make_strategy(
        "ZBVZeroBubble", stages=4, zero=zero, reduce=reduce, reduce_dtype=torch.float64
    )
    made = piper.compile(make_model().float(), token_loss, strategy, make_batch())
    converts = "r.convert(" in made.texts[STAGE_1]
    summary = piper.check(made, token_loss, make_batch(), steps=2)
    assert converts == (reduce == "each")
    assert summary.compared > 400
    assert summary.unknown == 0
    assert summary.gap < 1e-5


def test_a_trainer_that_checks_trains_as_one_that_does_not(program: Program) -> None:
    reference = piper.Reference(program, token_loss, make_batch())
    checked, plain = Trainer(program, check=reference), Trainer(program)
    for step in range(3):
        assert checked.step(make_batch(step)).loss == plain.step(make_batch(step)).loss
    assert checked.evaluate(make_batch(7)) == plain.evaluate(make_batch(7))
    assert plain.checked is None
    assert checked.checked is not None
    assert checked.checked.compared > 600


# What is wrong with a program.


def test_a_wrong_kernel(program: Program) -> None:
    """The kernel of layer 1's backward is off by a tenth of a percent."""
    text = program.texts[STAGE_0]
    [kernel] = re.findall(r"def layer_1_B\(.*\n(?:    .*\n)*?    .* = k\.(\w+)\(", text)
    wrong = replaced(rf"(def {kernel}\((?:.*\n)*?    return )(\w+)", r"\1\2 * 1.001")
    said = found(edited(program, KERNELS, wrong))
    assert said.startswith("rank 0 (pp 0, dp 0), program_pp0.py:")
    assert "chunk layer_1_B, microbatch 0: CheckError: result 0 differs from the single" in said
    assert re.search(
        r"by 1\.0e-03 of the largest element, bound 1e-09, first at \[0, 0, 0\]:", said
    )
    assert re.search(r"; its operands are right\nfrom 0B0 .*shared_model\.py:\d+.*, order$", said)


def test_a_wrong_operand(program: Program) -> None:
    """Layer 1 runs on the values of another microbatch."""
    wrong = in_train(
        replaced(r"r\.run\(layer_1_F, layer_0_F1_m1, ", "r.run(layer_1_F, layer_0_F1_m0, ")
    )
    said = found(edited(program, STAGE_0, wrong))
    assert "chunk layer_1_F, microbatch 1: CheckError: result 0 differs from" in said
    assert "; operand 0 is not the one it takes: program_pp0.py:" in said
    assert ": `layer_0_F0_m0, layer_0_F1_m0 = r.run(layer_0_F, " in said


def test_a_wrong_message(program: Program) -> None:
    wrong = in_train(replaced(r"r\.send\(layer_1_F1_m1, ", "r.send(layer_1_F1_m0, "))
    said = found(edited(program, STAGE_0, wrong))
    assert "`e_4 = r.send(layer_1_F1_m0, " in said
    assert (
        "CheckError: expected to send result 1 of chunk layer_1_F, microbatch 1, "
        "got result 1 of chunk layer_1_F, microbatch 0" in said
    )


def test_a_message_that_arrives_damaged(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where both ends agree on what it is."""
    clone = Tensor.clone

    def damaged(value: Tensor, **options: Any) -> Tensor:
        copy = clone(value, **options)
        return copy.neg_() if value.shape == (2, 5, 12) else copy

    monkeypatch.setattr("piper_runtime.transports.local.Tensor.clone", damaged)
    said = found(program)
    assert "r.recv(comm='send$0.1'" in said
    assert "microbatch 0: CheckError: result 0 differs from the single process by 2.0e+00" in said
    assert "operands" not in said
    assert re.search(r"\nfrom .*shared_model\.py:\d+ \(layers\.1\), place$", said)


def test_messages_say_what_they_carry_without_check_mode(program: Program) -> None:
    """Two receives change places at one end only."""
    text = program.texts[STAGE_1]
    swap = {"mb=0, label='layer.1$F#1'": "mb=1, label='layer.1$F#1'"}
    swap |= {value: key for key, value in swap.items()}
    train = re.sub("|".join(map(re.escape, swap)), lambda m: swap[m[0]], text.split("def eval(")[0])
    wrong = edited(program, STAGE_1, lambda text: train + "def eval(" + text.split("def eval(")[1])
    message = (
        r"members of a communicator expected one value, got layer\.1\$F#1 of microbatch 0 at rank "
        r"0 .*; layer\.1\$F#1 of microbatch 1 at rank 2 "
    )
    with pytest.raises(InstructionError, match=message):
        Trainer(wrong).step(make_batch())


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        pytest.param(
            r"r\.accumulate\('layers\.1\.weight\$b', layer_1_B1_m2, onto=d_layers_1_weight_b\)",
            "r.accumulate('layers.1.weight$b', layer_1_B1_m2)",
            "chunk layer_1_B, microbatch 1 and others, got nothing",
            id="overwrites",
        ),
        pytest.param(
            r"(    d_layers_1_weight_b = r\.accumulate\('layers\.1\.weight\$b', layer_1_B1_m2, .*\n)",
            r"\1\1",
            "every gradient once, got result 1 of chunk layer_1_B, microbatch 2 twice",
            id="doubled",
        ),
        pytest.param(
            r"    d_layers_1_weight_b = r\.accumulate\('layers\.1\.weight\$b', layer_1_B1_m2, .*\n",
            "",
            "the sum of all gradients of layers.1.weight$b, got it without result 1 of chunk "
            "layer_1_B, microbatch 2",
            id="missing",
        ),
        pytest.param(
            r"r\.accumulate\('layers\.0\.weight\$b', layer_0_B1_m1, ",
            "r.accumulate('layers.0.weight$b', layer_1_B1_m1, ",
            "a gradient of layers.0.weight$b, got result 1 of chunk layer_1_B, microbatch 1",
            id="foreign",
        ),
    ],
)
def test_a_wrong_accumulation(program: Program, old: str, new: str, said: str) -> None:
    def edit(text: str) -> str:
        text = replaced(old, new)(text)
        return re.sub(r"    r\.free\(layer_1_B1_m1\).*\n", "", text)  # it may be used later now

    report = found(edited(program, STAGE_0, in_train(edit)))
    assert (
        f"CheckError: expected {said}" in report
        or f"CheckError: expected to add onto result 1 of {said}" in report
    )
    assert re.search(r"\nfrom .*shared_model\.py:\d+", report)


@pytest.mark.parametrize(
    ("file", "old", "new", "said"),
    [
        pytest.param(
            STAGE_1,
            r"r\.update\('embed\.weight\$b', all_d_embed_weight_b, norm=all_squares, clip=0\.5, ",
            "r.update('embed.weight$b', all_d_embed_weight_b, norm=all_squares, clip=0.25, ",
            "embed.weight$b: CheckError: result 0 differs from the single process",
            id="update",
        ),
        pytest.param(
            STAGE_1,
            r"r\.sum\(preamble_P0_m0, preamble_P0_m1, ",
            "r.sum(preamble_P0_m0, preamble_P0_m0, ",
            ": CheckError: expected to add every value once, got result 0 of chunk preamble_P0, "
            "microbatch 0 twice",
            id="doubled count",
        ),
        pytest.param(
            STAGE_1,
            r"r\.sum\(preamble_P0_m0, preamble_P0_m1, ",
            "r.sum(preamble_P0_m0, ",
            "loss: CheckError: result 0 differs from the single process",
            id="missing count",
        ),
        pytest.param(
            STAGE_1,
            r"r\.sum\(head_0_F1_m0, head_0_F1_m1, ",
            "r.sum(head_0_F1_m0, ",
            "loss: CheckError: output 'loss' differs from the single process",
            id="missing loss",
        ),
        pytest.param(
            STAGE_0,
            r"r\.sumsq\(all_d_embed_weight_b, all_d_layers_1_weight_b, ",
            "r.sumsq(all_d_embed_weight_b, ",
            "reduce.pp$0.1: CheckError: result 0 differs from the single process",
            id="norm",
        ),
        pytest.param(
            STAGE_0,
            r"r\.input\('ids', mb=2\)",
            "r.input('ids', mb=1)",
            "; operand 0 is not the one it takes: program_pp0.py:",
            id="input",
        ),
    ],
)
def test_other_wrong_lines(program: Program, file: str, old: str, new: str, said: str) -> None:
    assert said in found(edited(program, file, in_train(replaced(old, new))))


def test_an_operand_that_somebody_writes_to(program: Program) -> None:
    """Layer 0's backward spoils what the embedding's forward made before it is used again."""
    body = r"(def layer_1_F\((\w+), .*\n)"
    said = found(edited(program, STAGE_0, replaced(body, r"\1    \2.mul_(2)\n")))
    assert "CheckError: result 0 differs from the single process" in said
    late = r"(def layer_1_F\((\w+), .*\n(?:    .*\n)*?)(    return .*\n)"
    spoil = replaced(late, r"\1    \2.mul_(2)\n\3")
    said = found(edited(program, STAGE_0, spoil))
    assert "chunk layer_1_B, microbatch 0: CheckError: operand 2 differs from the single" in said
    assert "it was right when program_pp0.py:" in said
    assert ": `layer_0_F0_m0, layer_0_F1_m0 = r.run(layer_0_F, " in said
    assert "had made it, so it was overwritten" in said


def test_a_missing_wait_is_an_error_before_anything_is_compared(program: Program) -> None:
    wrong = in_train(replaced(r"from1_m0, (.*), after=\[e_6\]\)", r"from1_m0, \1)"))
    with pytest.raises(ProgramError, match="is not ready: no event orders"):
        piper.check(edited(program, STAGE_0, wrong), token_loss, make_batch())


def test_the_bound_can_be_wider(program: Program) -> None:
    text = program.texts[STAGE_0]
    [kernel] = re.findall(r"def layer_1_B\(.*\n(?:    .*\n)*?    .* = k\.(\w+)\(", text)
    wrong = replaced(rf"(def {kernel}\((?:.*\n)*?    return )(\w+)", r"\1\2 * 1.000001")
    with pytest.raises(InstructionError, match="bound 1e-09"):
        piper.check(edited(program, KERNELS, wrong), token_loss, make_batch())
    summary = piper.check(edited(program, KERNELS, wrong), token_loss, make_batch(), bound=1e-3)
    assert 1e-7 < summary.gap < 1e-4


# What is wrong with the step itself.


def test_a_loss_that_is_not_the_captured_one(program: Program) -> None:
    def other_loss(model: nn.Module, batch: Batch) -> Tensor:
        return token_loss(model, batch) * 2

    message = r"train: the loss differs from plain PyTorch by 5.0e-01, .* comes from capture"
    with pytest.raises(CheckError, match=message):
        piper.check(program, other_loss, make_batch())


def test_a_model_that_is_not_the_captured_one(program: Program) -> None:
    class Other(Model):
        def forward(self, ids: Tensor) -> Tensor:
            return super().forward(ids).detach() + 0 * super().forward(ids)

    other = Other().double()
    with pytest.raises(CheckError, match=r"gradient of '.*' differs .* comes from capture"):
        piper.check(program, token_loss, make_batch(), model=other)


def test_a_pass_that_changes_the_step(program: Program) -> None:
    name = "ir/cluster.mlir"
    changed = re.sub(r"aten\.gelu\.default", "aten.relu.default", program.texts[name])
    assert changed != program.texts[name]
    changed = re.sub(r'"aten\.relu\.default"\((%\w+)[^)]*\)', r'"aten.relu.default"(\1)', changed)
    texts = {**program.texts, name: changed}
    texts = seal(texts, program.constants)
    wrong = Program(texts, model=program.model, optimizer=program.optimizer)
    with pytest.raises(CheckError, match="comes from a pass on the captured step"):
        piper.check(wrong, token_loss, make_batch())


# What check mode needs.


def test_other_options_are_those_of_the_trainer(program: Program) -> None:
    fault = "rank=1 instruction=embed.0_F action=raise"
    with pytest.raises(
        InstructionError, match=r"rank 1 .*FaultError: this instruction was told to"
    ):
        piper.check(program, token_loss, make_batch(), fault=fault)


class Others(LocalTransport):
    """A transport whose other processes say something else."""

    def gather(self, value: Any) -> list[Any]:
        return [value, not value]


def test_all_ranks_check_or_none(program: Program) -> None:
    reference = piper.Reference(program, token_loss, make_batch())
    for oracle, ranks in ((reference, r"\[0\]"), (None, r"\[1\]")):
        message = f"check expected on all ranks or none, got it on ranks {ranks}"
        with pytest.raises(ValueError, match=message):
            make_checker(oracle, program.manifest, Others())


def test_what_check_mode_needs_is_named(program: Program) -> None:
    saved = Program(program.texts)
    with pytest.raises(ValueError, match="check mode expected a model, got none"):
        piper.check(saved, token_loss, make_batch())
    bare = {name: text for name, text in program.texts.items() if not name.startswith("ir/")}
    with pytest.raises(ValueError, match="check mode expected the program's IR, got none"):
        piper.check(Program(seal(bare, {}), model=make_model()), token_loss, make_batch())
    without = Program(program.texts, model=make_model())
    assert without.optimizer is None
    summary = piper.check(without, token_loss, make_batch())
    assert summary.unknown == 0
    assert torch.get_num_threads() == 1
