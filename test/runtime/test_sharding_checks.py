"""Sharded programs with a planted mistake are refused, fail at its line, or fail in check mode."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import torch
from mlp_program import make_sgd, sealed
from piper_runtime import InstructionError, Program, ProgramError, Trainer
from piper_runtime.manifest import BucketSpec, StateSpec
from piper_runtime.states.sharding import Shard
from piper_runtime.states.state import Bucket
from sharded_oracle import SingleProcess
from sharded_program import Odd, Sharding, make_batch, sharded_program

FILE = "program_0.py"
DP4, HSDP = (("dp", 4),), (("rep", 2), ("dp", 2))
Entry = dict[str, Any]


def edited(sharding: Sharding, *pairs: tuple[str, str]) -> Program:
    """Return a program with replaced pieces, each of which occurs once."""
    texts = dict(sharded_program(sharding).texts)
    for old, new in pairs:
        assert texts[FILE].count(old) == 1, old
        texts[FILE] = texts[FILE].replace(old, new)
    return Program(sealed(texts))


def with_bucket(change: Callable[[Entry], object], *, zero: int = 1) -> Program:
    """Return a program whose first bucket is changed in the manifest."""
    texts = dict(sharded_program(Sharding(zero, "each", HSDP)).texts)
    manifest = json.loads(texts["manifest.json"])
    change(manifest["buckets"][0])
    return Program(texts | {"manifest.json": json.dumps(manifest)})


def start(program: Program, **options: Any) -> Trainer:
    return Trainer(program, model=Odd(), optimizer=make_sgd, **options)


# The manifest.


@pytest.mark.parametrize(
    ("zero", "change", "message"),
    [
        (1, {"shard_axes": ["dp", "rep"]}, r"'fc\$b' expected shard axes of \['rep', 'dp'\], in"),
        (1, {"shard_axes": ["pp"]}, r"expected shard axes of .* got \['pp'\]"),
        (3, {"shard_axes": []}, "expected shard axes for its sharded slot grad, got none"),
        (0, {"compute_sharded": True}, "expected shard axes for its sharded slot compute"),
        (3, {"compute_sharded": True}, "expected a dtype for its sharded slot compute, got none"),
        (3, {"grad_dtype": None}, "expected a dtype for its sharded slot grad, got none"),
        (1, {"dtype": "float32", "compute_dtype": "bfloat16"},
         "expected members of dtype float32 or bfloat16, got 'fc.weight' of float64"),
        (1, {"numel": 32}, "expected numel 29, the sum of its members, got 32"),
    ],
    ids=str,
)  # fmt: skip
def test_a_manifest_that_is_not_consistent_is_refused(
    zero: int, change: Entry, message: str
) -> None:
    with pytest.raises(ProgramError, match=message):
        with_bucket(lambda bucket: bucket.update(change), zero=zero)


# Before anything runs.


@pytest.mark.parametrize(
    ("sharding", "old", "new", "message"),
    [
        pytest.param(
            Sharding(3),
            'r.read("fc$b", slot="value")',
            'r.read("fc$b", slot="compute")',
            r"slot of 'fc\$b' expected value or grad, got 'compute'",
            id="a slot that is not there",
        ),
        pytest.param(
            Sharding(1),
            'r.read("fc$b", slot="compute")',
            'r.read("fc$b", slot="whole")',
            r"slot of 'fc\$b' expected value, compute or grad, got 'whole'",
            id="an unknown slot",
        ),
        pytest.param(
            Sharding(1),
            'r.write("fc$b", X_fc, slot="compute"',
            'r.write("fc$b", X_fc, slot="value"',
            r"write of 'fc\$b' expected slot compute, got 'value'",
            id="a write of what only updates set",
        ),
        pytest.param(
            Sharding(1, "each"),
            'part_fc_dp = r.slice(A_fc_1, dim=0, axis="dp")',
            'part_fc_dp = r.slice(A_fc_1, dim=0, axis="tp")',
            r"rank 0 \(dp 0\) expected an axis of \['dp'\], got 'tp'",
            id="a slice over an unknown axis",
        ),
        pytest.param(
            Sharding(1),
            '    r.write("fc$b", X_fc, slot="compute", after=[e_X_fc])\n',
            "",
            r"`p_fc = r.read\(\"fc\$b\", slot=\"compute\"\)`, fc\$b: slot compute expected a write "
            r"before, since .*`V_fc = r.update\(.* of a call before updates the value",
            id="a derived slot that is left stale",
        ),
        pytest.param(
            Sharding(1),
            "    r.write(\"fc$b\", X_fc",
            "    stale = r.read(\"fc$b\", slot=\"compute\")\n    r.write(\"fc$b\", X_fc",
            r"`stale = r.read.*slot compute is stale: expected a write after .*`V_fc = r.update",
            id="a read of a stale slot",
        ),
        pytest.param(
            Sharding(1),
            'slot="compute", after=[e_X_fc])\n',
            'slot="compute", after=[e_X_fc])\n    r.run(loss_B, t, p_fc)\n',
            r"`r.run\(loss_B, t, p_fc\)`.*operand of .*`p_fc = r.read.* was overwritten",
            id="what was read before the update",
        ),
        pytest.param(
            Sharding(1),
            'slot="compute", after=[e_X_fc])\n',
            'slot="compute", after=[e_X_fc])\n    r.sumsq(A_fc_1)\n',
            r"`r.sumsq\(A_fc_1\)`.*operand of .*`A_fc_1 = r.accumulate.* was overwritten",
            id="a gradient of which the update has taken a part",
        ),
        pytest.param(
            Sharding(3, "each"),
            '    V_fc = r.update("fc$b"',
            '    late, e_late = r.all_gather(p_fc, comm="gather", stream="gather")\n'
            '    V_fc = r.update("fc$b"',
            r"`V_fc = r.update.*operand of .*`p_fc = r.read.* is still in use: no event orders "
            r".*`late, e_late = r.all_gather",
            id="an update while the value is gathered",
        ),
    ],
)  # fmt: skip
def test_a_wrong_program_is_refused(sharding: Sharding, old: str, new: str, message: str) -> None:
    with pytest.raises(ProgramError, match=message):
        start(edited(sharding, (old, new)))


def test_a_slot_may_be_written_when_the_next_step_starts() -> None:
    """The gather of ZeRO-1 may run into the warm-up of the next step."""
    gather = (
        '    X_fc, e_X_fc = r.all_gather(V_fc, comm="gather", stream="gather", after=[c_X_fc])\n'
    )
    write = '    r.write("fc$b", X_fc, slot="compute", after=[e_X_fc])\n'
    first = '    p_fc = r.read("fc$b", slot="compute")\n'
    early = (
        '    V_fc = r.read("fc$b", slot="value")\n    c_X_fc = r.record()\n'
        + gather
        + write
        + first
    )
    late = edited(Sharding(1), (gather, ""), (write, ""), (first, early))
    usual, other = start(sharded_program(Sharding(1))), start(late)
    for step in range(3):
        expected = usual.step(make_batch(step, 2))
        assert other.step(make_batch(step, 2)).loss == expected.loss
    states, others = usual.full_state_dict(), other.full_state_dict()
    assert all(torch.equal(others[name], value) for name, value in states.items())


def test_gradients_that_nothing_keeps_are_not_shown() -> None:
    program = edited(
        Sharding(3),
        ('    V_fc = r.update("fc$b", G_fc, after=[e_G_fc, e_N])\n', ""),
    )
    trainer = start(program)
    trainer.step(make_batch(0, 2))
    with pytest.raises(RuntimeError, match=r"gradients expected an update of 'fc\$b', which keeps"):
        trainer.gradients()


# While it runs.


def fail(program: Program, message: str, ranks: int) -> None:
    with pytest.raises(InstructionError, match=message):
        start(program).step(make_batch(0, ranks))


def test_a_pack_cannot_be_added_to_a_part() -> None:
    spec = BucketSpec("w$b", ("w",), (0,), "float32", 4, "float32", ("dp",), grad_sharded=True)
    member = StateSpec("w", "parameter", (4,), "float32", True, ())
    held = Bucket(spec, (member,), torch.ones(2), shard=Shard(4, 1, 2))
    held.accumulate(torch.ones(2))
    with pytest.raises(ValueError, match=r"expected a reduced part of shape \(2,\), got a pack"):
        held.accumulate((torch.ones(4),))
    with pytest.raises(ValueError, match=r"'w\$b' expected shape \(2,\), got \(4,\)"):
        held.accumulate(torch.ones(4))


def test_a_value_is_updated_with_a_gradient_of_its_size() -> None:
    program = edited(
        Sharding(1, "each", DP4),
        ('r.update("fc$b", G_fc,', 'r.update("fc$b", A_fc_1,'),
    )
    fail(program, r"gradient of 'fc\$b' expected 8 elements as the value, got 32", 4)


def test_a_slot_is_written_with_a_value_of_its_size() -> None:
    program = edited(Sharding(1), ('r.write("fc$b", X_fc,', 'r.write("fc$b", V_fc,'))
    fail(
        program,
        r"slot compute of 'fc\$b' expected torch.float64 of shape \(30,\), got .* of \(15",
        2,
    )


def test_a_slice_is_of_equal_parts() -> None:
    program = edited(
        Sharding(0, "each", DP4),
        ("    V_fc = r.update(", '    r.slice(A_fc_1, dim=0, axis="dp")\n    V_fc = r.update('),
    )
    fail(program, "slice expected dim 0 divisible by 4, got 29", 4)


def test_an_optimizer_is_refused_where_a_rank_holds_nothing_as_well() -> None:
    spec = BucketSpec("w$b", ("w",), (0,), "float32", 1, "float32", shard_axes=("dp",))
    member = StateSpec("w", "parameter", (1,), "float32", True, ())
    for index in range(2):
        held = Bucket(spec, (member,), torch.ones(1), shard=Shard(1, index, 2))
        with pytest.raises(TypeError, match=r"expected an elementwise class of torch\.optim"):
            held.make_optimizer(lambda parameters: torch.optim.LBFGS(parameters))
        held.make_optimizer(make_sgd)
        assert torch.equal(held.update(torch.ones(1), None), torch.tensor([0.5, 1.0])[index:][:1])


# Collectives of several coordinates: pp 2, each with a chunk of the tied weight's gradient.


COLLECTIVES = """\
def train(r):
    x = r.input("x", mb=0)
    e = r.record()
    y, f = r.KIND(x, comm="tied", stream="tied", after=[e])
    r.output("loss", r.sumsq(y, after=[f]))
