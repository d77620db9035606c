"""Artifacts: loading, saving, what is checked, and where lines show."""

from __future__ import annotations

import inspect
import json
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from mlp_program import TiedMlp, make_batch, make_sgd, program_texts, sealed
from piper_runtime import Program, ProgramError, Trainer
from piper_runtime.mesh import Axis, CommSpec, Mesh
from piper_runtime.program import seal, seal_folder
from piper_runtime.states.optimizer import load_factory
from piper_runtime.tensorfile import pack_tensors, unpack_tensors
from safetensors.torch import load_file, save_file

CPU = torch.device("cpu")
MESH = Mesh((Axis("pp", 2, "unrolled"), Axis("dp", 2, "manual"), Axis("ep", 2, "manual")))


def test_a_saved_program_trains_like_the_one_in_memory(tmp_path: Path) -> None:
    constants = {"table": torch.arange(3)}
    program = Program(seal(program_texts(), constants), constants=constants)
    program.save(tmp_path)
    assert Program.open(tmp_path).texts == program.texts
    assert torch.equal(Program.open(tmp_path).constants["table"], torch.arange(3))
    losses = [
        Trainer(source, model=TiedMlp(), optimizer=make_sgd).step(make_batch(0)).loss
        for source in (program, tmp_path)
    ]
    assert losses[0] == losses[1]


def test_a_program_in_memory_brings_model_and_optimizer() -> None:
    model = TiedMlp()
    trainer = Trainer(Program(program_texts(), model=model, optimizer=make_sgd))
    trainer.step(make_batch(0))
    assert not torch.equal(trainer.full_state_dict()["embed.weight"], model.embed.weight)


def test_the_text_of_a_program_in_memory_can_be_inspected() -> None:
    train = Program(program_texts()).load(CPU).entry_point(0, "train")
    assert inspect.getsource(train).startswith("def train(r):\n")


def test_kernels_are_bound_to_the_device() -> None:
    loaded = Program(program_texts()).load(torch.device("meta"))
    assert loaded.modules[0].k.device == torch.device("meta")


def whole_program() -> Program:
    """A program with every kind of content: Python, a manifest, IR and a constant."""
    constants = {"table": torch.arange(6.0).view(2, 3)}
    texts = program_texts() | {"ir/step.mlir": "module {}\n"}
    return Program(seal(texts, constants), constants=constants)


def change_text(folder: Path, name: str, old: str, new: str) -> None:
    text = (folder / name).read_text()
    assert old in text
    (folder / name).write_text(text.replace(old, new, 1))


