"""Users' own passes: where they run, what they see, and what is said of those that go wrong."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import piper
import pytest
from levels import FLAGS, LEVELS, piper_opt, without_strategy
from piper import opt
from piper.mlir import ir
from piper.strategy import UserPass
from piper.user_passes import run_passes
from piper_runtime import Program
from toy import MESH, Toy, batch_of, directives, loss_fn

HERE = r"test_user_passes\.py:\d+"
INVALID = r" left a module that is not valid:\n"
PASSES = r"\S*toy_passes\.py:\d+"
POINTS = ("step", "chunks", "facts", "cluster")


def own(function: str, /, *, at: Any = "chunks", **options: Any) -> UserPass:
    return piper.user_pass(f"toy_passes:{function}", at=at, **options)


def compile_toy(*passes: UserPass) -> Program:
    strategy = piper.Strategy(mesh=MESH, directives=[*directives(), *passes])
    return piper.compile(Toy(), loss_fn, strategy, batch_of())


@pytest.fixture(scope="module")
def at_every_point() -> Program:
    return compile_toy(*(own("add_stream", name=f"at.{at}", at=at) for at in POINTS))


LEADS_TO = {
    "step": ("step", "piper-user-passes{at=step}"),
    "chunks": ("chunks", "piper-record"),
    "facts": ("chunks", "piper-record,piper-materialize"),
    "cluster": ("cluster", "piper-lower"),
}
"""The level before each point, and a pipeline that comes to the point."""


def run_toy(levels: dict[str, str], *passes: UserPass) -> str:
    """The module behind the point of the passes, which join the strategy that is compiled."""
    level, pipeline = LEADS_TO[passes[0].at]
    lines = "".join(f"  {given.op()} {given.source.ir()}\n" for given in passes)
    before, strategy, after = re.split(r"(piper\.strategy @strategy .*\n)", levels[level])
    with ir.Context():
        module = ir.Module.parse(f"{before}{strategy}{lines}{after}")
        run_passes(module, f"builtin.module({pipeline})")
        return f"{module.operation.get_asm(enable_debug_info=True)}\n"


def levels_of(program: Program) -> dict[str, str]:
    return {name: program.texts[f"ir/{name}.mlir"] for name in LEVELS}


def streams(text: str) -> list[str]:
    return re.findall(r"piper\.stream @(?:\")?([\w.]+)", text)


# Where they run.


def test_levels_show_what_ran(at_every_point: Program) -> None:
    """A level is written before the passes of its point, and shows all that ran before."""
    levels = levels_of(at_every_point)
    ran = {"step": 0, "chunks": 1, "cluster": 3, "programs": 4}
    for level, count in ran.items():
        found = [name for name in streams(levels[level]) if name.startswith("at.")]
        assert found == [f"at.{at}" for at in POINTS[:count]]
        assert levels[level].count("} done loc(") == count


def test_each_point_has_its_phase(levels: dict[str, str]) -> None:
    outlined = "outlined"
    run_toy(levels, own("expect", at="step", phase="captured"))
    run_toy(levels, own("expect", at="chunks", phase=outlined))
    run_toy(levels, own("expect", at="facts", phase=outlined, recorded=True))
    run_toy(levels, own("expect", at="cluster", phase="bucketed", recorded=True, clusters=2))
    with pytest.raises(piper.CompileError, match="AssertionError"):
        run_toy(levels, own("expect", at="step", phase=outlined))


@pytest.mark.parametrize("at", POINTS)
def test_order_at_one_point_is_that_of_directives(at: Any, levels: dict[str, str]) -> None:
    names = ["b", "c", "a"]
    text = run_toy(levels, *(own("add_stream", at=at, name=name) for name in names))
    assert [name for name in streams(text) if name in names] == names


def test_a_pass_that_only_looks_changes_nothing(levels: dict[str, str]) -> None:
    text = run_toy(levels, own("expect", phase="outlined"))
    with ir.Context():
        module = ir.Module.parse(levels["chunks"])
        run_passes(module, "builtin.module(piper-record)")
        plain = f"{module.operation.get_asm(enable_debug_info=True)}\n"
    assert without_strategy(text) == without_strategy(plain)


def test_ops_without_a_location_have_that_of_the_directive(at_every_point: Program) -> None:
    text = at_every_point.texts["ir/programs.mlir"]
    [number] = re.findall(r"piper\.stream @at\.step priority = 0 loc\(#loc(\d*)\)", text)
    [line] = re.findall(rf"^#loc{number} = loc\((.*)\)$", text, re.MULTILINE)
    assert re.fullmatch(r"fused\[#loc\d+, #loc\d+\]", line)
    assert re.search(r'= loc\("user_pass"\(#loc\d+\)\)', text)


def test_a_pass_may_rewrite_the_strategy(levels: dict[str, str]) -> None:
    """Passes that it adds run, too; those that it takes away do not."""
    added = own("add_pass", at="step", function="toy_passes:record")
    with pytest.raises(piper.CompileError, match=r"'toy_passes:record' at 'step' raised"):
        run_toy(levels, added)
    text = run_toy(levels, own("drop_strategy", at="step"), own("record", at="step"))
    assert "piper.strategy" not in text


def test_kernels_can_be_rewritten_and_check_mode_proves_it_right() -> None:
    program = compile_toy(own("clamp_for_relu", at="chunks"))
    kernels = program.texts["kernels.py"]
    assert "clamp_min" in kernels
    assert "relu(" not in kernels
    assert piper.check(program, loss_fn, batch_of()).compared > 50


# What they are called with.


def test_options_arrive_as_they_were(levels: dict[str, str]) -> None:
    options = {"name": "layers.*", "rate": 0.1, "count": -3, "on": True, "off": False}
    with pytest.raises(piper.CompileError) as error:
        run_toy(levels, own("record", **options))
    shown = {name: options[name] for name in sorted(options)}
    assert str(error.value).endswith(f": called with {shown}")


# What goes wrong.


@pytest.mark.parametrize(
    ("directive", "message"),
    [
        (own("record"), rf" raised RuntimeError in {PASSES}: called with \{{\}}"),
        (own("fail_inside", at="step"), rf" raised KeyError in {PASSES}: "),
        (own("find_nothing", at="facts"), " found nothing to do: it returned False$"),
        (own("return_text", at="cluster"), " must return True, False or None, got 'done'$"),
        (
            own("rename_kernels"),
            rf"{INVALID}\S*toy\.py:\d+.*: 'piper\.launch' op expected .*kernel, got @",
        ),
        (
            own("drop_accumulation", at="cluster"),
            rf"{INVALID}train: .* expected 2 contributions to",
        ),
    ],
    ids=lambda value: repr(value).partition(",")[0] if isinstance(value, UserPass) else "",
)
def test_a_failing_pass_is_named(directive: UserPass, message: str, levels: dict[str, str]) -> None:
    name, at = directive.function, directive.at
    with pytest.raises(
        piper.CompileError, match=rf"^\S*{HERE}: user_pass '{name}' at '{at}'{message}"
    ):
        run_toy(levels, directive)


def test_an_error_of_the_pass_is_the_cause() -> None:
    with pytest.raises(piper.CompileError) as error:
        compile_toy(own("fail_inside", at="step"))
    assert isinstance(error.value.__cause__, KeyError)


# Printed modules.


@pytest.mark.parametrize("level", FLAGS)
def test_opt_makes_each_level_of_the_one_before(
    level: str, at_every_point: Program, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    levels = levels_of(at_every_point)
    file = tmp_path / "before.mlir"
    file.write_text(levels[LEVELS[LEVELS.index(level) - 1]])
    point = ["--piper-user-passes=at=step"] if level == "chunks" else []
    assert opt.main([str(file), *point, *FLAGS[level]]) == 0
    assert capsys.readouterr().out == levels[level]


def test_opt_in_another_process_imports_the_pass(at_every_point: Program, tmp_path: Path) -> None:
    levels = levels_of(at_every_point)
    (tmp_path / "before.mlir").write_text(levels["cluster"])
    command = [sys.executable, "-m", "piper.opt", "before.mlir", *FLAGS["programs"]]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    made = subprocess.run(
        command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert made.stderr == ""
    assert made.stdout == levels["programs"]


def test_opt_without_the_module_of_the_pass(
    at_every_point: Program,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "before.mlir").write_text(levels_of(at_every_point)["cluster"])
    monkeypatch.delitem(sys.modules, "toy_passes")
    monkeypatch.setattr(sys, "path", [p for p in sys.path if Path(p) != Path(__file__).parent])
    assert opt.main([str(tmp_path / "before.mlir"), *FLAGS["programs"]]) == 1
    assert re.search(
        rf"{HERE}: user_pass 'toy_passes:add_stream' expected module 'toy_passes' to be importable "
        r"\(its folder in sys\.path, to which PYTHONPATH adds\), got ModuleNotFoundError",
        capsys.readouterr().err,
    )


@pytest.mark.parametrize(
    ("before", "flags", "at"),
    [
        ("step", ["--piper-user-passes=at=step"], "step"),
        ("chunks", FLAGS["cluster"], "chunks"),
        ("chunks", ["--pass-pipeline=builtin.module(piper-record)"], "chunks"),
        ("cluster", FLAGS["programs"], "cluster"),
    ],
)
def test_piper_opt_refuses_by_name(
    before: str, flags: list[str], at: str, at_every_point: Program
) -> None:
    made = piper_opt(levels_of(at_every_point)[before], *flags)
    assert made.returncode == 1
    assert made.stdout == ""
    assert re.search(
        rf"{HERE}:\d+: error: 'piper\.do\.user_pass' op expected a driver that runs the Python "
        rf'pass "toy_passes:add_stream" at "{at}", such as python -m piper\.opt, got one without '
        r"Python",
        made.stderr,
    )


def test_a_pass_that_was_left_out_is_refused(
    at_every_point: Program, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whoever names single passes may forget the point before them."""
    step, flags = levels_of(at_every_point)["step"], [*FLAGS["chunks"], *FLAGS["cluster"]]
    file = tmp_path / "step.mlir"
    file.write_text(step)
    assert opt.main([str(file), *flags]) == 1
    message = (
        'expected the Python pass "toy_passes:add_stream" to have run at "step", where '
        'piper-user-passes{at=step} stands, got to "chunks" without it'
    )
    assert message in capsys.readouterr().err
    assert message in piper_opt(step, *flags).stderr


