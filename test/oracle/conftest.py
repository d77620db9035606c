"""Settings that keep the tests fast, and the examples' models."""

import logging
import sys
from pathlib import Path

import torch

# pytest adds its handlers to loggers that do not propagate, and torch writes its structured trace,
# thousands of records per capture, only while that logger has a handler.
logging.getLogger("torch.__trace").propagate = True
torch.set_num_threads(1)  # models this small only wait for a second thread
sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
