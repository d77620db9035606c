"""Backends of kernels: which kernels are compiled, once, where they are kept, what goes wrong."""

from __future__ import annotations

import io
import json
import multiprocessing
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from mlp_program import program_texts
from piper_runtime import Program, ProgramError
from piper_runtime.kernels import KernelError, KernelReport, bind_kernels, cache_folder
from piper_runtime.kernels.cache import KernelCache
from piper_runtime.kernels.compile import compile_missing, default_jobs
from piper_runtime.kernels.inductor import (
    SETTINGS,
    adapt,
    compile_kernel,
    libraries_in,
    settings_for,
)
from piper_runtime.kernels.source import (
    KernelSource,
    empty_arguments,
    kernels_used,
    read_kernels,
)
from torch import Tensor
from torch._inductor import config

CPU = torch.device("cpu")
COMPILER = [sys.executable, str(Path(__file__).with_name("fake_compiler.py"))]

TEXT = '''"""Kernels."""

from __future__ import annotations

import torch

device = torch.device("cpu")

# Ops that torch has no function for.
gelu_backward_default = torch.ops.aten.gelu_backward.default._op


def norm(a0: float32[4, 8], a1: int64[()]):
    v0 = torch.relu(a0)  # model.py:3
    return v0, a1 + 1


def gelu(a0: float32[4], a1: float32[4]):
    v0 = gelu_backward_default(a0, a1)
    return v0


def nothing():
    v0 = torch.arange(4, device=device)
    return None
'''


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def source(name: str, *, count: int = 1) -> KernelSource:
    return KernelSource(name, f"def {name}():\n    return 1\n", count)


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[tuple[str, str]]]:
    """Return what has been compiled so far, as (process, kernel)."""
    file = tmp_path / "log"
    file.touch()
    monkeypatch.setenv("FAKE_COMPILER_LOG", str(file))

    def read() -> list[tuple[str, str]]:
        pairs = [line.split(" ") for line in file.read_text().splitlines()]
        return [(process, name) for process, name in pairs]

    return read


@pytest.fixture
def cache(tmp_path: Path) -> KernelCache:
    return KernelCache(tmp_path / "cache", CPU, {})


def compile_all(cache: KernelCache, names: str, *, jobs: int = 2) -> list[str]:
    sources = [source(name) for name in names.split()]
    return sorted(compile_missing(sources, cache, jobs=jobs, command=COMPILER))


# Texts.


def test_each_kernel_is_a_module_with_what_it_uses() -> None:
    norm, gelu, nothing = read_kernels(TEXT, {"norm", "gelu", "nothing", "view"})
    assert [kernel.num_results for kernel in (norm, gelu, nothing)] == [2, 1, 0]
    assert "gelu_backward_default = " in gelu.text
    assert "gelu_backward_default" not in norm.text + nothing.text
    assert "device = " in nothing.text
    assert "device = " not in norm.text
    assert [kernel.name for kernel in read_kernels(TEXT, {"gelu"})] == ["gelu"]


def test_comments_do_not_change_a_kernel() -> None:
    moved = TEXT.replace("model.py:3", "model.py:4")
    assert moved != TEXT
    assert read_kernels(moved, {"norm"}) == read_kernels(TEXT, {"norm"})
    assert read_kernels(TEXT.replace("4, 8", "4, 9"), {"norm"}) != read_kernels(TEXT, {"norm"})


def test_a_kernel_runs_from_its_text_alone() -> None:
    [gelu] = read_kernels(TEXT, {"gelu"})
    x, y = torch.randn(4), torch.randn(4)
    wanted = torch.ops.aten.gelu_backward.default(x, y)
    assert torch.equal(gelu.function(CPU)(x, y), wanted)
    nothing = read_kernels(TEXT, {"nothing"})[0].function(torch.device("meta"))
    assert nothing.__globals__["device"] == torch.device("meta")


def test_arguments_come_from_annotations() -> None:
    [norm] = read_kernels(TEXT, {"norm"})
    first, second = empty_arguments(norm.function(CPU), CPU)
    assert (first.shape, first.dtype) == ((4, 8), torch.float32)
    assert (second.shape, second.dtype) == ((), torch.int64)
    [norm] = read_kernels(TEXT.replace(": int64[()]", ""), {"norm"})
    with pytest.raises(ProgramError, match=r"'a1' .* type such as float32\[4, 8\], got None"):
        empty_arguments(norm.function(CPU), CPU)


