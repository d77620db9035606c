"""Stands in for the process that compiles kernels: answers at once, and keeps a log.

A kernel whose name starts with ``bad`` cannot be compiled, with ``fatal`` ends the process, with
``meet`` waits until another one of these is being compiled, too. Of ``settings`` it returns what
the backend is to be set to.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

LOG = Path(os.environ["FAKE_COMPILER_LOG"])


def log(text: str) -> None:
    with LOG.open("a") as file:
        file.write(f"{text}\n")


def main() -> None:
    for line in sys.stdin:
        job = json.loads(line)
        name = job["name"]
        log(f"{os.getpid()} {name}")
        if name.startswith("fatal"):
            sys.exit(3)
        if name.startswith("bad"):
            answer = {"error": "ValueError: no such op"}
        else:
            count = job["num_results"]
            answer = {"compiled": f"def call(args):\n    return ('{name}',) * {count}\n"}
        if name == "settings":
            answer = {"compiled": json.dumps(job["settings"])}
        if name.startswith("meet"):
            while LOG.read_text().count(" meet") < 2:
                time.sleep(0.01)
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
