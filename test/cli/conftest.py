"""Settings that keep captures fast, and the small model of other folders."""

import logging
import sys
from pathlib import Path

import torch

# pytest would record torch's structured trace log, which makes a capture several times slower.
logging.getLogger("torch.__trace").propagate = False
torch.set_num_threads(1)
sys.path.append(str(Path(__file__).parents[1] / "simulate"))