def test_the_kernels_that_rank_programs_call() -> None:
    texts = program_texts()
    first, second = Program(texts).load(CPU).modules

    def used(*modules: ModuleType) -> list[str]:
        return [kernel.name for kernel in read_kernels(texts["kernels.py"], kernels_used(modules))]

    stem = ["linear_relu", "linear_relu_backward"]
    assert used(first) == ["embedding", "embedding_backward", *stem]
    assert used(second) == [*stem, "head", "head_backward", "count"]
    assert len(used(first, second)) == 7


def test_a_kernel_ends_in_a_return() -> None:
    with pytest.raises(ProgramError, match="kernel 'odd' expected to end in a return"):
        read_kernels("import torch\ndef odd():\n    pass\n", {"odd"})


# Compiling and keeping.


def test_kernels_are_compiled_once(cache: KernelCache, log: Callable[[], Any]) -> None:
    assert compile_all(cache, "one two three") == ["one", "three", "two"]
    assert compile_all(cache, "one four") == ["four"]
    assert sorted(name for _, name in log()) == ["four", "one", "three", "two"]
    assert cache.path(source("one")).read_text().startswith("def call(args):")


def test_processes_work_at_the_same_time_and_are_bounded(
    cache: KernelCache, log: Callable[[], Any]
) -> None:
    compile_all(cache, "meet_1 meet_2 a b c d")
    assert len({process for process, _ in log()}) == 2


