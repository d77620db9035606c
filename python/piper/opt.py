"""``python -m piper.opt``: what piper-opt does, through the Python bindings.

    python -m piper.opt out/ir/chunks.mlir --piper-record --piper-materialize
    python -m piper.opt out/ir/step.mlir --pass-pipeline='builtin.module(piper-outline-chunks,cse)'

It prints byte for byte what piper-opt prints, locations included. Other than piper-opt it also runs
users' own passes, where `piper-user-passes` stands.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from piper.mlir import ir
from piper.mlir.passmanager import PassManager
from piper.user_passes import run_passes

__all__ = ["main", "run"]


def run(file: str, pipeline: str) -> str:
    """Return the module in a file, ``-`` for standard input, after a pipeline, with locations.

    Raises:
        OSError: a file that cannot be read.
        ir.MLIRError: text that is no valid module, or a pass that fails; with its diagnostics.
        ValueError: a pipeline that is not one, or a user's own pass that fails.
    """
    with ir.Context():
        PassManager.parse(pipeline)  # what is wrong with it does not depend on the module
        if file != "-":
            Path(file).open().close()  # says what is wrong better than the parser does
        module = ir.Module.parseFile(file)
        run_passes(module, pipeline)
        return f"{module.operation.get_asm(enable_debug_info=True)}\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run passes as the command line says; the exit status is 1 if one fails."""
    options, flags = _parser().parse_known_args(arguments)
    try:
        text = run(options.file, options.pass_pipeline or _pipeline(flags))
    except (OSError, ValueError, ir.MLIRError) as error:  # type: ignore[attr-defined]
        print(error, file=sys.stderr)
        return 1
    if options.output == "-":
        sys.stdout.write(text)
    else:
        Path(options.output).write_text(text)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m piper.opt",
        description="Read a module, run passes on it, print it with locations, as piper-opt does; "
        "and run users' own Python passes, where --piper-user-passes or a pipeline comes to them.",
        epilog="--NAME runs the pass or pipeline NAME, --NAME='a=1 b=2' gives it options; several "
        "run in the order given. Pipelines: piper-record, piper-materialize, piper-lower. Example: "
        "python -m piper.opt out/ir/chunks.mlir --piper-record --piper-materialize",
        usage="%(prog)s [FILE] [--NAME[=OPTIONS] ...] [--pass-pipeline=TEXT] [-o OUTPUT]",
        allow_abbrev=False,
    )
    parser.add_argument("file", nargs="?", default="-", metavar="FILE", help="standard input if -")
    parser.add_argument("--pass-pipeline", metavar="TEXT", help="such as builtin.module(cse)")
    parser.add_argument("-o", dest="output", default="-", metavar="OUTPUT", help="where to print")
    return parser


def _pipeline(flags: Sequence[str]) -> str:
    """Return ``builtin.module(cse,piper-place{stages=2})`` of ``--cse --piper-place=stages=2``."""
    passes = []
    for flag in flags:
        if not flag.startswith("--"):
            raise ValueError(f"expected --NAME of a pass or pipeline, got {flag!r}")
        name, equals, options = flag[2:].partition("=")
        passes.append(f"{name}{{{options}}}" if equals else name)
    return f"builtin.module({','.join(passes)})"


if __name__ == "__main__":
    sys.exit(main())
