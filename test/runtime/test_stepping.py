"""Stepping: a call on the local transport instruction by instruction, and orders at random."""

from __future__ import annotations

import re
from collections.abc import Callable

import piper
import pytest
import shared_model
import torch
from mlp_program import TiedMlp, edited, make_batch, make_sgd, program_texts
from piper_runtime import (
    DeadlockError,
    InstructionError,
    LocalTransport,
    Program,
    ProgramError,
    Stepper,
    Trainer,
)
from piper_runtime.checks import record_program
from torch import Tensor

STAGE_0, STAGE_1 = "program_pp0.py", "program_pp1.py"


def trainer(program: Program | None = None, *, transport: LocalTransport | None = None) -> Trainer:
    program = Program(program_texts()) if program is None else program
    return Trainer(program, model=TiedMlp(), optimizer=make_sgd, transport=transport)


def begin(**options: str) -> Stepper:
    return trainer().stepper(make_batch(0), **options)


# Stepping.


@pytest.mark.parametrize("seed", [None, 1])
def test_stepping_executes_each_instruction_once_and_ends_as_a_step(seed: int | None) -> None:
    stepped, whole = trainer(transport=LocalTransport(seed=seed)), trainer()
    for step in range(2):
        stepper, executed = stepped.stepper(make_batch(step)), []
        for members in stepper:
            assert all(member.done for member in members)
            executed += members
        program = Program(program_texts()).load(torch.device("cpu"))
        sizes = [len(record_program(program, "train", rank)) for rank in range(4)]
        assert len(executed) == len(set(executed)) == sum(sizes)
        outputs = stepper.finish()
        assert outputs["loss"] == whole.step(make_batch(step)).loss
        assert stepped.steps == step + 1
    expected = whole.full_state_dict()
    assert all(torch.equal(v, expected[n]) for n, v in stepped.full_state_dict().items())


def test_a_message_is_executed_with_both_ends_and_a_collective_with_all() -> None:
    for members in begin():
        kinds = [member.kind for member in members]
        if members[0].message is None:
            assert len(members) == 1
        elif members[0].message.peer >= 0:
            assert sorted(kinds) == ["recv", "send"]
        else:
            ranks = tuple(member.rank.home.index for member in members)
            assert ranks == members[0].message.comm.members


def test_running_until_an_instruction_stops_before_it() -> None:
    stepper = begin()
    found = stepper.run_until("layer.1_B mb 1", rank=2)
    assert "`d1_1, g1_1 = r.run(layer_1_B, " in found.describe()
    assert stepper.upcoming is found
    assert repr(stepper) == f"<Stepper: next {found.describe()}>"
    assert not found.done
    assert stepper.step() == [found]
    found = stepper.run_until("send pp$1.0 mb 1")
    assert (found.kind, found.microbatch) == ("send", 1)
    found = stepper.run_until(f"{STAGE_0}:70")
    assert found.place().startswith(f"{STAGE_0}:70: ")
    with pytest.raises(ValueError, match=r"an instruction of what is left of rank 2, such as "):
        stepper.run_until("layer.1_B mb 0", rank=2)
    with pytest.raises(ValueError, match=r"expected a rank of \[0, 1, 2, 3\], got 4"):
        stepper.run_until("layer.1_B mb 3", rank=4)
    stepper.finish()
    assert stepper.upcoming is None
    assert repr(stepper) == "<Stepper: at the end>"
    with pytest.raises(RuntimeError, match="step expected an instruction that is left, got none"):
        stepper.step()


def test_values_are_those_of_the_variables_of_a_rank() -> None:
    stepper, model, batch = begin(), TiedMlp(), make_batch(0)
    with pytest.raises(RuntimeError, match=r"operand is not ready: it comes from program_pp1"):
        stepper.value("x2_0", rank=2)
    stepper.run_until("head_F mb 0", rank=2)
    ids = batch["ids"].chunk(2)[0].chunk(4)[0]
    assert torch.equal(stepper.value("ids_0", rank=0), ids)
    hidden = torch.relu(model.layers[0](model.embed(ids)))
    assert torch.allclose(stepper.value("x1_0", rank=2), hidden)
    assert torch.allclose(stepper.value("x2_0", rank=2), torch.relu(model.layers[1](hidden)))
    assert set(stepper.values(rank=2)) >= {"pe", "p1", "labels_0", "N", "t", "x1_0", "x2_0", "r1_0"}
    assert "l_0" not in stepper.values(rank=2)
    stepper.run_until("accumulate layers.1.weight$b", rank=2)
    assert [part.shape for part in stepper.value("g1_0", rank=2)] == [(16, 16), (16,)]
    stepper.run_until("layer.1_B mb 1", rank=2)
    with pytest.raises(RuntimeError, match=r"operand was freed: by program_pp1.py:\d+: `r.free"):
        stepper.value("g1_0", rank=2)
    with pytest.raises(
        ValueError, match=r"a variable of the program of rank 2, such as '.*got 'x9"
    ):
        stepper.value("x9", rank=2)