@pytest.mark.parametrize("jobs", [1, 3])
def test_a_terminal_shows_how_many_kernels_are_done(
    jobs: int, cache: KernelCache, log: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    for name in ("PIPER_PROGRESS", "RANK"):
        monkeypatch.delenv(name, raising=False)
    compile_all(cache, "one two three", jobs=jobs)
    shown = stream.getvalue().split("\r\x1b[K")[1:]
    assert shown[:-1] == [f"piper: kernels {n} of 3 ..." for n in range(4)]
    assert re.fullmatch(r"piper: kernels 3 of 3 \d+\.\ds\n", shown[-1])
    stream.truncate(0)
    compile_all(cache, "one two", jobs=jobs)
    assert stream.getvalue() == ""  # all were there
    with pytest.raises(KernelError):
        compile_all(cache, "bad_1", jobs=jobs)
    assert "piper: kernels 0 of 1 failed after " in stream.getvalue()


def test_no_process_is_started_for_nothing(cache: KernelCache, log: Callable[[], Any]) -> None:
    compile_all(cache, "one", jobs=8)
    compile_all(cache, "one", jobs=8)
    assert len(log()) == 1


def test_what_another_process_compiles_is_waited_for(
    cache: KernelCache, log: Callable[[], Any]
) -> None:
    """One of two kernels is claimed, and written only when the other one is done."""
    claimed = source("claimed")

    def write_when_other_is_done() -> None:
        with cache.claim(claimed) as mine:
            assert mine
            ready.set()
            while not cache.path(source("other")).is_file():
                pass
            cache.write(claimed, "def call(args): ...")

    context = multiprocessing.get_context("fork")
    ready = context.Event()
    process = context.Process(target=write_when_other_is_done)
    process.start()
    assert ready.wait(60)
    assert compile_all(cache, "claimed other", jobs=1) == ["other"]
    process.join()
    assert [name for _, name in log()] == ["other"]


def test_a_kernel_that_fails_is_named(cache: KernelCache, log: Callable[[], Any]) -> None:
    with pytest.raises(
        KernelError,
        match="kernel 'bad_1' could not be compiled by inductor: ValueError: no such op",
    ):
        compile_all(cache, "bad_1 one", jobs=1)
    assert [name for _, name in log()] == ["bad_1"]
    with pytest.raises(KernelError, match=r"'fatal_1' .* the compiling process ended with code 3"):
        compile_all(cache, "fatal_1")
    assert not cache.path(source("bad_1")).is_file()


def test_the_key_is_all_that_a_compiled_kernel_depends_on(tmp_path: Path) -> None:
    def key(kernel: KernelSource, **settings: object) -> Path:
        return KernelCache(tmp_path, CPU, settings).path(kernel)

    one = source("one")
    assert key(one) == key(source("one"))
    assert len({key(one), key(source("two")), key(one, x=1)}) == 3
    before = key(one)
    threads = torch.get_num_threads()
    torch.set_num_threads(threads + 1)
    try:
        assert key(one) != before
    finally:
        torch.set_num_threads(threads)


def test_deterministic_kernels_are_compiled_as_such_and_kept_apart(
    tmp_path: Path, log: Callable[[], Any]
) -> None:
    paths = []
    for deterministic in (False, True):
        cache = KernelCache(tmp_path, CPU, settings_for(deterministic=deterministic))
        compile_all(cache, "settings")
        paths.append(cache.path(source("settings")))
    plain, strict = (json.loads(path.read_text()) for path in paths)
    assert plain == SETTINGS
    assert strict == SETTINGS | {"deterministic": True}


@pytest.mark.parametrize("deterministic", [False, True])
def test_torch_is_deterministic_while_such_kernels_are_compiled(
    deterministic: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    def note(*args: object, **options: object) -> None:
        seen.append((torch.are_deterministic_algorithms_enabled(), config.deterministic))
        raise ZeroDivisionError

    monkeypatch.setattr("torch._inductor.compile_fx.compile_fx_inner", note)
    [kernel] = read_kernels(TEXT, {"gelu"})
    with pytest.raises(ZeroDivisionError):
        compile_kernel(kernel, CPU, settings=settings_for(deterministic=deterministic))
    assert seen == [(deterministic, deterministic)]
    assert not torch.are_deterministic_algorithms_enabled()
    assert not config.deterministic


def test_where_kernels_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIPER_CACHE", "/a/b")
    assert cache_folder() == Path("/a/b")
    monkeypatch.delenv("PIPER_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/c")
    assert cache_folder() == Path("/c/piper")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/me")
    assert cache_folder() == Path("/home/me/.cache/piper")


def test_ranks_of_one_machine_share_its_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    assert default_jobs() == 8
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert default_jobs() == 2
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "16")
    assert default_jobs() == 1


def test_libraries_lie_in_the_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    name = "TORCHINDUCTOR_CACHE_DIR"
    for before in ("/before", None):
        monkeypatch.setenv(name, before) if before else monkeypatch.delenv(name)
        with libraries_in(tmp_path):
            assert os.environ[name] == str(tmp_path)
        assert os.environ.get(name) == before


# Calling.


def test_one_result_is_a_tensor_and_several_are_a_tuple() -> None:
    x = torch.ones(2)
    assert torch.equal(adapt(lambda args: (args[0] * 2,), 1, aligned=False)(x), x * 2)
    several = adapt(lambda args: (args[0] * 2, args[0] * 3), 2, aligned=False)(x)
    assert isinstance(several, tuple)
    assert torch.equal(several[1], x * 3)


def test_results_own_their_memory() -> None:
    def call(args: list[Tensor]) -> tuple[Tensor, ...]:
        both = torch.arange(4.0)
        return both[:2], args[0], both[2:], torch.zeros(1)

    kernel, x = adapt(call, 4, aligned=False), torch.ones(2)
    for _ in range(2):
        results = kernel(x)
        storages = {result.untyped_storage().data_ptr() for result in (x, *results)}
        assert len(storages) == 5
        assert [result.tolist() for result in results] == [[0, 1], [1, 1], [2, 3], [0]]


def test_arguments_are_aligned_where_kernels_count_on_it() -> None:
    def starts(args: list[Tensor]) -> tuple[Tensor, ...]:
        return (torch.tensor([arg.data_ptr() % 16 for arg in args]),)

    odd, even = torch.ones(5)[1:], torch.ones(4)
    assert adapt(starts, 1, aligned=True)(odd, even).tolist() == [0, 0]
    assert adapt(starts, 1, aligned=False)(odd, even).tolist() == [4, 0]


# Binding.


def bind(backend: str | None, device: torch.device = CPU) -> tuple[KernelReport, ModuleType]:
    program = Program(program_texts())
    loaded = program.load(CPU)
    report = bind_kernels(program, loaded, backend=backend, device=device, coordinates=[0, 1])
    return report, loaded.modules[0].k


def test_eager_is_the_default_on_a_cpu() -> None:
    report, kernels = bind(None)
    assert str(report) == "kernels eager"
    assert kernels.embedding.__module__ == kernels.__name__


def test_unknown_backends_are_refused() -> None:
    with pytest.raises(ValueError, match="kernels expected one of eager, inductor, got 'mlir'"):
        bind("mlir")


def test_reports_say_what_was_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIPER_CACHE", "/c")
    report = KernelReport("inductor", ("a", "b"), ("c",), 41.2)
    assert str(report) == "kernels inductor: 2 compiled, 1 from /c, in 41 s"
