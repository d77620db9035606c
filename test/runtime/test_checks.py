"""Programs with a planted mistake are refused before anything runs, or fail with its line."""

from __future__ import annotations

import pytest
from mlp_program import TiedMlp, edited, make_batch, make_sgd
from piper_runtime import (
    DeadlockError,
    InstructionError,
    LocalTransport,
    Program,
    ProgramError,
    Trainer,
)

STAGE_0, STAGE_1 = "program_pp0.py", "program_pp1.py"


def trainer(program: Program, transport: LocalTransport | None = None) -> Trainer:
    return Trainer(program, model=TiedMlp(), optimizer=make_sgd, transport=transport)


@pytest.mark.parametrize(
    ("file", "old", "new", "message"),
    [
        pytest.param(
            STAGE_0,
            "d1_2, x0_2, r0_2, p0, mb=2, after=[v_2])",
            "d1_2, x0_2, r0_2, p0, mb=2)",
            r"rank 0 \(pp 0, dp 0\), program_pp0.py:\d+: `d0_2, g0_2 = r.run.*`, "
            r"chunk layer_0_B, microbatch 2: operand of .*:\d+: `d1_2, v_2 = r.recv.*` is not ready"
            r": no event orders .* on stream pp\$1.0 before it on stream compute",
            id="receive without an event",
        ),
        pytest.param(
            STAGE_1,
            'mb=1, after=[c_1])',
            "mb=1)",
            r"`s_1 = r.send\(d1_1.*operand of .*layer_1_B, d2_1.* is not ready",
            id="send without an event",
        ),
        pytest.param(
            STAGE_0,
            "r.free(x1_1, after=[s_1])",
            "r.free(x1_1)",
            r"`r.free\(x1_1\)`: operand of .* is still in use: no event orders .*`s_1 = r.send",
            id="free during a send",
        ),
        pytest.param(
            STAGE_1,
            "    r.free(d2_0, x1_0, r1_0, g1_0)\n",
            "    r.free(d2_0, x1_0, r1_0, g1_0, lp_0)\n",
            r"`r.free\(d2_0.*operand of .* was freed by .*`r.free\(x2_0, lp_0",
            id="double free",
        ),
        pytest.param(
            STAGE_0,
            "    A_3 = r.accumulate",
            "    r.run(embed_B, x0_0, ids_3)\n    A_3 = r.accumulate",
            r"`r.run\(embed_B, x0_0, ids_3\)`.*operand of .*`x0_0 = .* was freed by .*`r.free\(d1_0",
            id="use after free",
        ),
        pytest.param(
            STAGE_0,
            "A_2 = r.accumulate(\"layers.0.weight$b\", g0_2, onto=A_1)",
            "A_2 = r.accumulate(\"layers.0.weight$b\", g0_2, onto=A_0)",
            r"`A_2 = .*operand of .*`A_0 = .* was overwritten by .*`A_1 = ",
            id="accumulation onto an old gradient",
        ),
        pytest.param(
            STAGE_0,
            '    r.output("grad_norm", S, scale=None)\n',
            '    r.output("grad_norm", p0)\n',
            r"operand of .*`p0 = r.read.* was overwritten by .*`r.update\(\"layers.0",
            id="old value after the update",
        ),
        pytest.param(
            STAGE_0,
            'comm="dp$0", stream="dp"',
            'comm="dp$0.1", stream="other"',
            r"comm expected on stream other as in .*`G, f0 = .*, got dp",
            id="one communicator on two streams",
        ),
        pytest.param(
            STAGE_0,
            'comm="dp$0", stream="dp"',
            'comm="dp$1", stream="dp"',
            r"rank 0 \(pp 0, dp 0\) expected a comm of \['pp\$0.1', .*\], got 'dp\$1'",
            id="foreign communicator",
        ),
        pytest.param(
            STAGE_0,
            'r.update("layers.0.weight$b"',
            'r.update("layers.1.weight$b"',
            r"expected a bucket of \['embed.weight\$b', 'layers.0.weight\$b'\], got 'layers.1",
            id="foreign bucket",
        ),
        pytest.param(
            STAGE_0,
            'r.update("layers.0.weight$b", G, norm=S,',
            'r.update("layers.0.weight$b", G,',
            r"update of 'layers.0.weight\$b' with clip=0.05 expected a norm, got none",
            id="clip without a norm",
        ),
        pytest.param(
            STAGE_0,
            'd1_3, v_3 = r.recv(comm="pp$1.0", peer=1',
            'd1_3, v_3 = r.recv(comm="pp$1.0", peer=2',
            r"rank 0 \(pp 0, dp 0\) expected a peer below 2, got 2",
            id="no such peer",
        ),
        pytest.param(
            STAGE_0,
            '    r.output("grad_norm", S, scale=None)\n',
            '    r.send(S, comm="pp$0.1", peer=0, stream="pp$0.1", after=[f2])\n',
            r"`r.send\(S.*peer expected another rank, got itself",
            id="message to itself",
        ),
        pytest.param(
            STAGE_0,
            "d1_2, x0_2, r0_2, p0, mb=2, after=[v_2])",
            "d1_2, x0_2, r0_2, p0, mb=2, after=[d1_2])",
            r"`d0_2, g0_2 = r.run.*microbatch 2: after expected earlier events, got a Handle",
            id="a value instead of its event",
        ),
    ],
)  # fmt: skip
def test_mistakes_are_found_before_anything_runs(
    file: str, old: str, new: str, message: str
) -> None:
    with pytest.raises(ProgramError, match=message):
        trainer(edited(file, (old, new)))


