"""The command line ``piper``: compile a program, look at one, simulate one, judge its trace."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from piper.cli import compile, show, simulate, trace
from piper.cli.errors import is_message, message

__all__ = ["main"]

_DESCRIPTION = """\
Compile the training step of a PyTorch model and a strategy into one Python
program per pipeline coordinate, and look at the result.

  piper compile train.py:build -o out    compile what build() in train.py returns
  piper show out                         schedule, stages, kernels, states
  piper simulate out --device H100 --link nvlink
                                         time, bubbles and memory; also of a
                                         schedule that is only a name or a table
  piper trace out trace.json             what real steps took, beside that
  piper-opt out/ir/chunks.mlir --piper-record --piper-materialize
                                         run passes on a level of the IR
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a sub-command; the exit status is 1 if what it was given is wrong."""
    parser = argparse.ArgumentParser(
        prog="piper",
        description=_DESCRIPTION,
        epilog="piper COMMAND --help says more about a command.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for command in (compile, show, simulate, trace):
        command.add_parser(commands)
    options = parser.parse_args(arguments)
    try:
        options.run(options)
    except (ValueError, TypeError, OSError) as error:
        if not is_message(error):
            raise
        print(f"piper: error: {message(error)}", file=sys.stderr)
        return 1
    return 0
