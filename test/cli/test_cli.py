"""``piper compile`` and ``piper show``: what they print, and wrong input in words."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import piper
import pytest
from piper.cli import main
from piper_runtime import Program
from piper_runtime.program import seal

MODEL = """
import piper
import torch
from torch import nn


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))
        self.register_buffer("scale", torch.ones(4))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x * self.scale).relu()
        return x


def loss_fn(model, batch):
    return model(batch["x"]).square().sum()


def make_sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.1)


def build(stages=2, schedule="1F1B"):
    strategy = piper.Strategy(
        mesh={"pp": stages, "dp": 2},
        directives=[
            piper.annotate({"layers.*": "layer"}),
            piper.split(microbatches=2),
            piper.place(stages=stages),
            piper.replicate(axis="dp"),
            piper.order(schedule),
            piper.update(make_sgd, clip=1.0),
        ],
    )
    return Mlp(), loss_fn, strategy, {"x": torch.randn(8, 4)}


def many_stages():
    return build(stages=3)


def misspelt():
    return build(schedule="1F1C")


def no_microbatches():
    return piper.split(microbatches=0)


def no_batch():
    return build()[:3]


def no_strategy():
    model, loss_fn, _, batch = build()
    return model, loss_fn, "1F1B", batch


def fails():
    raise ValueError("of the user's own")


