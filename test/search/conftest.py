"""Settings that keep captures fast."""

import logging

import torch

# pytest would record torch's structured trace log, which makes a capture several times slower.
logging.getLogger("torch.__trace").propagate = False
torch.set_num_threads(1)