"""


def tied_program(kind: str) -> Program:
    manifest = {
        "version": 1,
        "hash": "",
        "mesh": [{"name": "pp", "size": 2, "role": "unrolled"},
                 {"name": "dp", "size": 2, "role": "manual"}],
        "microbatches": 1,
        "inputs": [{"name": "x", "shape": [4], "dtype": "float64", "dim": 0}],
        "data_axes": ["dp"],
        "states": [],
        "buckets": [],
        "comms": [{"name": "tied", "axes": ["dp"], "coordinates": [0, 1]}],
        "programs": ["program_pp0.py", "program_pp1.py"],
        "entry_points": ["train"],
        "losses": [{"name": "loss", "dtype": "float64"}],
        "optimizer": None,
        "clip": None,
    }  # fmt: skip
    text = COLLECTIVES.replace("KIND", kind)
    files = {"kernels.py": "", "manifest.json": json.dumps(manifest)}
    return Program(sealed(files | dict.fromkeys(("program_pp0.py", "program_pp1.py"), text)))


def test_holders_of_a_tied_weight_get_the_same_parts_of_one_sum() -> None:
    """Each coordinate feeds 1 2 3 4 at dp 0 and 5 6 7 8 at dp 1: 12 16 20 24 together."""
    trainer = Trainer(tied_program("reduce_scatter"))
    batch = {"x": torch.arange(1.0, 9.0, dtype=torch.float64)}
    assert trainer.outputs("train", batch) == {"loss": 12.0**2 + 16.0**2}


def test_parts_of_several_coordinates_cannot_be_gathered() -> None:
    trainer = Trainer(tied_program("all_gather"))
    with pytest.raises(InstructionError, match="expected a communicator of one coordinate, got "
                       "tied: its 4 members hold 2 parts"):  # fmt: skip
        trainer.outputs("train", {"x": torch.ones(8, dtype=torch.float64)})


# Check mode.


@pytest.mark.parametrize(
    "sharding",
    [
        Sharding(zero, reduce, mesh, axes)
        for zero in (0, 1, 2, 3)
        for reduce in ("last", "each")
        for mesh, axes in (
            (DP4, ("dp",)),
            (HSDP, ("dp",)),
            (HSDP, ("rep", "dp")),
        )
    ],
    ids=str,
)
def test_check_mode_compares_every_value(sharding: Sharding) -> None:
    trainer = start(sharded_program(sharding), check=SingleProcess(sharding, make_sgd))
    for step in range(2):
        trainer.step(make_batch(step, sharding.ranks))
    assert trainer.checked is not None
    assert trainer.checked.compared > 400
    assert trainer.checked.unknown == 0


@pytest.mark.parametrize(
    ("sharding", "old", "new", "message"),
    [
        pytest.param(
            Sharding(3, "last", HSDP),
            'r.all_gather(p_fc, comm="gather", stream="gather", after=[c_w_fc_F_0])',
            'r.all_gather(p_fc, comm="rest", stream="rest", after=[c_w_fc_F_0])',
            r"w_fc_F_0 = r.all_gather.*: expected to gather parts over \('dp',\), got over "
            r"\('rep',\)",
            id="a gather over another axis",
        ),
        pytest.param(
            Sharding(1, "last", HSDP),
            'r.all_reduce(part_G_fc, comm="rest", stream="rest", after=[e_part_G_fc])',
            "part_G_fc, e_part_G_fc",
            r"`N, e_N = r.all_reduce\(q.*result 0 differs from the single process",
            id="a reduction that is missing",
        ),
        pytest.param(
            Sharding(2, "each", DP4),
            'r.reduce_scatter(g_fc_0, comm="gather", stream="gather", after=[c_h_fc_0])',
            'r.slice(g_fc_0, axis="dp"), c_h_fc_0',
            r"`N, e_N = r.all_reduce\(q.*result 0 differs from the single process",
            id="a slice of what is not reduced",
        ),
        pytest.param(
            Sharding(2, "last", DP4),
            '    V_fc = r.update("fc$b", G_fc, after=[e_G_fc, e_N])',
            '    G_fc, e_G_fc = r.all_reduce(G_fc, comm="gather", stream="gather", after=[e_N])\n'
            '    V_fc = r.update("fc$b", G_fc, after=[e_G_fc, e_N])',
            r"`G_fc, e_G_fc = r.all_reduce\(G_fc.*result 0 differs from the single process",
            id="a reduction too many",
        ),
        pytest.param(
            Sharding(3, "each", DP4),
            'r.accumulate("fc$b", h_fc_1,',
            'r.accumulate("fc$b", h_fc_0,',
            r"`A_fc_1 = r.accumulate.*got result 0 of chunk fc_B, microbatch 0 twice",
            id="a part that is added twice",
        ),
        pytest.param(
            Sharding(1, "last", DP4),
            "X_fc, e_X_fc = r.all_gather(V_fc,",
            "X_fc, e_X_fc = r.all_gather(G_fc,",
            r"`r.write\(\"fc\$b\", X_fc.*operand 0 differs from the single process",
            id="a write of something else",
        ),
    ],
)
def test_check_mode_names_what_went_wrong(
    sharding: Sharding, old: str, new: str, message: str
) -> None:
    program = edited(sharding, (old, new))
    trainer = start(program, check=SingleProcess(sharding, make_sgd))
    with pytest.raises(InstructionError, match=message):
        trainer.step(make_batch(0, sharding.ranks))
