"""Finding the order of a pipeline from what its actions cost and how much its ranks may hold."""

from piper.search.auto import AutoOrder, auto_order
from piper.search.bounds import Bound, lower_bound
from piper.search.problem import Memory, Problem

__all__ = ["AutoOrder", "Bound", "Memory", "Problem", "auto_order", "lower_bound"]
