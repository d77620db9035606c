"""What check mode compares with: the same step in one process, from the captured IR and in PyTorch.

`reference` has the user's entry; `interpret` runs the IR of a step, whose chunks are
`chunk_functions` and whose ranks meet in `exchanges`; `plain` is PyTorch; `expectation` is what
follows from them for each value of each rank.
"""

from piper.reference.reference import Reference, check

__all__ = ["Reference", "check"]
