"""Benchmarks are scripts, which import each other by name."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
torch.set_num_threads(1)