def change_constant(folder: Path, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    file = folder / "constants.safetensors"
    save_file({name: change(value) for name, value in load_file(file).items()}, file)


Tampering = Callable[[Path], object]
TAMPERING: dict[str, Tampering] = {
    "kernel": lambda at: change_text(at, "kernels.py", "torch", "torch "),
    "program": lambda at: change_text(at, "program_pp1.py", "mb=0", "mb=1"),
    "comment": lambda at: change_text(at, "program_pp0.py", "\n", "  # nothing\n"),
    "ir": lambda at: change_text(at, "ir/step.mlir", "{}", "{ }"),
    "ir added": lambda at: (at / "ir/more.mlir").write_text(""),
    "ir removed": lambda at: (at / "ir/step.mlir").unlink(),
    "python added": lambda at: (at / "more.py").write_text(""),
    "manifest": lambda at: change_text(
        at, "manifest.json", '"microbatches": 4', '"microbatches": 2'
    ),
    "hash": lambda at: change_text(at, "manifest.json", '"hash": "', '"hash": "0'),
    "element": lambda at: change_constant(at, lambda table: table + (table == 4)),
    "shape": lambda at: change_constant(at, lambda table: table.view(3, 2)),
    "dtype": lambda at: change_constant(at, lambda table: table.view(torch.int32)),
    "no constants": lambda at: (at / "constants.safetensors").unlink(),
    "constant's name": lambda at: save_file(
        {"other": torch.arange(6.0).view(2, 3)}, at / "constants.safetensors"
    ),
}


@pytest.mark.parametrize("what", TAMPERING)
def test_changed_files_are_refused_until_they_are_sealed(what: str, tmp_path: Path) -> None:
    program = whole_program()
    program.save(tmp_path)
    assert Program.open(tmp_path).manifest == program.manifest
    TAMPERING[what](tmp_path)
    with pytest.raises(ProgramError, match=r"expected hash .* \(its files were changed\), got"):
        Program.open(tmp_path)
    seal_folder(tmp_path)
    changed = Program.open(tmp_path).manifest.hash
    assert (changed == program.manifest.hash) == (what == "hash")


def test_how_a_manifest_is_laid_out_and_other_files_do_not_count(tmp_path: Path) -> None:
    program = whole_program()
    program.save(tmp_path)
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    (tmp_path / "manifest.json").write_text(json.dumps(dict(reversed(manifest.items()))))
    (tmp_path / "notes.txt").write_text("mine")
    assert Program.open(tmp_path).manifest == program.manifest


def test_nothing_in_a_saved_program_is_pickled(tmp_path: Path) -> None:
    """Only text, and a constant in safetensors: a header of JSON, then its bytes."""
    program = whole_program()
    program.save(tmp_path)
    files = {str(file.relative_to(tmp_path)) for file in tmp_path.rglob("*") if file.is_file()}
    assert files == {*program.texts, "constants.safetensors"}
    for name in program.texts:
        assert (tmp_path / name).read_bytes() == program.texts[name].encode()
    data = (tmp_path / "constants.safetensors").read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    assert header == {"table": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}}
    assert data[8 + size :] == struct.pack("<6f", *range(6))


@pytest.mark.parametrize("size", [0, 20, -1])
def test_constants_that_are_cut_off_are_refused(size: int, tmp_path: Path) -> None:
    whole_program().save(tmp_path)
    file = tmp_path / "constants.safetensors"
    file.write_bytes(file.read_bytes()[:size])
    expected = r"constants\.safetensors expected the format of safetensors, got "
    with pytest.raises(ProgramError, match=expected):
        Program.open(tmp_path)


def test_missing_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"expected a compiled program with a manifest"):
        Program.open(tmp_path)
    with pytest.raises(ProgramError, match=r"expected a file manifest\.json, got \[\]"):
        Program({})
    texts = program_texts()
    del texts["program_pp1.py"]
    with pytest.raises(ProgramError, match=r"expected a file program_pp1\.py"):
        Program(texts)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("version", 2, "expected version 1, got 2"),
        ("programs", ["program_pp0.py"], "expected 2 programs, one per coordinate .*, got 1"),
        ("data_axes", ["tp"], "data axes expected axes of pp=2 x dp=2, got 'tp'"),
        ("mesh", [{"name": "pp", "size": 2, "role": "x"}], "'pp' expected a role in .*, got 'x'"),
        ("mesh", [{"name": "pp", "size": 0, "role": "auto"}], "expected a positive size, got 0"),
    ],
)
def test_odd_manifests_are_refused(key: str, value: object, message: str) -> None:
    texts = program_texts()
    texts["manifest.json"] = json.dumps(json.loads(texts["manifest.json"]) | {key: value})
    with pytest.raises(ProgramError, match=message):
        Program(texts)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"members": ["nothing"]}, r"'embed.weight\$b' expected states as members, got 'nothing'"),
        ({"numel": 3}, "expected numel 512, the sum of its members, got 3"),
        ({"dtype": "float32"}, "expected members of dtype float32, got 'embed.weight' of float64"),
        ({"holders": [2]}, "expected holders below 2, got 2"),
    ],
)
def test_odd_buckets_are_refused(change: dict[str, object], message: str) -> None:
    texts = program_texts()
    manifest = json.loads(texts["manifest.json"])
    manifest["buckets"][0] |= change
    with pytest.raises(ProgramError, match=message):
        Program(texts | {"manifest.json": json.dumps(manifest)})


