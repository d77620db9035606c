"""Settings that keep the tests fast, and the helpers and models of other folders."""

import logging
import sys
from pathlib import Path

import torch

# See test/oracle/conftest.py.
logging.getLogger("torch.__trace").propagate = True
torch.set_num_threads(1)
for folder in ("test/compiler", "test/oracle", "examples"):
    sys.path.append(str(Path(__file__).parents[2] / folder))
