"""Compile once: one rank compiles and the others get its program, or say why not."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import piper
import pytest
import torch
from mlp_program import program_texts
from piper.share import PIECE, Artifact, ShareError, is_shared, open_store, share
from piper_runtime import Program
from piper_runtime.program import seal
from torch import Tensor
from torch._C._distributed_c10d import HashStore
from torchrun import torchrun

WORKER = Path(__file__).with_name("share_worker.py")
NUM_RANKS = 4
TEXTS = {"kernels.py": "import torch\n", "ir/step.mlir": "# é\n" * 10}
CONSTANTS = {"const": torch.arange(6, dtype=torch.bfloat16).view(2, 3), "flag": torch.tensor(True)}


def artifact(texts: Mapping[str, str] = TEXTS) -> Callable[[], Artifact]:
    return lambda: (texts, CONSTANTS)


def never() -> Artifact:
    raise AssertionError("only rank 0 compiles")


def give(store: HashStore, make: Callable[[], Artifact], about: str = "one") -> Artifact:
    return share(make, store, rank=0, about=about, timeout=1.0)


def take(store: HashStore, rank: int = 1, about: str = "one", timeout: float = 1.0) -> Artifact:
    return share(never, store, rank=rank, about=about, timeout=timeout)


def same(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(
        value.dtype == other[name].dtype and torch.equal(value, other[name])
        for name, value in one.items()
    )


# Between ranks, over a store in this process.


def test_others_get_the_texts_and_constants_bit_for_bit() -> None:
    store = HashStore()
    assert give(store, artifact()) == (TEXTS, CONSTANTS)
    for rank in (1, 2):
        texts, constants = take(store, rank)
        assert texts == TEXTS
        assert same(constants, CONSTANTS)


def test_programs_larger_than_a_value_of_the_store_are_cut() -> None:
    store = HashStore()
    noise = torch.randint(2**31, (PIECE // 2,), generator=torch.Generator().manual_seed(0))
    large = {"large": noise}
    share(lambda: (TEXTS, large), store, rank=0, about="", timeout=1.0)
    assert store.check(["piper_compile/1/4"])
    texts, constants = share(never, store, rank=1, about="", timeout=1.0)
    assert texts == TEXTS
    assert same(constants, large)


def test_ranks_that_come_first_wait() -> None:
    store, found = HashStore(), []
    waiting = threading.Thread(target=lambda: found.append(take(store, timeout=60.0)))
    waiting.start()
    give(store, artifact())
    waiting.join(timeout=60.0)
    assert found[0][0] == TEXTS


def test_programs_come_in_the_order_of_the_calls() -> None:
    store = HashStore()
    give(store, artifact())
    give(store, artifact({"second.py": ""}))
    assert take(store)[0] == TEXTS
    assert take(store)[0] == {"second.py": ""}
    assert take(store, rank=2)[0] == TEXTS


def test_an_error_of_rank_0_is_everyones() -> None:
    store = HashStore()

    def fail() -> Artifact:
        raise piper.CompileError("model.py:3: stages expected a divisor of 4, got 3")

    with pytest.raises(piper.CompileError, match="expected a divisor"):
        give(store, fail)
    message = r"rank 0 could not compile:\nCompileError: model.py:3: stages expected a divisor of 4"
    with pytest.raises(ShareError, match=message):
        take(store)


def test_a_rank_0_that_never_compiles_is_an_error() -> None:
    message = "rank 2 waited 0 s for rank 0 to compile: every rank must call piper.compile"
    with pytest.raises(ShareError, match=message):
        take(HashStore(), rank=2, timeout=0.2)


def test_another_strategy_is_an_error_with_the_line_that_differs() -> None:
    store = HashStore()
    give(store, artifact(), about="mesh pp=2\n  split 4\n")
    message = "rank 3 expected the strategy of rank 0: 'split 4', got 'split 8'"
    with pytest.raises(ShareError, match=message):
        take(store, rank=3, about="mesh pp=2\n  split 8\n")
    give(store, artifact(), about="mesh pp=2\n  split 4\n")
    with pytest.raises(ShareError, match="got 'nothing'"):
        take(store, rank=3, about="mesh pp=2\n")


def test_a_program_that_was_changed_on_the_way_is_an_error() -> None:
    store = HashStore()
    give(store, artifact())
    store.set("piper_compile/1/0", "x")
    with pytest.raises(ShareError, match=r"expected a program of hash .*, got another one"):
        take(store)


def test_one_process_shares_with_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("RANK", "0"), ("MASTER_ADDR", "localhost"), ("MASTER_PORT", "1")):
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    assert not is_shared()
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert not is_shared()
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert is_shared()
    monkeypatch.delenv("MASTER_PORT")
    assert not is_shared()


def test_rank_0_keeps_its_store_until_all_are_through(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without torchrun, whose agent keeps the store, rank 0 of two does."""
    store = HashStore()
    handler: Any = lambda url, timeout: iter([(store, 0, 2)])
    monkeypatch.setattr("piper.share.rendezvous", handler)
    monkeypatch.delenv("TORCHELASTIC_USE_AGENT_STORE", raising=False)
    with (
        pytest.raises(ShareError, match="rank 0 waited 0 s for the other ranks to compile as well"),
        open_store(timeout=0.2),
    ):
        pass
    store.add("piper_compile/through", 2)
    with open_store(timeout=0.2):
        pass