def test_piper_opt_goes_on_behind_the_last_point(at_every_point: Program) -> None:
    levels = levels_of(at_every_point)
    behind = re.sub(r"  piper\.do\.user_pass .* at \"cluster\" .*\n", "", levels["cluster"])
    assert behind.count("piper.do.user_pass") == 3
    made = piper_opt(behind, *FLAGS["programs"])
    assert made.stderr == ""
    assert made.stdout.count("piper.program @") == levels["programs"].count("piper.program @")


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ('"toy_passes:removed" at "chunks"', r"expected a function of module .*add_stream.*got 'r"),
        ('"toy_passes:add_stream" at "chunks" options {title = "a"}', "expected the arguments"),
        (
            '"toy_passes:add_stream" at "chunks" options {name = 1}',
            "option name must be str, got 1",
        ),
    ],
)
def test_what_a_text_says_is_checked_like_what_a_strategy_says(
    said: str, message: str, at_every_point: Program
) -> None:
    text = levels_of(at_every_point)["chunks"]
    known = '"toy_passes:add_stream" at "chunks" options {name = "at.chunks"}'
    assert known in text
    with (
        ir.Context(),
        pytest.raises(piper.CompileError, match=rf"{HERE}: user_pass 'toy_passes:\w+' .*{message}"),
    ):
        run_passes(ir.Module.parse(text.replace(known, said)), "builtin.module(piper-record)")


# Scripts.

SCRIPT = """
import piper, torch
print("once")
def own(module): print("called in", __name__)
linear = torch.nn.Linear(2, 2)
directives = [piper.annotate({"*": "layer"}), piper.user_pass("script:own", at="chunks")]
strategy = piper.Strategy(mesh={}, directives=directives)
model = torch.nn.Sequential(linear)
piper.compile(model, lambda m, x: m(x).sum(), strategy, torch.zeros(2, 2))
"""


def test_a_script_that_names_its_own_function_is_not_run_twice(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    command = [sys.executable, "script.py"]
    made = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr
    assert made.stdout.splitlines() == ["once", "called in __main__"]


def test_pipelines_of_other_ops_and_empty_ones_run() -> None:
    text = """
    piper.mesh @mesh []
    piper.strategy @strategy mesh = @mesh {
      piper.do.user_pass "toy_passes:find_nothing" at "cluster"
    }
    """
    with ir.Context():
        for pipeline in ("any(cse)", "builtin.module()", "builtin.module(any(cse,cse),cse)"):
            run_passes(ir.Module.parse(text), pipeline)
        with pytest.raises(ValueError, match="expected pass pipeline to be wrapped"):
            run_passes(ir.Module.parse(text), "cse")
