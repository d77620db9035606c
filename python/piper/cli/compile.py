"""``piper compile``: from a function that returns a model and a strategy to a directory."""

from __future__ import annotations

import argparse
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from piper_runtime import Program
from piper_runtime.program import CONSTANTS, KERNELS, MANIFEST

import piper
from piper.cli.text import plural

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[argparse.ArgumentParser]

__all__ = ["add_parser"]

_DESCRIPTION = """\
Compile what a function of a Python file returns and write the program to a
directory. The function takes no arguments and returns

  model      any torch.nn.Module; its weights may be on the meta device
  loss_fn    loss_fn(model, batch) -> a scalar
  strategy   piper.Strategy(mesh=..., directives=[...])
  batch      an example of the batch of a step: all ranks' rows, or as many
             data-parallel shards of them as --data-shards says

No device memory is used and nothing is trained. Run the program with
piper.Trainer("DIR", model=model).step(batch), alone or under torchrun.

example:
  piper compile train.py:build -o out
"""
_LIMITS = (
    ("memory", "BYTES", "storages at once, without optimizer state and what ops need inside"),
    ("sms", "N", "SMs that communication holds at once; streams must say theirs"),
    ("communicators", "N", "communicators that it is a member of"),
)
_MEANINGS = {
    KERNELS: "the kernels that programs launch",
    MANIFEST: "mesh, inputs, states, buckets, communicators",
    CONSTANTS: "tensors that the model holds but does not train",
    "ir/strategy.mlir": "the strategy, a source line per directive",
    "ir/step.mlir": "L1: the captured step of one microbatch on one rank",
    "ir/chunks.mlir": "L2: chunks and the kernels that they launch",
    "ir/cluster.mlir": "L3: every microbatch, placed, connected and ordered",
    "ir/programs.mlir": "L4: one program per coordinate",
}


def add_parser(commands: Commands) -> None:
    """Add the sub-command."""
    parser = commands.add_parser(
        "compile",
        help="compile a model and a strategy to a directory",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "source", metavar="FILE:FUNCTION", help="what returns (model, loss_fn, strategy, batch)"
    )
    parser.add_argument("-o", dest="output", metavar="DIR", required=True, help="where to write")
    parser.add_argument(
        "--data-shards",
        type=int,
        metavar="N",
        help="how many data-parallel shards the batch holds (default: all; one under torchrun)",
    )
    limits = parser.add_argument_group("limits of the program of a rank (default: none)")
    for name, metavar, meaning in _LIMITS:
        limits.add_argument(f"--max-{name}", type=int, metavar=metavar, help=meaning)
    limits.add_argument(
        "--single-queue",
        action="store_true",
        help="it finishes where messages and collectives of a rank go through one queue",
    )
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> None:
    folder = Path(options.output)
    stale = _artifact(folder)
    bounds = {name: getattr(options, f"max_{name}") for name, _, _ in _LIMITS}
    limits = piper.Limits(**bounds, single_queue=options.single_queue)
    model, loss_fn, strategy, batch = _call(options.source)
    program = piper.compile(
        model, loss_fn, strategy, batch, data_shards=options.data_shards, limits=limits
    )
    for file in stale:
        file.unlink()
    program.save(folder)
    print("\n".join(_report(program, folder)))


def _artifact(folder: Path) -> list[Path]:
    """Return the files of the program in a directory, which must hold one or nothing."""
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return []
    if not (folder / MANIFEST).is_file():
        raise ValueError(f"-o expected a new or empty directory, or a program, got {folder}")
    names = [*Program.open(folder).texts, CONSTANTS]
    return [folder / name for name in names if (folder / name).is_file()]


def _call(source: str) -> tuple[Any, Any, Any, Any]:
    """Import the file, call the function and check what it returns."""
    file, colon, name = source.rpartition(":")
    if not colon or not file.endswith(".py") or not name.isidentifier():
        raise ValueError(f"expected FILE:FUNCTION such as train.py:build, got {source!r}")
    function = getattr(_import(Path(file).resolve()), name, None)
    if not callable(function):
        raise TypeError(f"{file}: expected a function {name!r}, got {function!r}")
    made = function()
    if not isinstance(made, tuple) or len(made) != 4:
        raise ValueError(
            f"{source} expected to return (model, loss_fn, strategy, batch), got {_describe(made)}"
        )
    if not isinstance(made[2], piper.Strategy):
        raise TypeError(f"{source} expected a piper.Strategy in third place, got {made[2]!r}")
    return made


def _describe(value: object) -> str:
    size = f" of {len(value)}" if isinstance(value, tuple) else ""
    return f"a {type(value).__name__}{size}"


def _import(path: Path) -> ModuleType:
    """Import a file as running it would, with its folder on the path, but under its own name: what
    a program then says of an optimizer's factory, another process can import.
    """
    if not path.is_file():
        raise ValueError(f"expected a Python file, got {path}")
    known = sys.modules.get(path.stem)
    if known is not None and getattr(known, "__file__", None) == str(path):
        return known
    if known is not None:
        raise ValueError(f"expected a file that has no other module's name, got {path.name}")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(path.parent))
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def _report(program: Program, folder: Path) -> Iterator[str]:
    """Yield a line per file with what it is for."""
    manifest = program.manifest
    files = [*manifest.programs, *_MEANINGS]
    names = [name for name in files if (folder / name).is_file()]
    width = max(map(len, names))
    yield f"wrote {folder}: {plural(len(manifest.programs), 'program')} for {manifest.mesh}"
    for name in names:
        where = "what every rank runs"
        if len(manifest.programs) > 1:
            coordinate = name.removeprefix("program_").removesuffix(".py")
            where = f"what the ranks of coordinate {coordinate} run"
        yield f"  {name:{width}}  {_MEANINGS.get(name, where)}"
    yield f"next: piper show {folder}"