def test_every_loss_must_be_an_output() -> None:
    texts = edited(STAGE_1).texts
    renamed = texts[STAGE_1].replace('r.output("loss"', 'r.output("los"')
    program = edited(STAGE_1, (texts[STAGE_1], renamed))
    message = r"'train' expected to output loss 'loss', got outputs \['grad_norm', 'los'\]"
    with pytest.raises(ProgramError, match=message):
        trainer(program)


def test_a_deadlock_lists_every_stuck_head() -> None:
    """Stage 0 sends the gradients' norm only after a message that stage 1 never sends."""
    program = edited(
        STAGE_1,
        ('    s_3 = r.send(d1_3, comm="pp$1.0", peer=0, stream="pp$1.0", mb=3, after=[c_3])\n', ""),
        ("    r.free(d1_3, after=[s_3])\n", ""),
    )
    with pytest.raises(DeadlockError) as caught:
        trainer(program).step(make_batch(0))
    report = str(caught.value).splitlines()
    assert report[0] == "deadlock, no stream can go on:"
    [recv] = [line for line in report if "rank 0" in line and "stream pp$1.0:" in line]
    assert "`d1_3, v_3 = r.recv(" in recv
    assert recv.endswith("microbatch 3, stream pp$1.0: waits for rank 2 to reach pp$1.0")
    [run] = [line for line in report if "rank 1" in line and "stream compute:" in line]
    assert "chunk layer_0_B, microbatch 3, stream compute: waits for program_pp0.py:" in run
    [norm] = [line for line in report if "rank 3" in line and "stream pp:" in line]
    assert "all_reduce(q" in norm
    assert {line.split()[1] for line in report[1:]} == {"0", "1", "2", "3"}


def test_one_queue_deadlocks_where_streams_do_not() -> None:
    """Without a receive ahead, stage 0 sends x1_1 while stage 1 sends d1_0."""
    texts = edited(STAGE_1).texts
    lines = texts[STAGE_1].splitlines(keepends=True)
    [ahead] = [line for line in lines if line.startswith("    x1_1, v_1 = r.recv")][:1]
    [first] = [line for line in lines if line.startswith("    x1_2, v_2 = r.recv")][:1]
    train, evaluation = texts[STAGE_1].split("def eval")
    moved = train.replace(ahead, "").replace(first, ahead + first)
    program = edited(STAGE_1, (train, moved))
    assert "def eval" + evaluation in program.texts[STAGE_1]
    trainer(program).step(make_batch(0))
    with pytest.raises(DeadlockError, match=r"`s_1 = r.send\(x1_1"):
        trainer(program, LocalTransport(single_queue=True)).step(make_batch(0))


def test_different_collectives_of_one_communicator_are_an_error() -> None:
    program = edited(STAGE_1, ("T, f1 = r.all_reduce(E_3", "T, f1 = r.all_gather(E_3"))
    with pytest.raises(InstructionError, match="expected one kind of collective, got rank 0"):
        trainer(program).step(make_batch(0))


def test_a_message_of_another_shape_is_an_error() -> None:
    old = 'x1_3, v_3 = r.recv(comm="pp$0.1", peer=0, shape=(4, 8, 16), dtype="float64"'
    texts = edited(STAGE_1).texts[STAGE_1]
    train, _ = texts.split("def eval")
    program = edited(STAGE_1, (train, train.replace(old, old.replace("(4, 8", "(4, 9"))))
    with pytest.raises(InstructionError, match=r"x1_3.* expected \(\(4, 9, 16\), .*, got \(\(4, 8"):
        trainer(program).step(make_batch(0))


def test_a_failing_kernel_names_rank_line_chunk_and_microbatch() -> None:
    program = edited(
        STAGE_1, ("k.linear_relu_backward(dy, x, r, w)", "k.linear_relu_backward(x, x, r, b)")
    )
    with pytest.raises(InstructionError) as caught:
        trainer(program).step(make_batch(0))
    message = str(caught.value)
    assert message.startswith("rank 2 (pp 1, dp 0), program_pp1.py:")
    assert "`d1_0, g1_0 = r.run(layer_1_B, d2_0, x1_0, r1_0, p1, mb=0)`" in message
    assert ", chunk layer_1_B, microbatch 0: RuntimeError: " in message
    assert isinstance(caught.value.__cause__, RuntimeError)


def test_a_chunk_must_return_what_it_declares() -> None:
    program = edited(STAGE_0, ("    return dx, g\n", "    return dx\n"))
    with pytest.raises(InstructionError, match="chunk layer_0_B expected 2 results, got 1"):
        trainer(program).step(make_batch(0))


def test_a_chunk_must_not_return_an_alias() -> None:
    program = edited(STAGE_0, ("    return dx, g\n", "    return dy, g\n"))
    with pytest.raises(InstructionError, match="result 0 expected a storage of its own"):
        trainer(program).step(make_batch(0))


def test_gradients_must_have_their_parameters_shape() -> None:
    program = edited(STAGE_0, ("    g = (dw, db)\n", "    g = (db, dw)\n"))
    with pytest.raises(InstructionError, match=r"'layers.0.weight\$b' expected shape \(16, 16\)"):
        trainer(program).step(make_batch(0))


def test_a_trainer_goes_on_after_a_failed_step() -> None:
    model = TiedMlp()
    survivor = Trainer(Program(edited(STAGE_0).texts), model=model, optimizer=make_sgd)
    bad = make_batch(0)
    bad["ids"][0, 0] = 1_000_000
    with pytest.raises(InstructionError, match="chunk embed_F, microbatch 0: IndexError"):
        survivor.step(bad)
    assert survivor.step(make_batch(0)).loss > 0
