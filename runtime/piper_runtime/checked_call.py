"""Check mode: every value that a rank makes, compared with that of a single process.

For each instruction the checker knows what its result must be, from what its operands must be and
from an oracle that has run the step in one process, one microbatch after the other:

    read, input       the state before the step, the batch
    run, recv         the chunk's result of that microbatch; a message names it by its label
    accumulate        the sum of the chunks' gradients so far; at the end, of all of them
    all_reduce        the sum over all ranks: of gradients, squares, losses or counts
    tangent, update   1 / count, the state after the step

It compares before anybody uses the result, so what it finds first is what went wrong first: the
operands were right. If they are not any more, somebody wrote to them in between.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from piper_runtime import batch as batches
from piper_runtime import compute
from piper_runtime.errors import CheckError, InstructionError
from piper_runtime.gaps import Summary, find_gap
from piper_runtime.instruction import Handle, Instruction
from piper_runtime.manifest import Manifest
from piper_runtime.oracle import Expected, Shards, Value

__all__ = ["CheckedCall"]

Term = tuple[str, int, int]
"""A result of a chunk: its function, the index of the result, the microbatch."""


@dataclass(frozen=True, slots=True)
class _Known:
    """What a handle must hold, None where nothing is known, and of which results it is the sum."""

    value: Value | None
    terms: tuple[Term, ...] = ()


@dataclass(slots=True)
class _Done:
    """What one rank has done in the call."""

    shard: int
    inputs: Sequence[Mapping[str, Tensor]]
    ran: set[tuple[str, int]] = field(default_factory=set)
    added: dict[str, list[Term]] = field(default_factory=dict)


class CheckedCall:
    """The hook of all instructions of one call: a rule for each kind says what it must make."""

    def __init__(
        self,
        expected: Expected,
        *,
        manifest: Manifest,
        shards: Shards,
        bound: float | None,
        summary: Summary,
    ) -> None:
        """Compare with ``expected``, within ``bound``, and count in ``summary``."""
        self._expected, self._manifest, self._shards = expected, manifest, shards
        self._bound, self._summary = bound, summary
        self._done: dict[int, _Done] = {}
        self._known: dict[Handle, _Known] = {}

    def attach(self, instruction: Instruction) -> None:
        """Check the instruction when it is executed."""
        instruction.hooks += (self,)

    def before(self, instruction: Instruction) -> None:
        """Compare the operands once more: nobody may have written to them."""
        try:
            for index, handle in enumerate(instruction.operands):
                if handle.producer.kind == "accumulate" and instruction.kind != "accumulate":
                    self._require_all(instruction, handle.producer.label)
                self._compare_again(index, handle)
        except CheckError as error:
            raise instruction.failure(error) from error

    def after(self, instruction: Instruction, value: Any) -> None:
        """Compare what the instruction made with what it must be; raises InstructionError."""
        try:
            known = _RULES[instruction.kind](self, instruction, value)
            made = value if len(instruction.results) > 1 else [value] * len(known)
            for index, (one, what) in enumerate(zip(made, known, strict=True)):
                self._compare(f"result {index}", one, what, at=instruction)
        except CheckError as error:
            raise self._failure(instruction, error) from error
        self._known.update(zip(instruction.results, known, strict=False))

    def _failure(self, instruction: Instruction, error: CheckError) -> InstructionError:
        """Return the error to raise, with what is known of the operands."""
        text, chunk = str(error), instruction.label.removeprefix("chunk ")
        if instruction.kind != "run" or instruction.microbatch is None:
            return instruction.failure(error)
        wanted = self._expected.operands(
            chunk,
            microbatch=instruction.microbatch,
            shard=self._of_rank(instruction).shard,
        )
        for index, (handle, value) in enumerate(
            zip(instruction.operands, wanted or (), strict=False)
        ):
            try:
                find_gap("", handle.get(), value, self._bound)
            except CheckError:
                text += f"; operand {index} is not the one it takes: {handle.producer.place()}"
                return instruction.failure(CheckError(text))
        return instruction.failure(CheckError(f"{text}; its operands are right"))

    def _compare(
        self, what: str, value: Any, known: _Known, *, at: Instruction | None = None
    ) -> None:
        """Raise CheckError if a value is not what it must be; count it if it was made ``at``."""
        summary = self._summary
        if known.value is None:
            summary.unknown += at is not None
            return
        gap = find_gap(what, value, known.value, self._bound)
        if at is not None:
            summary.compared += 1
            if gap >= summary.gap:
                summary.gap, summary.worst = gap, at.describe()

    def _compare_again(self, index: int, handle: Handle) -> None:
        try:
            self._compare(f"operand {index}", handle.get(), self._of(handle))
        except CheckError as error:
            place = handle.producer.place()
            text = f"{error}; it was right when {place} had made it, so it was overwritten"
            raise CheckError(text) from error

    def _of(self, handle: Handle) -> _Known:
        return self._known.get(handle, _Known(None))

    def _of_rank(self, instruction: Instruction) -> _Done:
        """Return what the rank of an instruction has done so far."""
        index, manifest = instruction.rank.home.index, self._manifest
        if index not in self._done:
            shard = manifest.mesh.index(index, manifest.data_axes)
            inputs = batches.microbatches(
                self._shards[shard], manifest.inputs, num_microbatches=manifest.microbatches
            )
            self._done[index] = _Done(shard, inputs)
        return self._done[index]

    # What each kind of instruction must make. A rule returns one entry per value to compare.

    def _nothing(self, instruction: Instruction, value: Any) -> list[_Known]:
        return []

    def _unknown(self, instruction: Instruction, value: Any) -> list[_Known]:
        return [_Known(None) for _ in instruction.results]

    def _read(self, instruction: Instruction, value: Tensor) -> list[_Known]:
        bucket = instruction.rank.home.bucket(instruction.label)
        if value is not bucket.value:
            return [_Known(None)]
        return [_Known(self._expected.bucket(instruction.label, updated=False))]

    def _input(self, instruction: Instruction, value: Tensor) -> list[_Known]:
        assert instruction.microbatch is not None
        inputs = self._of_rank(instruction).inputs
        return [_Known(inputs[instruction.microbatch][instruction.label])]

    def _run(self, instruction: Instruction, value: Any) -> list[_Known]:
        chunk, microbatch = instruction.label.removeprefix("chunk "), instruction.microbatch
        if microbatch is None:
            return self._unknown(instruction, value)
        self._of_rank(instruction).ran.add((chunk, microbatch))
        terms = [(chunk, index, microbatch) for index in range(len(instruction.results))]
        return [_Known(self._result(instruction, term), (term,)) for term in terms]

    def _recv(self, instruction: Instruction, value: Tensor) -> list[_Known]:
        term = _labelled(instruction)
        if term is None:
            return [_Known(None)]
        return [_Known(self._result(instruction, term), (term,))]

    def _send(self, instruction: Instruction, value: None) -> list[_Known]:
        term, known = _labelled(instruction), self._of(instruction.operands[0])
        if term is not None and known.terms and known.terms != (term,):
            raise CheckError(f"expected to send {_name(term)}, got {_name(known.terms[0])}")
        return []

    def _result(self, instruction: Instruction, term: Term) -> Value | None:
        chunk, index, microbatch = term
        shard = self._of_rank(instruction).shard
        return self._expected.result(chunk, index, microbatch=microbatch, shard=shard)

    def _sum(self, instruction: Instruction, value: Tensor) -> list[_Known]:
        known = [self._of(handle) for handle in instruction.operands]
        terms = tuple(term for one in known for term in one.terms)
        twice = [term for index, term in enumerate(terms) if term in terms[:index]]
        if twice:
            raise CheckError(f"expected to add every value once, got {_name(twice[0])} twice")
        values = [one.value for one in known if isinstance(one.value, Tensor)]
        return [_Known(compute.total(*values) if len(values) == len(known) else None, terms)]

    def _sumsq(self, instruction: Instruction, value: Tensor) -> list[_Known]:
        known = [self._of(handle).value for handle in instruction.operands]
        values = [one for one in known if isinstance(one, Tensor)]
        if len(values) < len(known):
            return [_Known(None)]
        return [_Known(compute.sumsq(value.dtype, value.device, *values))]

    def _tangent(self, instruction: Instruction, value: Tensor) -> list[_Known]:
        return [_Known(self._expected.tangent(instruction.label))]

    def _accumulate(self, instruction: Instruction, value: Tensor) -> list[_Known]:
        bucket, contribution = instruction.label, self._of(instruction.operands[0])
        added = self._of_rank(instruction).added.setdefault(bucket, [])
        onto = self._of(instruction.operands[1]) if len(instruction.operands) > 1 else None
        if added and onto is None:
            raise CheckError(f"expected to add onto {_name(added[-1])} and others, got nothing")
        for term in contribution.terms:
            if term[:2] not in set(self._expected.contributions(bucket)):
                raise CheckError(f"expected a gradient of {bucket}, got {_name(term)}")
            if term in added:
                raise CheckError(f"expected every gradient once, got {_name(term)} twice")
        added += contribution.terms
        if contribution.value is None:
            return [_Known(None)]
        total = _flat(contribution.value, value.dtype)
        if onto is None:
            return [_Known(total)]
        return [_Known(total + onto.value if isinstance(onto.value, Tensor) else None)]

    def _all_reduce(self, instruction: Instruction, value: Tensor) -> list[_Known]:
        maker, known = instruction.operands[0].producer, self._of(instruction.operands[0])
        if maker.kind == "accumulate":
            return [_Known(self._reduced(instruction, maker.label))]
        if maker.kind == "sumsq":
            squares = self._expected.output("grad_norm")
            return [_Known(None if squares is None else squares.to(value.dtype))]
        return [_Known(self._summed(instruction, known.terms))]

    def _require_all(self, instruction: Instruction, bucket: str) -> None:
        """Raise CheckError if a gradient that was made here is not in that of its bucket."""
        done = self._of_rank(instruction)
        for chunk, index in self._expected.contributions(bucket):
            for term in ((chunk, index, mb) for ran, mb in sorted(done.ran) if ran == chunk):
                if term not in done.added.get(bucket, []):
                    text = f"expected the sum of all gradients of {bucket}, got it without "
                    raise CheckError(f"{text}{_name(term)}")

    def _reduced(self, instruction: Instruction, bucket: str) -> Tensor | None:
        """Return the whole gradient of a bucket if the members are all that hold it."""
        assert instruction.message is not None
        mesh = self._manifest.mesh
        [holders] = [spec.holders for spec in self._manifest.buckets if spec.name == bucket]
        ranks = tuple(r for r in range(mesh.world_size) if mesh.coordinate(r) in holders)
        whole = instruction.message.comm.members == ranks
        return self._expected.gradient(bucket) if whole else None

    def _summed(self, instruction: Instruction, terms: Sequence[Term]) -> Tensor | None:
        """Return the sum of chunk results over all shards, if the members run the same chunks."""
        assert instruction.message is not None
        members, mesh = instruction.message.comm.members, self._manifest.mesh
        if len({mesh.coordinate(rank) for rank in members}) > 1:
            return None
        values = [
            self._expected.result(chunk, index, microbatch=mb, shard=self._shard_of(rank))
            for rank in members
            for chunk, index, mb in terms
        ]
        tensors = [value for value in values if isinstance(value, Tensor)]
        return compute.total(*tensors) if tensors and len(tensors) == len(values) else None

    def _shard_of(self, rank: int) -> int:
        return self._manifest.mesh.index(rank, self._manifest.data_axes)

    def _update(self, instruction: Instruction, value: Tensor) -> list[_Known]:
        return [_Known(self._expected.bucket(instruction.label, updated=True))]

    def _output(self, instruction: Instruction, value: None) -> list[_Known]:
        expected = self._expected.output(instruction.label)
        if expected is not None:
            got = instruction.rank.outputs[instruction.label]
            known = _Known(expected.to(got.dtype))
            self._compare(f"output {instruction.label!r}", got, known, at=instruction)
        return []


Rule = Callable[[CheckedCall, Instruction, Any], list[_Known]]

_RULES: Mapping[str, Rule] = {
    "read": CheckedCall._read,
    "input": CheckedCall._input,
    "run": CheckedCall._run,
    "recv": CheckedCall._recv,
    "send": CheckedCall._send,
    "sum": CheckedCall._sum,
    "sumsq": CheckedCall._sumsq,
    "tangent": CheckedCall._tangent,
    "accumulate": CheckedCall._accumulate,
    "all_reduce": CheckedCall._all_reduce,
    "update": CheckedCall._update,
    "output": CheckedCall._output,
    "free": CheckedCall._nothing,
    "record": CheckedCall._nothing,
    "all_gather": CheckedCall._unknown,
    "reduce_scatter": CheckedCall._unknown,
    "broadcast": CheckedCall._unknown,
}


def _labelled(instruction: Instruction) -> Term | None:
    """Return the result that a message carries, as its label ``layer.0$F#1`` says."""
    message, microbatch = instruction.message, instruction.microbatch
    assert message is not None
    chunk, hash_, index = message.label.partition("#")
    if not hash_ or microbatch is None:
        return None
    return re.sub(r"\W", "_", chunk), int(index), microbatch


def _name(term: Term) -> str:
    return f"result {term[1]} of chunk {term[0]}, microbatch {term[2]}"


def _flat(value: Value, dtype: torch.dtype) -> Tensor:
    parts = value if isinstance(value, tuple) else (value,)
    return torch.cat([part.reshape(-1) for part in parts]).to(dtype, copy=True)
