"""Check mode where ranks share out weights, sequences or experts: every value of every rank."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import piper
import pytest
import sequence_models
import small_moe
import small_tensors
import torch
from oracle import BOUND
from piper_runtime import CheckError, InstructionError, Program
from piper_runtime.checking.gaps import Summary
from piper_runtime.program import seal
from planted import planted, said_of, scaled_kernel
from sequence_models import Sequences
from small_gpt import token_loss
from small_moe import Experted
from small_tensors import Tensors
from strategies import Captures
from torch import nn
from torchrun import saved_by_ranks, torchrun

STAGE_0, STAGE_1 = "program_pp0.py", "program_pp1.py"
DENSE = small_tensors.Config()
MIXED = sequence_models.Config(experts=True)

TENSORS = Tensors("1F1B", 2, 1, 2)
PARALLEL = Tensors("1F1B", 2, 1, 2, sequence=True)
CONTEXT = Sequences("1F1B", 2, 0, 2, cp=2)
EXPERTS = Experted("1F1B", 2, 1, 2, ep=2)

Case = Tensors | Sequences | Experted


def parts_of(case: Case, *, experts: bool = False) -> tuple[Any, Captures, Callable[..., Any]]:
    """The module of a case, its captures and its loss."""
    match case:
        case Tensors():
            return small_tensors, small_tensors.captures(DENSE), token_loss
        case Experted():
            return small_moe, small_moe.captures(), small_moe.token_loss
        case Sequences():
            config = MIXED if experts else sequence_models.Config()
            return sequence_models, sequence_models.captures(config), sequence_models.token_loss


@cache
def compiled(
    case: Case, *, experts: bool = False
) -> tuple[Program, Callable[..., Any], Any, nn.Module]:
    """A program, and what it is checked with: the loss, a batch, the model."""
    module, captures, loss = parts_of(case, experts=experts)
    (batch,) = module.batches(case, steps=1)
    return captures.compile(case.plan(), batch), loss, batch, captures.model


def checked(case: Case, *, experts: bool = False, steps: int = 1) -> Summary:
    program, loss, batch, model = compiled(case, experts=experts)
    return piper.check(program, loss, batch, model=model, bound=BOUND, steps=steps)


def said(case: Case, edit: Callable[[Program], Program]) -> str:
    program, loss, batch, model = compiled(case)
    return said_of(edit(program), loss, batch, model)


# What is right.


@pytest.mark.parametrize("case", [TENSORS, PARALLEL, CONTEXT, EXPERTS], ids=str)
def test_every_value_of_every_rank_is_compared(case: Case) -> None:
    """Local parts, terms of sums and exchanged rows: none has no counterpart."""
    summary = checked(case)
    assert summary.compared > 400
    assert summary.unknown == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    "case",
    [
        Tensors("ZBVZeroBubble", 2, 2, 4, zero=3, embed="vocabulary", head="width"),
        Tensors("DualPipeV", 2, 2, 4, zero=2, tp=2, remat=piper.remat(policy="full")),
        Tensors("DualPipeV", 2, 2, 4, zero=2, sequence=True),
        Sequences("ZBVZeroBubble", 2, 2, 4, zero=3, cp=2),
        Sequences("1F1B", 0, 0, 1, cp=2, tp=2, heads=False),
        Experted("ZBH1", 2, 2, 2, zero=3, ep=2),
        Experted("DualPipeV", 2, 1, 4, zero=2, ep=4),
        Experted("1F1B", 2, 2, 2, rep=2, zero=1, ep=2),
    ],
    ids=str,
)
def test_other_schedules_and_shards_of_states_beside(case: Case) -> None:
    """Also where ranks of a coordinate have no gradients of one kind to add to the norm."""
    summary = checked(case, steps=2)
    assert summary.compared > 1500
    assert summary.unknown == 0


@pytest.mark.slow
def test_experts_beside_tensors() -> None:
    summary = checked(Sequences("1F1B", 0, 2, 2, tp=2, ep=2), experts=True)
    assert summary.compared > 5000
    assert summary.unknown == 0


# What is wrong with a program.


@pytest.mark.parametrize(
    ("case", "chunk"),
    [
        (TENSORS, "layer_0_F1"),  # the residual sum, whole
        (PARALLEL, "layer_0_F3"),  # a part of the sequence
        (CONTEXT, "layer_0_F1"),  # attention of a part to what was gathered
        (EXPERTS, "layer_0_F2"),  # rows that came from other ranks
        pytest.param(TENSORS, "layer_1_B1", marks=pytest.mark.slow),
        pytest.param(EXPERTS, "layer_1_B1", marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_a_wrong_kernel_is_named_by_its_first_chunk(case: Case, chunk: str) -> None:
    """Its kernel may be that of an earlier chunk, too, where it shows first."""
    file = STAGE_0 if chunk.startswith("layer_0") else STAGE_1
    report = said(case, lambda program: scaled_kernel(program, file, chunk))
    assert f"chunk {chunk}, microbatch 0: CheckError: result 0 differs from the single" in report
    assert report.splitlines()[0].endswith("; its operands are right")


def test_a_kernel_whose_terms_are_wrong_is_found_before_the_sum() -> None:
    """Of the terms of a sum every rank's is compared, not the sum alone."""

    def edit(program: Program) -> Program:
        text = program.texts[STAGE_0]
        kernel = text[text.index("def layer_0_F(") :].split(" = k.")[1].split("(")[0]
        last = rf"(def {kernel}\((?:.*\n)*?    return (?:\w+, )*)(\w+)\n"
        return planted(program, "kernels.py", (last, r"\1(\2 * 1.001)\n"))

    report = said(TENSORS, edit)
    assert "chunk layer_0_F, microbatch 0: CheckError: result 5 differs from the single" in report


