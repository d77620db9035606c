"""The ops and enums of the Piper dialect, generated from TableGen."""

from ._piper_enum_gen import *
from ._piper_ops_gen import *
