"""Settings that keep capture tests fast."""

import logging

import torch

# pytest adds its handlers to loggers that do not propagate, and torch writes its structured trace,
# which makes a capture several times slower, only while that logger has a handler.
logging.getLogger("torch.__trace").propagate = True
torch.set_num_threads(1)
