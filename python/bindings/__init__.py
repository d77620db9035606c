"""MLIR's Python bindings with the Piper dialect and its passes registered."""
