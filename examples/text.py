"""Text to train on, without a download: the Python standard library's own source, as bytes."""

from __future__ import annotations

import functools
import sysconfig
import zlib
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

_SKIP = {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"}
_VALIDATION = 10  # one file in ten is held out


@functools.cache
def load(split: str) -> Tensor:
    """The source files of split "train" or "validation", joined in path order: (bytes,) uint8.

    A file's split depends on its path alone, so every process and every run sees the same text.
    """
    if split not in ("train", "validation"):
        raise ValueError(f"split must be 'train' or 'validation', got {split!r}")
    root = Path(sysconfig.get_paths()["stdlib"])
    text = b"".join(path.read_bytes() for path in _files(root, held_out=split == "validation"))
    return torch.frombuffer(bytearray(text), dtype=torch.uint8)


def _files(root: Path, *, held_out: bool) -> Iterator[Path]:
    """Source files under `root` of one side of the split, sorted by path relative to it."""
    for path in sorted(root.rglob("*.py")):
        name = path.relative_to(root)
        chosen = (zlib.crc32(name.as_posix().encode()) % _VALIDATION == 0) == held_out
        if chosen and _SKIP.isdisjoint(name.parts):
            yield path


def sample(split: str, *, batch: int, context: int, seed: int, step: int) -> dict[str, Tensor]:
    """Random windows: {"ids", "labels"}, each (batch, context) int64, labels one byte on.

    The same arguments give the same batch everywhere; nothing is carried from step to step.
    """
    data = load(split)
    generator = torch.Generator().manual_seed(seed * 1_000_003 + step)
    starts = torch.randint(len(data) - context, (batch, 1), generator=generator)
    windows = data[starts + torch.arange(context + 1)].long()
    return {"ids": windows[:, :-1].contiguous(), "labels": windows[:, 1:].contiguous()}


def entropies(split: str) -> tuple[float, float]:
    """Unigram and bigram entropy of a split in nats per byte.

    They are what the best model that sees no byte, or only the last one, could reach on this text.
    """
    data = load(split).long()
    pairs = torch.bincount(data[:-1] * 256 + data[1:], minlength=256 * 256).view(256, 256).double()
    joint, single = pairs / pairs.sum(), pairs.sum(0) / pairs.sum()
    context = pairs.sum(1) / pairs.sum()
    return _entropy(single), _entropy(joint) - _entropy(context)


def _entropy(p: Tensor) -> float:
    return float(torch.special.entr(p).sum())
