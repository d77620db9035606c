"""Piper: a compiler for distributed PyTorch training."""