build_by_value = 1
"""


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file: Path = tmp_path_factory.mktemp("source") / "cli_mlp.py"
    file.write_text(MODEL)
    return file


@pytest.fixture(scope="module")
def compiled(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("program")
    assert main(["compile", f"{source}:build", "-o", str(folder)]) == 0
    return folder


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Any:
    """Run the command line and return what it says on standard error."""

    def run(*arguments: str) -> str:
        assert main(arguments) == 1
        said = capsys.readouterr()
        assert said.out == ""
        assert said.err.startswith("piper: error: ")
        assert "Traceback" not in said.err
        return said.err

    return run


def test_help_teaches(capsys: pytest.CaptureFixture[str]) -> None:
    for command, example in [
        ([], "piper compile train.py:build -o out"),
        (["compile"], "piper compile train.py:build -o out"),
        (["show"], "piper show out"),
    ]:
        with pytest.raises(SystemExit, match="0"):
            main([*command, "--help"])
        assert example in capsys.readouterr().out


def test_compile_lists_what_it_writes(
    source: Path, compiled: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    program = Program.open(compiled)
    monkeypatch.setattr(piper, "compile", lambda *args, **options: program)
    assert main(["compile", f"{source}:build", "-o", str(compiled)]) == 0
    first, *lines, last = capsys.readouterr().out.splitlines()
    assert first == f"wrote {compiled}: 2 programs for pp=2 x dp=2"
    assert last == f"next: piper show {compiled}"
    written = {str(f.relative_to(compiled)) for f in compiled.rglob("*") if f.is_file()}
    assert {line.split()[0] for line in lines} == written
    assert "  program_pp1.py    what the ranks of coordinate pp1 run" in lines


def test_compile_replaces_the_program_in_a_directory(
    source: Path, compiled: Path, tmp_path: Path, monkeypatch: Any
) -> None:
    program = Program.open(compiled)
    Program(seal({**program.texts, "ir/old.mlir": "module {}"}, {})).save(tmp_path)
    monkeypatch.setattr(piper, "compile", lambda *args, **options: program)
    assert main(["compile", f"{source}:build", "-o", str(tmp_path)]) == 0
    assert Program.open(tmp_path).texts == program.texts


@pytest.mark.parametrize(
    ("flags", "options"),
    [
        ([], {"data_shards": None, "limits": piper.Limits()}),
        (["--data-shards", "1"], {"data_shards": 1, "limits": piper.Limits()}),
        (
            ["--max-memory", "4096", "--max-sms", "20", "--max-communicators", "8"],
            {
                "data_shards": None,
                "limits": piper.Limits(memory=4096, sms=20, communicators=8),
            },
        ),
        (["--single-queue"], {"data_shards": None, "limits": piper.Limits(single_queue=True)}),
    ],
)
def test_compile_passes_options_on(
    flags: list[str], options: dict[str, Any], source: Path, tmp_path: Path, monkeypatch: Any
) -> None:
    given = {}

    def note(*args: object, **options: object) -> Program:
        given.update(options)
        raise piper.CompileError("enough")

    monkeypatch.setattr(piper, "compile", note)
    with pytest.raises(piper.CompileError, match="enough"):
        main(["compile", f"{source}:build", "-o", str(tmp_path), *flags])
    assert given == options


def test_compile_refuses_what_takes_too_much(source: Path, tmp_path: Path, refused: Any) -> None:
    said = refused("compile", f"{source}:build", "-o", str(tmp_path), "--max-memory", "100")
    assert re.search(r"expected @train\$pp0 to hold at most 100 bytes at once, got \d+ bytes", said)
    assert not any(tmp_path.iterdir())
    said = refused("compile", f"{source}:build", "-o", str(tmp_path), "--max-sms", "0")
    assert "limit of sms must be an int of at least 1, got 0" in said


def test_optimizer_can_be_imported_beside_the_file(compiled: Path) -> None:
    assert Program.open(compiled).manifest.optimizer == "cli_mlp:make_sgd"


def test_show(compiled: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", str(compiled)]) == 0
    said = capsys.readouterr().out
    assert said.startswith(
        "mesh: pp=2 x dp=2, 4 ranks\n"
        "step: 2 microbatches, each of\n"
        "  x  float32[2, 4]  split along dim 0\n"
        "update: cli_mlp:make_sgd, gradients clipped to norm 1\n\n"
        "schedule:\n"
        "step   0    1    2    3    4    5\n"
        "pp 0  0F0  0F1   .   0B0   .   0B1\n"
        "pp 1   .   1F0  1B0  1F1  1B1   .\n\n"
        "stages, FLOPs of one microbatch:\n"
        "  stage  at    chunk     F    B\n"
        "  0      pp 0  layer.0  "
    )
    sections = {text.partition(",")[0].partition(":")[0]: text for text in said.split("\n\n")}
    assert list(sections) == ["mesh", "schedule", "stages", "kernels", "states", "communicators"]
    # The first layer's forward kernel, for two microbatches, in training and in evaluation.
    assert re.search(r"^  \w+\$\w+ +\d+ +2 +2$", sections["kernels"], re.MULTILINE)
    assert re.search(r"layers\.1\.bias +float32\[4\] +parameter", sections["states"])
    assert re.search(r"scale +float32\[4\] +buffer", sections["states"])
    assert re.search(r"send\$0\.1 +0, 1 +2 recv, 2 send", sections["communicators"])
    assert re.search(r"reduce\.dp\$0 +dp +0 +\d all_reduce", sections["communicators"])


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (
            "many_stages",
            r"cli_mlp\.py:\d+.*at least one chunk per stage, got 2 chunks and 3 stages",
        ),
        ("misspelt", r"cli_mlp\.py:\d+: unknown schedule '1F1C', did you mean '1F1B'\?"),
        ("no_microbatches", r"cli_mlp\.py:\d+: split microbatches must be an int of at least 1"),
        ("no_batch", r"expected to return \(model, loss_fn, strategy, batch\), got a tuple of 3"),
        ("no_strategy", r"expected a piper\.Strategy in third place, got '1F1B'"),
        ("absent", r"cli_mlp\.py: expected a function 'absent', got None"),
        ("build_by_value", r"expected a function 'build_by_value', got 1"),
    ],
)
def test_what_the_function_gives(
    function: str, message: str, source: Path, tmp_path: Path, refused: Any
) -> None:
    assert re.search(message, refused("compile", f"{source}:{function}", "-o", str(tmp_path)))
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("text", ["train.py", "train:build", "train.py:", "train.py:a.b"])
def test_source_must_be_file_and_function(text: str, tmp_path: Path, refused: Any) -> None:
    assert "expected FILE:FUNCTION such as train.py:build" in refused(
        "compile", text, "-o", str(tmp_path)
    )


def test_file_must_exist(tmp_path: Path, refused: Any) -> None:
    said = refused("compile", f"{tmp_path}/train.py:build", "-o", f"{tmp_path}/out")
    assert f"expected a Python file, got {tmp_path}/train.py" in said


def test_file_must_not_hide_a_module(tmp_path: Path, refused: Any) -> None:
    (tmp_path / "json.py").write_text("")
    said = refused("compile", f"{tmp_path}/json.py:build", "-o", f"{tmp_path}/out")
    assert "expected a file that has no other module's name, got json.py" in said


def test_directory_of_something_else_is_kept(source: Path, tmp_path: Path, refused: Any) -> None:
    (tmp_path / "thesis.tex").write_text("all of it")
    said = refused("compile", f"{source}:build", "-o", str(tmp_path))
    assert f"-o expected a new or empty directory, or a program, got {tmp_path}" in said
    assert (tmp_path / "thesis.tex").exists()


def test_errors_of_the_users_code_keep_their_traceback(source: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="of the user's own"):
        main(["compile", f"{source}:fails", "-o", str(tmp_path)])


def test_show_needs_a_program(compiled: Path, tmp_path: Path, refused: Any) -> None:
    assert "expected a compiled program with a manifest.json" in refused("show", str(tmp_path))
    texts = Program.open(compiled).texts
    bare = {name: text for name, text in texts.items() if "ir/" not in name}
    Program(seal(bare, {})).save(tmp_path)
    assert "expected a program with a file ir/programs.mlir" in refused("show", str(tmp_path))


def test_wrong_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["compile", "train.py:build"])
    assert "the following arguments are required: -o" in capsys.readouterr().err
