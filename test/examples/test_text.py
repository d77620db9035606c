"""The example's text: the same everywhere, split by file, sampled without state."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import text
import torch


def test_every_file_is_in_one_split() -> None:
    root = Path(json.__file__).parents[1]
    train = set(text._files(root, held_out=False))
    validation = set(text._files(root, held_out=True))
    assert not train & validation
    assert Path(json.__file__) in train | validation
    assert 0.05 < len(validation) / len(train | validation) < 0.2


def test_split_names_are_checked() -> None:
    with pytest.raises(ValueError, match="split must be 'train' or 'validation', got 'test'"):
        text.load("test")


def test_labels_are_the_next_byte() -> None:
    batch = text.sample("validation", batch=5, context=7, seed=3, step=4)
    assert batch["ids"].shape == batch["labels"].shape == (5, 7)
    assert batch["ids"].dtype == batch["labels"].dtype == torch.int64
    assert torch.equal(batch["ids"][:, 1:], batch["labels"][:, :-1])
    window = bytes(batch["ids"][0].tolist())
    assert window in bytes(text.load("validation").tolist())


def test_samples_depend_on_seed_and_step_alone() -> None:
    def ids(seed: int, step: int) -> torch.Tensor:
        return text.sample("validation", batch=4, context=16, seed=seed, step=step)["ids"]

    first = ids(0, 1)
    torch.manual_seed(7)
    assert torch.equal(ids(0, 1), first)
    assert not torch.equal(ids(0, 2), first)
    assert not torch.equal(ids(1, 1), first)


def test_entropies_of_known_text(monkeypatch: pytest.MonkeyPatch) -> None:
    abab = torch.tensor([97, 98] * 500 + [97], dtype=torch.uint8)
    monkeypatch.setattr(text, "load", lambda split: abab)
    unigram, bigram = text.entropies("validation")
    assert unigram == pytest.approx(math.log(2))
    assert bigram == pytest.approx(0, abs=1e-12)


def test_bytes_of_source_can_be_predicted() -> None:
    unigram, bigram = text.entropies("validation")
    assert 2.2 < bigram < 2.6
    assert 3.0 < unigram < 3.4