@pytest.mark.parametrize(
    ("case", "change", "chunk", "operand", "maker"),
    [
        pytest.param(
            TENSORS,
            (r"r\.run\(layer_0_F1, all_layer_0_F5_m1, ", "r.run(layer_0_F1, layer_0_F5_m1, "),
            "layer_0_F1, microbatch 1",
            0,
            "layer_0_F5_m1 = r.run(layer_0_F, ",
            id="a dropped all_reduce",
        ),
        pytest.param(
            TENSORS,
            (r"r\.run\(layer_0_B1, all_layer_0_B2_m0, ", "r.run(layer_0_B1, layer_0_B2_m0, "),
            "layer_0_B1, microbatch 0",
            0,
            "r.run(layer_0_B, ",
            id="a dropped all_reduce of a gradient",
        ),
        pytest.param(
            PARALLEL,
            (r"= r\.all_gather\(layer_0_F11_m1, ", "= r.all_gather(layer_0_F10_m1, "),
            "layer_0_F2, microbatch 1",
            0,
            "r.all_gather(layer_0_F10_m1, ",
            id="a gather of something else",
        ),
        pytest.param(
            CONTEXT,
            (
                r"whole_layer_0_F1_m0, whole_layer_0_F2_m0, first_0_F_m0",
                "whole_layer_0_F2_m0, whole_layer_0_F1_m0, first_0_F_m0",
            ),
            "layer_0_F1, microbatch 0",
            1,
            "r.all_gather(layer_0_F2_m0, ",
            id="keys and values in each other's place",
        ),
        pytest.param(
            EXPERTS,
            (
                r"r\.run\(layer_0_B2, layer_0_collect_m0_2, ",
                "r.run(layer_0_B2, layer_0_collect_m0, ",
            ),
            "layer_0_B2, microbatch 0",
            0,
            "r.all_to_all(layer_0_F23_m0, ",
            id="rows of the forward pass",
        ),
    ],
)
def test_a_wrong_exchange(
    case: Case, change: tuple[str, str], chunk: str, operand: int, maker: str
) -> None:
    """The chunk that gets it is the first whose result differs, and what it got is named."""
    report = said(case, lambda program: planted(program, STAGE_0, change))
    assert f"chunk {chunk}: CheckError: result " in report
    assert f"; operand {operand} is not the one it takes: {STAGE_0}:" in report
    assert maker in report.split("is not the one it takes")[1]


