"""The backend ``inductor``: from the text of a kernel to Inductor's text, and from that to a
function.

Inductor's decompositions are applied here and nowhere else: eager kernels keep the ops of the
model. Kernels draw random numbers as eager ones do.

A kernel of rows whose number depends on data is compiled once, for any number from two on, which is
what Inductor takes for granted; fewer run op by op, as the text says.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from piper_runtime.determinism import deterministic
from piper_runtime.kernels.source import KernelSource, empty_arguments, rows_argument

__all__ = ["SETTINGS", "compile_kernel", "load_kernel", "settings_for"]

SETTINGS: dict[str, object] = {
    "compile_threads": 1,  # there are several compiling processes already
    "fx_graph_cache": False,  # the cache is Piper's
    "size_asserts": False,  # programs are checked when they are loaded
    "alignment_asserts": False,
    "fallback_random": True,
}
ALIGNMENT = 16  # bytes, which Inductor takes for granted on GPUs
LEAST_ROWS, LIKELY_ROWS = 2, 4096


def settings_for(*, deterministic: bool) -> dict[str, object]:
    """Return Inductor's settings; a deterministic kernel is compiled with one more."""
    return SETTINGS | ({"deterministic": True} if deterministic else {})


def compile_kernel(
    source: KernelSource, device: torch.device, *, settings: Mapping[str, object] = SETTINGS
) -> str:
    """Return Python text that defines ``call``, which takes a list of arguments and returns a
    tuple; the libraries that it loads are compiled, too.

    Raises whatever Inductor raises.
    """
    from torch._guards import TracingContext, tracing
    from torch._inductor import config
    from torch._inductor.compile_fx import compile_fx_inner
    from torch._inductor.decomposition import select_decomp_table
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx

    function = source.function(device)
    mode, rows = FakeTensorMode(), 0
    if rows_argument(function) is not None:
        mode, rows = _symbolic_rows()
    with (
        torch.no_grad(),
        deterministic(bool(settings.get("deterministic"))),
        config.patch(dict(settings)),
        tracing(TracingContext(mode)),
    ):
        with mode:
            arguments = empty_arguments(function, device, rows=rows)
        trace = make_fx(_as_tuple(function), decomposition_table=select_decomp_table())
        with mode:
            graph = trace(*arguments)
        # Results keep their strides: they are contiguous.
        graph.graph.output_node().meta["user_visible_output_idxs"] = list(range(source.num_results))
        compiled = compile_fx_inner(graph, arguments, is_inference=True)
    if getattr(compiled, "constants", None) or not hasattr(compiled, "source_code"):
        raise RuntimeError("expected a kernel without constants of its own and with an op")
    return str(compiled.source_code)


def _symbolic_rows() -> tuple[Any, Any]:
    """Return a fake mode and a size in it that stands for any number of rows."""
    from torch._dynamo.source import ConstantSource
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv

    shapes, source = ShapeEnv(), ConstantSource("rows")
    symbol = shapes.create_symbol(LIKELY_ROWS, source, dynamic_dim=DimDynamic.DYNAMIC)
    rows = shapes.create_symintnode(symbol, hint=LIKELY_ROWS, source=source)
    return FakeTensorMode(shape_env=shapes), rows


def _as_tuple(function: Callable[..., Any]) -> Callable[..., tuple[Tensor, ...]]:
    def run(*arguments: Tensor) -> tuple[Tensor, ...]:
        results = function(*arguments)
        return results if isinstance(results, tuple) else (results,)

    return run


def load_kernel(
    source: KernelSource, compiled: Path, *, libraries: Path, device: torch.device
) -> Callable[..., Any]:
    """Execute Inductor's text, and return a function like the one in ``kernels.py``."""
    from torch._inductor import config

    module = ModuleType(compiled.stem)
    module.__file__ = str(compiled)
    with libraries_in(libraries), config.patch(SETTINGS):
        exec(compile(compiled.read_text(), compiled, "exec"), module.__dict__)  # noqa: S102
    call: Callable[[list[Tensor]], tuple[Tensor, ...]] = module.call
    kernel = adapt(call, source.num_results, aligned=device.type == "cuda")
    function = source.function(device)
    place = rows_argument(function)
    return kernel if place is None else _for_rows(kernel, function, *place)


def _for_rows(
    kernel: Callable[..., Any], function: Callable[..., Any], index: int, dim: int
) -> Callable[..., Any]:
    """Return a kernel that calls ``function`` if argument ``index`` has few rows along a dim."""

    def choose(*arguments: Tensor) -> Any:
        few = arguments[index].shape[dim] < LEAST_ROWS
        return function(*arguments) if few else kernel(*arguments)

    return choose


@contextlib.contextmanager
def libraries_in(folder: Path) -> Iterator[None]:
    """Let Inductor keep compiled libraries in ``folder``."""
    variable = "TORCHINDUCTOR_CACHE_DIR"
    before = os.environ.get(variable)
    os.environ[variable] = str(folder)
    try:
        yield
    finally:
        if before is None:
            del os.environ[variable]
        else:
            os.environ[variable] = before


def adapt(
    call: Callable[[list[Tensor]], tuple[Tensor, ...]], num_results: int, *, aligned: bool
) -> Callable[..., Any]:
    """Return ``call`` as a function of tensors that returns a tensor or a tuple of several.

    With ``aligned``, arguments that do not start at a multiple of 16 bytes are copied first, as
    Inductor does where it calls kernels itself. Results that Inductor laid into one storage (it
    may write the parts of a concatenation to their places at once) are taken apart; the first call
    shows which ones.
    """
    shared: frozenset[int] | None = None

    def kernel(*arguments: Tensor) -> Any:
        nonlocal shared
        results = call([_aligned(value) for value in arguments] if aligned else [*arguments])
        if shared is None:
            shared = _shared(results, arguments)
        if shared:
            own = (value.clone() if i in shared else value for i, value in enumerate(results))
            results = tuple(own)
        return results[0] if num_results == 1 else results

    return kernel


def _aligned(argument: Tensor) -> Tensor:
    return argument if argument.data_ptr() % ALIGNMENT == 0 else argument.clone()


def _shared(results: Sequence[Tensor], arguments: Sequence[Tensor]) -> frozenset[int]:
    """Return the results whose storage an argument or an earlier result has."""
    taken = {argument.untyped_storage().data_ptr() for argument in arguments}
    shared = set()
    for index, result in enumerate(results):
        storage = result.untyped_storage().data_ptr()
        if storage in taken and result.numel():
            shared.add(index)
        taken.add(storage)
    return frozenset(shared)
