"""split: the batch becomes microbatches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from piper.strategy.directive import Directive, check_count
from piper.strategy.text import attributes


@dataclass(frozen=True, repr=False)
class Split(Directive):
    """Cut each rank's batch into `microbatches` equal parts.

    `dims` gives, by input name, the tensor dim to cut, or None for an input that every microbatch
    gets whole; inputs it leaves out are cut along dim 0 where they have the common batch size.

    Raises:
        ValueError: microbatches below 1, or a dim that is neither None nor an int of at least 0.
    """

    microbatches: int
    dims: Mapping[str, int | None] | None = None

    def __post_init__(self) -> None:
        """Check the fields."""
        check_count("split microbatches", self.microbatches)
        if self.dims is None:
            return
        object.__setattr__(self, "dims", dict(self.dims))
        for name, dim in self.dims.items():
            if dim is not None and (type(dim) is not int or dim < 0):
                raise ValueError(
                    f"split dim of input {name!r} must be None or an int of at least 0, got {dim!r}"
                )

    def op(self) -> str:
        """See `Directive`; inputs that `dims` leaves out are not in the text."""
        dims = {name: dim for name, dim in (self.dims or {}).items() if dim is not None}
        return f"piper.do.split microbatches = {self.microbatches} dims = {attributes(dims)}"

    def facts(self) -> Mapping[str, object]:
        """See `Directive`."""
        dims = {f"batch dim of {name!r}": dim for name, dim in (self.dims or {}).items()}
        return {"number of microbatches": self.microbatches, **dims}


def split(*, microbatches: int, dims: Mapping[str, int | None] | None = None) -> Split:
    """Cut each rank's batch into equal microbatches; see `Split`."""
    return Split(microbatches, dims)