def test_states_of_unknown_kinds_are_refused() -> None:
    texts = program_texts()
    manifest = json.loads(texts["manifest.json"])
    manifest["states"][0]["kind"] = "weight"
    message = r"'embed.weight' expected kind in \('parameter', 'buffer', 'constant'\), got 'weight'"
    with pytest.raises(ProgramError, match=message):
        Program(texts | {"manifest.json": json.dumps(manifest)})


def test_missing_keys_and_entry_points_are_named() -> None:
    texts = program_texts()
    manifest = json.loads(texts["manifest.json"])
    del manifest["comms"]
    with pytest.raises(ProgramError, match="expected key 'comms', got none"):
        Program(texts | {"manifest.json": json.dumps(manifest)})
    loaded = Program(program_texts()).load(CPU)
    with pytest.raises(ProgramError, match=r"entry point expected one of \['train', 'eval'\]"):
        loaded.entry_point(0, "update")
    texts["program_pp1.py"] = texts["program_pp1.py"].replace("def eval", "def evil")
    with pytest.raises(ProgramError, match=r"program_pp1\.py expected a function 'eval', got none"):
        Program(sealed(texts)).load(CPU).entry_point(1, "eval")


def test_mesh_arithmetic() -> None:
    assert [MESH.coordinate(rank) for rank in range(8)] == [0] * 4 + [1] * 4
    assert MESH.positions(5) == {"pp": 1, "dp": 0, "ep": 1}
    assert MESH.describe(5) == "rank 5 (pp 1, dp 0, ep 1)"
    assert MESH.peers(6) == (2, 6)
    assert MESH.first_rank(1) == 4
    assert MESH.members(CommSpec("a", ("dp",), (1,)), 5) == (5, 7)
    assert MESH.members(CommSpec("b", ("dp", "ep"), (0, 1)), 5) == tuple(range(8))
    assert MESH.groups(CommSpec("c", (), (0, 1))) == [(0, 4), (1, 5), (2, 6), (3, 7)]
    with pytest.raises(ValueError, match=r"rank expected below 8 of mesh .*, got 8"):
        MESH.positions(8)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.bool, torch.int32])
def test_tensor_files_keep_bits(dtype: torch.dtype) -> None:
    tensors = {
        "matrix": torch.arange(-3, 3).view(2, 3).to(dtype).t(),
        "scalar": torch.ones((), dtype=dtype),
        "empty": torch.empty(0, 4, dtype=dtype),
    }
    loaded = unpack_tensors(pack_tensors(tensors))
    assert loaded.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert loaded[name].dtype == dtype
        assert torch.equal(loaded[name], tensor)


def test_tensors_may_share_memory() -> None:
    matrix = torch.arange(6.0).view(2, 3)
    loaded = unpack_tensors(pack_tensors({"matrix": matrix, "turned": matrix.t()}))
    assert torch.equal(loaded["turned"], matrix.t())


def test_tensor_files_refuse_other_dtypes() -> None:
    expected = r"expected tensors of dtypes that safetensors has, got torch.complex128 of \['z'\]"
    with pytest.raises(ValueError, match=expected):
        pack_tensors({"a": torch.ones(1), "z": torch.ones(1, dtype=torch.complex128)})


def test_optimizer_factories_are_imported() -> None:
    assert load_factory("torch.optim:SGD") is torch.optim.SGD
    with pytest.raises(ValueError, match="expected an import path 'module:name', got 'SGD'"):
        load_factory("SGD")
    with pytest.raises(TypeError, match=r"expected a function 'nothing' in torch.optim"):
        load_factory("torch.optim:nothing")


def test_the_runtime_needs_no_compiler() -> None:
    code = "import sys; sys.modules['piper'] = None; import piper_runtime"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
