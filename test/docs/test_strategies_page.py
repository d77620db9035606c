"""What docs/strategies.md says of axes, chunks and batches is so."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import piper
import pytest
import torch
from piper.strategy import Directive, Strategy
from piper.strategy.mesh import ROLES
from torch import Tensor, nn
from torch.nn import functional

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "strategies.md").read_text()
AXES, CHUNKS, BATCH = re.split(r"^## ", PAGE, flags=re.MULTILINE)[1:]


def names_of(section: str) -> dict[str, Any]:
    """What the block of a section defines."""
    names: dict[str, Any] = {"piper": piper, "torch": torch, "nn": nn}
    (block,) = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    exec(block, names)  # noqa: S102 (the page is ours)
    return names


def loss_fn(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    return functional.cross_entropy(model(batch["ids"]), batch["labels"])


def chunks_of(*given: Directive) -> set[str]:
    """The chunks of the model of the page with directives."""
    batch = {"ids": torch.arange(8), "labels": torch.arange(8)}
    strategy = Strategy(mesh={"dp": 1}, directives=[*given, piper.replicate()])
    program = piper.compile(names_of(CHUNKS)["Model"](), loss_fn, strategy, batch)
    return set(re.findall(r"piper\.chunk @([\w.]+)\$F", program.texts["ir/programs.mlir"]))


def test_axes_are_all_axes() -> None:
    rows = [line.split("|")[1] for line in AXES.splitlines() if line.startswith("| `")]
    assert [name for row in rows for name in re.findall(r"`(\w+)`", row)] == list(ROLES)


def test_axes_are_used_as_the_table_says() -> None:
    rows = [line.split("|")[3] for line in AXES.splitlines() if line.startswith("| `")]
    calls = [text.replace("...", "1") for row in rows for text in re.findall(r"`([^`]+)`", row)]
    names = {name: getattr(piper, name) for name in piper.__all__}
    used = {axis for call in calls for axis in eval(call, names).axes()}
    assert used == set(ROLES)


def test_an_axis_that_nothing_uses_is_refused() -> None:
    with pytest.raises(ValueError, match="'dp' of size 2 is used by no directive"):
        Strategy(mesh={"dp": 2}, directives=[])


def test_chunks_of_the_model() -> None:
    (said,) = re.findall(r"This makes the chunks (.*)\.\n", CHUNKS)
    assert chunks_of(names_of(CHUNKS)["tags"]) == set(re.findall(r"`([\w.]+)`", said))


def test_inner_annotations_and_lists_are_refused() -> None:
    (inner,) = re.findall(r"\*\* `(\{[^`]*\})` is refused", CHUNKS)
    tags = eval(inner)
    with pytest.raises(ValueError, match=r"'layers\.\*\.0' names no chunk.*outermost"):
        chunks_of(piper.annotate(tags | {"head": "last"}))
    with pytest.raises(ValueError, match=r"'layers' names no chunk.*'layers\.\*'"):
        chunks_of(piper.annotate({"layers": "layer", "head": "last"}))


def test_the_whole_model() -> None:
    (call,) = re.findall(r"`(piper\.annotate\(\{\"\".*?)`", CHUNKS)
    given = eval(call)
    assert chunks_of(given) == {"model.0"}


def test_how_the_batch_is_cut() -> None:
    cut = names_of(BATCH)["cut"]
    given = Strategy(mesh={"dp": 2}, directives=[piper.replicate(), cut])
    assert given.microbatches * given.num_data_shards == 8
    assert set(given.dims) == {"position", "temperature", "weights"}
