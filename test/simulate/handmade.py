"""Programs written by hand, as the dump would give them, with chunks of chosen cost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from piper.simulate import Link, Network, Profile, ProgramFacts, ProgramSimulation, simulate_program
from piper.simulate.facts import ChunkFacts, KernelFacts
from piper.simulate.sizes import Size
from piper_runtime.inputs.batch import InputSpec
from piper_runtime.manifest import BucketSpec, Manifest, StateSpec
from piper_runtime.mesh import Axis, CommSpec, Mesh

SECONDS = {"one": 1.0, "two": 2.0, "five": 5.0, "ten": 10.0}
"""Kernels, by what they take."""


class Rows:
    """The rows of one coordinate in issue order; values and events are numbers."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self._count = 0

    def add(
        self, op: str, *operands: int, after: Sequence[int] = (), results: int = 0, **more: Any
    ) -> list[int]:
        """Append an instruction and return the numbers of its results."""
        out = list(range(self._count, self._count + results))
        self._count += results
        row = {"op": op, "in": list(operands), "after": list(after), "out": out, **more}
        self.rows.append(row | {"loc": ["model.py", 7, "layers.0", "order"]})
        return out

    def run(self, chunk: str, *operands: int, mb: int = 0, after: Sequence[int] = ()) -> int:
        """Run a chunk of one result."""
        return self.add("run", *operands, after=after, results=1, chunk=chunk, mb=mb)[0]

    def record(self) -> int:
        """Mark a point of the compute stream."""
        return self.add("record", results=1)[0]

    def send(self, value: int, way: str, *, mb: int = 0, after: Sequence[int] = ()) -> int:
        """Send over `way`, such as "0.1"; returns the event."""
        peer = int(way.split(".")[1])
        more = {"peer": peer, "stream": f"send${way}", "mb": mb}
        return self.add("send", value, after=after, results=1, **more)[0]

    def recv(self, way: str, *, size: int = 8, mb: int = 0, after: Sequence[int] = ()) -> list[int]:
        """Receive `size` bytes over `way`; returns value and event."""
        peer = int(way.split(".")[0])
        more = {"peer": peer, "stream": f"send${way}", "mb": mb, "dtype": "i8", "shape": [size]}
        return self.add("recv", after=after, results=2, **more)

    def all_reduce(self, value: int, comm: str, *, after: Sequence[int] = ()) -> list[int]:
        """Reduce; returns value and event."""
        return self.add("all_reduce", value, after=after, results=2, stream=comm)

    def output(self, value: int) -> None:
        """Report a loss."""
        self.add("output", value, name="loss")


def chunk(kernel: str, *, stage: int | None = 0, pass_: str = "F", size: int = 8) -> ChunkFacts:
    """A chunk that launches one kernel and makes `size` bytes."""
    return ChunkFacts(f"{kernel}.{stage}${pass_}", stage, pass_, (kernel,), (Size.of(size),), 0)


def facts(
    *programs: Rows,
    chunks: Sequence[ChunkFacts] = (),
    buckets: Sequence[BucketSpec] = (),
    ways: Sequence[str] = (),
    dp: int = 1,
) -> ProgramFacts:
    """A program per coordinate of axis pp; messages go over `ways`, `all` joins all coordinates."""
    count = len(programs)
    comms = [CommSpec(f"send${way}", (), tuple(map(int, way.split(".")))) for way in ways]
    comms.append(CommSpec("all", ("dp",), tuple(range(count))))
    members = {name: bucket for bucket in buckets for name in bucket.members}
    return ProgramFacts(
        manifest=Manifest(
            hash="",
            mesh=Mesh((Axis("pp", count, "unrolled"), Axis("dp", dp, "manual"))),
            microbatches=2,
            inputs=(InputSpec("x", (3,), "float32", 0), InputSpec("mask", (5,), "bool", None)),
            data_axes=("dp",),
            states=tuple(
                StateSpec(name, "parameter", (bucket.numel,), bucket.dtype, True, ())
                for name, bucket in members.items()
            ),
            buckets=tuple(buckets),
            comms=tuple(comms),
            programs=tuple(f"program_pp{at}.py" for at in range(count)),
            entry_points=("train",),
            losses={},
            optimizer=None,
            clip=None,
            flops={},
        ),
        axis="pp",
        kernels={name: KernelFacts(100, 10, "float32", 0, 0) for name in SECONDS},
        chunks={item.name: item for item in chunks},
        programs={"train": {at: rows.rows for at, rows in enumerate(programs)}},
    )


def network(*, latency: float = 0.0, bandwidth: float = 8.0) -> Network:
    """One link: a message of 8 bytes takes a second, and `latency`."""
    return Network(Link("wire", "a wire", bandwidth, latency, {}))


def run(program: ProgramFacts, links: Network | None = None, **options: Any) -> ProgramSimulation:
    """Simulate, with kernels that take what their names say and memory that takes no time."""
    profile = Profile("a machine", SECONDS, memory_bandwidth=1e30)
    return simulate_program(program, profile, links or network(), **options)