def test_a_variable_that_is_bound_again_has_its_last_value() -> None:
    old = 'r.accumulate("layers.0.weight$b", g0_{m}, onto=A_{p})'
    pairs = []
    for m in (1, 2, 3):
        line = f"A_{m} = {old}".format(m=m, p=m - 1)
        new = line.replace(f"A_{m} =", "A =").replace(f"onto=A_{m - 1}", "onto=A")
        pairs.append((line, new))
    pairs.append(
        (
            'A_0 = r.accumulate("layers.0.weight$b", g0_0)',
            'A = r.accumulate("layers.0.weight$b", g0_0)',
        )
    )
    pairs.append(("G, f0 = r.all_reduce(A_3,", "G, f0 = r.all_reduce(A,"))
    stepper = trainer(edited(STAGE_0, *pairs)).stepper(make_batch(0))
    sums: list[Tensor] = []
    for mb in (1, 2, 3):
        stepper.run_until(f"layer_0_B mb {mb}", rank=0)
        sums.append(stepper.value("A", rank=0).clone())
    assert not torch.equal(sums[0], sums[1])
    assert not torch.equal(sums[1], sums[2])


def test_evaluation_can_be_stepped_too() -> None:
    whole = trainer()
    outputs = whole.stepper(make_batch(3), entry_point="eval").finish()
    assert outputs == {"loss": whole.evaluate(make_batch(3))}
    assert whole.steps == 0


def test_one_call_at_a_time() -> None:
    stepped = trainer()
    stepper = stepped.stepper(make_batch(0))
    stepper.step()
    with pytest.raises(RuntimeError, match="train expected no stepper that is not finished"):
        stepped.step(make_batch(0))
    with pytest.raises(RuntimeError, match="eval expected no stepper"):
        stepped.stepper(make_batch(0), entry_point="eval")
    stepper.close()
    assert stepper.upcoming is None
    stepped.step(make_batch(0))


def test_errors_while_stepping_are_those_of_a_step() -> None:
    program = edited(STAGE_1, ("k.linear_relu_backward(dy, x, r, w)", "k.linear_relu_backward(1)"))
    stepper = trainer(program).stepper(make_batch(0))
    stepper.run_until("layer_1_B mb 0")
    with pytest.raises(InstructionError, match="chunk layer_1_B, microbatch 0: TypeError"):
        stepper.step()
    assert stepper.upcoming is None
    stuck = edited(
        STAGE_1,
        ('    s_3 = r.send(d1_3, comm="pp$1.0", peer=0, stream="pp$1.0", mb=3, after=[c_3])\n', ""),
        ("    r.free(d1_3, after=[s_3])\n", ""),
    )
    with pytest.raises(DeadlockError, match="deadlock, no stream can go on"):
        trainer(stuck).stepper(make_batch(0)).finish()


def test_only_the_local_transport_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    other = trainer()
    monkeypatch.setattr("piper_runtime.trainer.LocalTransport", int)
    with pytest.raises(TypeError, match="stepper expected the local transport, got local"):
        other.stepper(make_batch(0))


# Orders and delays at random.


@pytest.mark.parametrize(("single_queue", "delays"), [(False, True), (True, False)])
def test_orders_and_delays_do_not_change_a_bit(single_queue: bool, delays: bool) -> None:
    expected = outcome(LocalTransport())
    for seed in range(5):
        transport = LocalTransport(seed=seed, single_queue=single_queue, delays=delays)
        assert same(outcome(transport), expected)


@pytest.mark.slow
def test_two_hundred_orders_and_delays_do_not_change_a_bit() -> None:
    expected = outcome(LocalTransport())
    for seed in range(200):
        assert same(outcome(LocalTransport(seed=seed, delays=True)), expected), seed


