"""Makes the models of other folders importable, and keeps captures fast."""

import logging
import sys
from pathlib import Path

import torch

# pytest would record torch's structured trace log, which makes a capture several times slower.
logging.getLogger("torch.__trace").propagate = False
torch.set_num_threads(1)
ROOT = Path(__file__).parents[2]
folders = ("test/frontend", "test/oracle", "test/runtime", "test/simulate", "examples")
sys.path[:0] = [str(ROOT / folder) for folder in folders]
