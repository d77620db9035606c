"""Sequences that ranks share out: the part that is captured, and what depends on its length."""
