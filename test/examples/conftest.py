"""Makes the examples importable, as they are for each other when one is run."""

import sys
from pathlib import Path

import torch

torch.set_num_threads(1)  # models this small only wait for a second thread
sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
