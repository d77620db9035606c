"""The way out: the texts of an artifact, from the last levels of the IR."""

from piper.emit.kernels import emit_kernels
from piper.emit.manifest import emit_manifest
from piper.emit.programs import emit_programs

__all__ = ["emit_kernels", "emit_manifest", "emit_programs"]
