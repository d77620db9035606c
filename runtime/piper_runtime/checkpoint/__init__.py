"""Checkpoints: the state of a trainer in the format of torch.distributed.checkpoint, by FQN.

Every process writes its own part and reads what it holds, so the strategy that loads need not be
the one that saved. Read first: ``keys`` (what is in a checkpoint), then ``saving``, ``loading``.
"""

from piper_runtime.checkpoint.loading import load_checkpoint
from piper_runtime.checkpoint.saving import save_checkpoint

__all__ = ["load_checkpoint", "save_checkpoint"]
