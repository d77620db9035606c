"""The memory of each rank as the manifest of an artifact has it, for a runtime without a compiler.

What an optimizer keeps is not in it: the factory may be another one where the program runs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict

from piper_runtime.manifest import Manifest, MemorySpec

from piper.emit.symbols import Symbols
from piper.simulate.facts import ProgramFacts
from piper.simulate.memory import Memory, measure_memory
from piper.simulate.values import read_values

__all__ = ["add_memory", "entry_memory"]


def add_memory(manifest: str, symbols: Symbols) -> str:
    """Return the text of a manifest with the memory of all entry points in it.

    Raises:
        ValueError: an instruction whose memory is not known.
    """
    facts = ProgramFacts.of(Manifest.parse(manifest), symbols)
    memory = {
        entry: [asdict(_spec(memory)) for memory in entry_memory(facts, entry).values()]
        for entry in facts.programs
    }
    return json.dumps({**json.loads(manifest), "memory": memory}, indent=1) + "\n"


def entry_memory(
    facts: ProgramFacts, entry: str, *, per_parameter: float | None = None
) -> Mapping[int, Memory]:
    """The memory of each coordinate in a call of an entry point; see `measure_memory`.

    Raises:
        ValueError: an unknown entry point, or an instruction whose memory is not known.
    """
    return {
        at: measure_memory(facts, at, rows, read_values(rows, facts), per_parameter=per_parameter)
        for at, rows in sorted(facts.entry(entry).items())
    }


def _spec(memory: Memory) -> MemorySpec:
    return MemorySpec(
        parameters=memory.parameters,
        gradients=memory.gradients,
        batch=memory.batch,
        activations=memory.activations,
        communication=memory.communication,
        temporaries=memory.temporaries,
        held=max(memory.curve.live, default=0),
    )