# What is saved.


def test_an_artifact_replaces_an_older_one_and_keeps_other_files(tmp_path: Path) -> None:
    larger = seal(program_texts() | {"ir/step.mlir": "", "ir/old.mlir": ""}, CONSTANTS)
    Program(larger, constants=CONSTANTS).save(tmp_path)
    (tmp_path / "notes.txt").write_text("mine")
    texts = json.loads(larger["manifest.json"])
    assert texts["programs"] == ["program_pp0.py", "program_pp1.py"]
    smaller = seal(program_texts(num=2) | {"ir/step.mlir": "new"}, {})
    Program(smaller).save(tmp_path)
    opened = Program.open(tmp_path)
    assert opened.texts == smaller
    assert opened.constants == {}
    files = {str(file.relative_to(tmp_path)) for file in tmp_path.rglob("*") if file.is_file()}
    assert files == {*opened.texts, "notes.txt"}


def test_a_folder_whose_files_are_of_two_programs_is_refused(tmp_path: Path) -> None:
    Program(program_texts()).save(tmp_path)
    other = Program(program_texts(num=2))
    (tmp_path / "program_pp1.py").write_text(other.texts["program_pp1.py"])
    with pytest.raises(ValueError, match=r"expected hash .* \(its files were changed\)"):
        Program.open(tmp_path)


# Between processes.


@pytest.fixture(scope="module")
def launched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run the cases of the worker under torchrun."""
    folder = tmp_path_factory.mktemp("share")
    for case in ("train", "refuse", "mix"):
        done = torchrun(WORKER, folder, case, count=NUM_RANKS)
        assert (done.returncode == 0) == (case != "mix"), done.stderr
    return folder


def seen(folder: Path, case: str) -> list[dict[str, Any]]:
    return [json.loads((folder / f"{case}{rank}.json").read_text()) for rank in range(NUM_RANKS)]


@pytest.mark.slow
def test_under_torchrun_only_rank_0_captures_and_all_train_alike(launched: Path) -> None:
    ranks = seen(launched, "train")
    assert [rank["captured"] for rank in ranks] == [2, 0, 0, 0]
    assert len({rank["hash"] for rank in ranks}) == 1
    assert len({tuple(rank["losses"]) for rank in ranks}) == 1
    assert all(rank["compared"] > 50 and rank["unknown"] == 0 for rank in ranks)


@pytest.mark.slow
def test_under_torchrun_ranks_refuse_to_run_different_programs(launched: Path) -> None:
    for rank in seen(launched, "train"):
        assert "ranks expected one program, got " in rank["other"]
        assert " on ranks [0, 1, 3] and " in rank["other"]
        assert " on ranks [2]: compile it once" in rank["other"]


@pytest.mark.slow
def test_under_torchrun_a_saved_program_is_text_and_tensors(launched: Path) -> None:
    folder = launched / "saved"
    suffixes = {file.suffix for file in folder.rglob("*") if file.is_file()}
    assert suffixes == {".py", ".json", ".mlir"}
    assert Program.open(folder).manifest.mesh.world_size == NUM_RANKS


@pytest.mark.slow
def test_under_torchrun_refusals_reach_all_ranks(launched: Path) -> None:
    ranks = seen(launched, "refuse")
    matches = "CaptureError: annotation 'blocks.*' matches no module"
    assert ranks[0]["errors"][0].startswith(matches)
    for rank in ranks[1:]:
        assert rank["errors"][0].startswith(f"ShareError: rank 0 could not compile:\n{matches}")
    assert [rank["errors"][1] for rank in ranks[:3]] == [""] * 3
    assert "rank 3 expected the strategy of rank 0: 'piper.schedule" in ranks[3]["errors"][1]
    for rank in ranks[1:]:
        assert "waited 1 s for rank 0 to compile" in rank["errors"][2]
        assert rank["seconds"] < 30


@pytest.mark.slow
def test_under_torchrun_messages_say_what_they_carry_in_check_mode(launched: Path) -> None:
    message = (
        "members of a communicator expected one value, got layer.1$F#1 of microbatch 1 here and "
        "layer.1$F#1 of microbatch 0 of rank "
    )
    for rank in seen(launched, "mix"):
        assert message in rank["error"]