@pytest.mark.slow
@pytest.mark.parametrize(("order", "stages"), [("ZBVZeroBubble", 4), ("DualPipe", 2)])
def test_two_hundred_orders_of_a_compiled_program(order: str, stages: int) -> None:
    """Several streams per rank, halves of backwards, tied weights; loss, norm and all states."""
    strategy = shared_model.make_strategy(order, stages=stages)
    model, batch = shared_model.make_model(), shared_model.make_batch()
    program = piper.compile(model, shared_model.token_loss, strategy, batch)

    def run(transport: LocalTransport) -> Outcome:
        made = Trainer(program, transport=transport)
        result = made.step(batch)
        return [result.loss, result.grad_norm or 0.0], made.full_state_dict()

    expected = run(LocalTransport())
    assert expected[0][1] > 0
    for seed in range(200):
        assert same(run(LocalTransport(seed=seed, delays=True)), expected), seed


def test_delays_let_a_stream_come_late_and_need_a_seed() -> None:
    with pytest.raises(ValueError, match="delays of streams expected a seed, got none"):
        LocalTransport(delays=True)
    apart = []
    for delays in (False, True):
        far = 0
        for seed in range(10):
            transport = LocalTransport(seed=seed, delays=delays)
            order: list[tuple[int, int]] = []
            transport.observer = lambda i, *_, order=order: order.append(
                (i.rank.home.index, i.number)
            )
            trainer(transport=transport).step(make_batch(0))
            last = {
                rank: max(i for i, (r, _) in enumerate(order) if r == rank) for rank in range(4)
            }
            first = {
                rank: min(i for i, (r, _) in enumerate(order) if r == rank) for rank in range(4)
            }
            far = max(far, max(first.values()) - min(first.values()))
            assert set(last) == set(range(4))
        apart.append(far)
    assert apart[1] > apart[0]


Outcome = tuple[list[float], dict[str, Tensor]]


def outcome(transport: LocalTransport, program: Program | None = None) -> Outcome:
    """Loss and norm of two steps, and the states after them."""
    run = trainer(program, transport=transport)
    results = [run.step(make_batch(step)) for step in range(2)]
    numbers = [n for r in results for n in (r.loss, r.grad_norm) if n is not None]
    return numbers, run.full_state_dict()


def same(one: Outcome, other: Outcome) -> bool:
    return one[0] == other[0] and all(torch.equal(one[1][name], other[1][name]) for name in one[1])


PLANTED: dict[str, tuple[str, Callable[[str], str]]] = {
    "a chunk does not wait for what it receives": (
        STAGE_0,
        lambda text: text.replace(
            "d1_2, x0_2, r0_2, p0, mb=2, after=[v_2])", "d1_2, x0_2, r0_2, p0, mb=2)"
        ),
    ),
    "a value is freed while it is sent": (
        STAGE_0,
        lambda text: re.sub(
            r"(    s_1 = r.send\(x1_1.*\n)((?:.*\n)*?)    r.free\(x1_1, after=\[s_1\]\)\n",
            r"\1    r.free(x1_1)\n\2",
            text,
            count=1,
        ),
    ),
    "a gradient is reduced before the last one was added": (
        STAGE_1,
        lambda text: re.sub(
            r"(    A_3 = r.accumulate.*\n(?:.*\n)*?)    z = r.record\(\)\n",
            r"    z = r.record()\n\1",
            text,
            count=1,
        ),
    ),
}


def planted(name: str) -> Program:
    file, edit = PLANTED[name]
    text = edited(STAGE_0).texts[file]
    changed = edit(text)
    assert changed != text
    return edited(file, (text, changed))


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_missing_wait_is_found_by_random_orders(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if programs were not checked before they run, which finds all of these as well."""
    with pytest.raises(ProgramError, match=r"is not ready|still in use"):
        trainer(planted(name))
    monkeypatch.setattr("piper_runtime.checks._check_order", lambda instructions: None)
    expected, wrong = outcome(LocalTransport()), []
    for seed in range(20):
        try:
            found = outcome(LocalTransport(seed=seed, delays=True), planted(name))
            wrong += [] if same(found, expected) else ["other bits"]
        except InstructionError as error:
            wrong.append(str(error))
    assert wrong
    assert all(re.search(r"operand (is not ready|was freed)", text) for text in wrong)
