"""sequence: ranks along an axis hold parts of the sequence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from piper.strategy.directive import Directive
from piper.strategy.mesh import Mesh
from piper.strategy.text import quoted


@dataclass(frozen=True, repr=False)
class Sequence(Directive):
    """Ranks along `axis` hold parts of the sequence, which is dim `dims[name]` of a batch input.

    Along tp this is sequence parallelism (Korthikanti et al., 2022, "Reducing activation
    recomputation in large transformer models"): sums over products that ranks share are left as
    parts of the sequence, and what lies between products, such as norms, is computed on parts.
    Before products the parts are gathered, in the backward pass again.

    Along cp, which `replicate` names, too, it is context parallelism: ranks get parts of the batch
    inputs, and attention, which must be `piper.ops.attention` or that of a model of transformers,
    gathers keys and values. A rank has two pieces of a sequence, the first ranks early and late
    ones, so that causal attention is as much work for all. Positions come as an input of the batch,
    and no other op may see several of them at once; compiling fails if one does. Heads may be
    shared out along tp and experts along ep, whose ranks get the rows of each rank's positions.

    Raises:
        ValueError: no input, or a dim that is no int of at least 0.
    """

    axis: str
    dims: Mapping[str, int]

    def __post_init__(self) -> None:
        """Check the fields."""
        if not self.dims:
            raise ValueError("sequence dims must name the batch inputs that have one, got none")
        for name, dim in self.dims.items():
            if type(dim) is not int or dim < 0:
                raise ValueError(
                    f"sequence dim of input {name!r} must be an int of at least 0, got {dim!r}"
                )

    def op(self) -> str:
        """See `Directive`."""
        dims = ", ".join(f"{quoted(name)} = {dim}" for name, dim in self.dims.items())
        return f"piper.do.sequence axis = {quoted(self.axis)} dims = {{{dims}}}"

    def axes(self) -> tuple[str, ...]:
        """See `Directive`."""
        return (self.axis,)

    def facts(self) -> Mapping[str, object]:
        """See `Directive`."""
        return {f"dims along {self.axis!r}": dict(sorted(self.dims.items()))}

    def check_mesh(self, mesh: Mesh) -> None:
        """See `Directive`."""
        axis = mesh[self.axis]
        if axis.role == "unrolled":
            raise self.error(f"axis must be manual or auto, got {axis.name!r}, which is unrolled")


def sequence(axis: str, dims: Mapping[str, int]) -> Sequence:
    """Let ranks along `axis` hold parts of the sequence; see `Sequence`."""
    return Sequence(axis, dict(dims))