def test_a_message_that_is_not_what_was_exchanged() -> None:
    """Its label says what it is of, and how ranks have exchanged it."""
    change = (
        r"r\.send\(whole_layer_1_B\w*_m0, (.*label='layer\.1\$B\d#\d\.all_gather#0')",
        r"r.send(layer_1_B10_m0, \1",
    )
    report = said(PARALLEL, lambda program: planted(program, STAGE_1, change))
    assert "r.send(" in report
    assert "CheckError: expected to send all_gather layer_1_B" in report
    assert ", got result 0 of chunk layer_1_B1, microbatch 0" in report


def test_rows_that_arrive_in_another_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """The exchange itself is named: all chunks before it were right, and so were counts."""
    cat = torch.cat

    def reversed_rows(parts: Any, dim: int = 0) -> Any:
        return cat([part.flip(dim) for part in parts], dim)

    program, loss, batch, model = compiled(EXPERTS)
    reference = piper.Reference(program, loss, batch, model=model)
    trainer = piper.Trainer(program, model=model, check=reference, transport="local")
    expect = reference.expect

    def expect_first(*arguments: Any, **named: Any) -> Any:
        expected = expect(*arguments, **named)
        monkeypatch.setattr("piper_runtime.transports.local.torch.cat", reversed_rows)
        return expected

    monkeypatch.setattr(reference, "expect", expect_first)
    with pytest.raises(InstructionError) as caught:
        trainer.step(batch)
    monkeypatch.undo()
    assert "r.all_to_all(layer_0_F11_m0, " in str(caught.value)
    assert "CheckError: result 0 differs from the single process" in str(caught.value)


def test_a_gradient_that_is_summed_over_too_many_ranks() -> None:
    """That of experts is summed over their copies, not over ranks that have others."""
    case = Experted("1F1B", 0, 2, 2, ep=2)

    def edit(program: Program) -> Program:
        old = r"r\.all_reduce\(d_layers_1_experts_gate_b, comm='reduce\.edp\$0', stream='[^']*'"
        new = (
            "r.all_reduce(d_layers_1_experts_gate_b, comm='reduce.edp.ep$0', "
            "stream='reduce.edp.ep$0'"
        )
        return planted(program, "program_0.py", (old, new))

    report = said(case, edit)
    assert "`all_d_layers_1_experts_gate_b, " in report
    assert (
        "CheckError: expected to add up the gradient of layers.1.experts.gate$b over ranks that "
        "have terms of it, [0, 2], got also rank 1" in report
    )


@pytest.mark.slow
def test_processes_compare_each_their_own(tmp_path: Path) -> None:
    """Two of them over gloo: each runs the whole batch by itself, and finds what is wrong."""
    done = torchrun(Path(__file__).with_name("check_worker.py"), tmp_path, count=2)
    for seen in saved_by_ranks(tmp_path, done, count=2):
        assert seen.keys() == {"tensors", "context", "experts"}
        for compared, unknown, report in seen.values():
            assert compared > 300
            assert unknown == 0
            assert "chunk layer_0_F1, microbatch 0: CheckError: result 0 differs" in report


# What is wrong with the step itself.


def test_positions_that_ranks_do_not_have() -> None:
    """With another index of a rank its mask is another one, in the IR as in the program."""
    program, loss, batch, model = compiled(CONTEXT)
    constants = {**program.constants, "cp$index": program.constants["cp$index"].flip(0)}
    wrong = planted(program, STAGE_0, constants=constants)
    with pytest.raises(CheckError, match=r"plain PyTorch .*; the .* comes from capture or a pass$"):
        piper.check(wrong, loss, batch, model=model)


@pytest.mark.parametrize("case", [TENSORS, EXPERTS], ids=str)
def test_a_pass_that_changes_the_step_of_a_rank(case: Case) -> None:
    program, loss, batch, model = compiled(case)
    name, op = "ir/cluster.mlir", "gelu" if case is TENSORS else "silu"
    text = program.texts[name].replace(f"aten.{op}.default", "aten.tanh.default")
    assert text != program.texts[name]
    wrong = Program(
        seal({**program.texts, name: text}, program.constants),
        constants=program.constants,
    )
    with pytest.raises(CheckError, match="comes from a pass on the captured step"):
        piper.check(wrong, loss, batch, model=model, optimizer=program.optimizer)
