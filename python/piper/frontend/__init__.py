"""The way in: a training step of an unmodified PyTorch model, captured as one tagged graph of ATen
ops.

Read ``data`` (what a capture is), then ``capture`` (the flow).
"""

from piper.frontend.annotations import annotate_context
from piper.frontend.capture import capture, capture_eval
from piper.frontend.data import (
    Capture,
    CaptureError,
    Contribution,
    InputSpec,
    LossSpec,
    OpSite,
    Role,
    StateSpec,
    Tag,
)
from piper.frontend.rules import register_rule

__all__ = [
    "Capture",
    "CaptureError",
    "Contribution",
    "InputSpec",
    "LossSpec",
    "OpSite",
    "Role",
    "StateSpec",
    "Tag",
    "annotate_context",
    "capture",
    "capture_eval",
    "register_rule",
]
