"""Check mode: every value that a rank makes, compared with that of a single process.

For each instruction the checker knows what its result must be, from what its operands must be and
from an oracle that has run the step in one process, one microbatch after the other:

    read, input       the state before the step, the batch
    run, recv         the chunk's result of that microbatch; a message names it by its label
    an exchange       of activations along an axis: what the single process has exchanged between
                      the places that it computes in turn; host_wait, the sizes
    accumulate        the sum of the chunks' gradients so far; at the end, of all of them
    all_reduce        the sum over ranks: of gradients, squares, losses or counts
    reduce_scatter    this rank's part of it; slice, read: this rank's part of a whole
    all_gather        the whole whose parts are gathered
    tangent, update   1 / count, the state after the step
    write             what is derived from the state, before or after the update

It compares before anybody uses the result, so what it finds first is what went wrong first: the
operands were right. If they are not any more, somebody wrote to them in between.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from piper_runtime import compute
from piper_runtime.checking.gaps import BOUNDS, Summary, find_gap
from piper_runtime.checking.known import Known, Term, add_squares, flat_value, known_part, narrowest
from piper_runtime.checking.norms import expected_squares
from piper_runtime.checking.oracle import Expected, Shards, Value, exchange_name
from piper_runtime.checking.places import Places
from piper_runtime.checking.terms import check_sent, labelled_term, term_name
from piper_runtime.errors import CheckError, InstructionError
from piper_runtime.inputs import batch as batches
from piper_runtime.instruction import Handle, Instruction
from piper_runtime.manifest import Manifest
from piper_runtime.mesh import CommSpec

__all__ = ["CheckedCall"]


@dataclass(slots=True)
class _Done:
    """What one rank has done in the call."""

    place: int
    inputs: Sequence[Mapping[str, Tensor]]
    ran: set[tuple[str, int]] = field(default_factory=set)
    added: dict[str, list[Term]] = field(default_factory=dict)
    updated: set[str] = field(default_factory=set)


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
        self._known: dict[Handle, Known] = {}
        self._comms = {spec.name: spec for spec in manifest.comms}
        self._places = Places(manifest.mesh, manifest.data_axes)

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
            place=self._of_rank(instruction).place,
        )
        for index, (handle, value) in enumerate(
            zip(instruction.operands, wanted or (), strict=False)
        ):
            try:
                bound = self._bound_of(self._of(handle))
                find_gap("", handle.get(), _like(handle.get(), value), bound)
            except CheckError:
                text += f"; operand {index} is not the one it takes: {handle.producer.place()}"
                return instruction.failure(CheckError(text))
        return instruction.failure(CheckError(f"{text}; its operands are right"))

    def _compare(
        self, what: str, value: Any, known: Known, *, at: Instruction | None = None
    ) -> None:
        """Raise CheckError if a value is not what it must be; count it if it was made ``at``."""
        summary = self._summary
        if known.value is None:
            summary.unknown += at is not None
            return
        value = torch.tensor(value) if isinstance(value, list) else value  # sizes
        gap = find_gap(what, value, known.value, self._bound_of(known))
        if at is not None:
            summary.compared += 1
            if gap >= summary.gap:
                summary.gap, summary.worst = gap, at.describe()

    def _bound_of(self, known: Known) -> float | None:
        """Return how far a value may be off, if it is not the bound of its dtype: one that went
        through a narrower dtype may be as far off as values of that.
        """
        if self._bound is not None or known.narrow is None or known.value is None:
            return self._bound
        wide = narrowest(known.narrow, _dtype(known.value))
        return None if wide is None else BOUNDS[wide]

    def _compare_again(self, index: int, handle: Handle) -> None:
        try:
            self._compare(f"operand {index}", handle.get(), self._of(handle))
        except CheckError as error:
            place = handle.producer.place()
            text = f"{error}; it was right when {place} had made it, so it was overwritten"
            raise CheckError(text) from error

    def _of(self, handle: Handle) -> Known:
        return self._known.get(handle, Known(None))

    def _of_rank(self, instruction: Instruction) -> _Done:
        """Return what the rank of an instruction has done so far."""
        index, manifest = instruction.rank.home.index, self._manifest
        if index not in self._done:
            place = self._places.of(index)
            inputs = batches.microbatches(
                self._shards[self._places.shard(place)],
                manifest.inputs,
                num_microbatches=manifest.microbatches,
            )
            self._done[index] = _Done(place, inputs)
        return self._done[index]

    # What each kind of instruction must make. A rule returns one entry per value to compare.

    def _nothing(self, instruction: Instruction, value: Any) -> list[Known]:
        return []

    def _unknown(self, instruction: Instruction, value: Any) -> list[Known]:
        return [Known(None) for _ in instruction.results]

    def _read(self, instruction: Instruction, value: Tensor) -> list[Known]:
        if instruction.slot == "grad":
            return [Known(None)]
        updated = instruction.label in self._of_rank(instruction).updated
        return [self._state(instruction, instruction.slot, updated=updated)]

    def _state(self, instruction: Instruction, slot: str, *, updated: bool) -> Known:
        """Return what a rank holds of a bucket before or after the update."""
        bucket = instruction.rank.home.bucket(instruction.label)
        place = self._of_rank(instruction).place
        flat = self._expected.bucket(instruction.label, updated=updated, place=place)
        return known_part(bucket.spec, slot, bucket.shard, flat)

    def _input(self, instruction: Instruction, value: Tensor) -> list[Known]:
        assert instruction.microbatch is not None
        inputs = self._of_rank(instruction).inputs
        return [Known(inputs[instruction.microbatch][instruction.label])]

    def _run(self, instruction: Instruction, value: Any) -> list[Known]:
        chunk, microbatch = instruction.label.removeprefix("chunk "), instruction.microbatch
        if microbatch is None:
            return self._unknown(instruction, value)
        self._of_rank(instruction).ran.add((chunk, microbatch))
        terms = [(chunk, index, microbatch) for index in range(len(instruction.results))]
        made = value if len(terms) > 1 else (value,)
        known = [self._result(instruction, term) for term in terms]
        return [
            Known(_like(one, what) if isinstance(what, tuple) else what, (term,))
            for one, what, term in zip(made, known, terms, strict=True)
        ]

    def _recv(self, instruction: Instruction, value: Tensor) -> list[Known]:
        term = labelled_term(instruction)
        if term is None:
            return [Known(None)]
        return [Known(self._result(instruction, term), (term,))]

    def _send(self, instruction: Instruction, value: None) -> list[Known]:
        check_sent(instruction, self._of(instruction.operands[0]).terms)
        return []

    def _result(self, instruction: Instruction, term: Term) -> Value | None:
        chunk, index, microbatch = term
        place = self._of_rank(instruction).place
        return self._expected.result(chunk, index, microbatch=microbatch, place=place)

    def _sum(self, instruction: Instruction, value: Tensor) -> list[Known]:
        known = [self._of(handle) for handle in instruction.operands]
        terms = tuple(term for one in known for term in one.terms)
        twice = [term for index, term in enumerate(terms) if term in terms[:index]]
        if twice:
            raise CheckError(f"expected to add every value once, got {term_name(twice[0])} twice")
        values = [one.value for one in known if isinstance(one.value, Tensor)]
        total = compute.total(*values) if len(values) == len(known) else None
        return [replace(known[0], value=total, terms=terms, whole=None)]

    def _sumsq(self, instruction: Instruction, value: Tensor) -> list[Known]:
        return [add_squares([self._of(handle) for handle in instruction.operands], value)]

    def _nonfinite(self, instruction: Instruction, value: Tensor) -> list[Known]:
        known = self._of(instruction.operands[0]).value
        return [Known(compute.nonfinite(known) if isinstance(known, Tensor) else None)]

    def _tangent(self, instruction: Instruction, value: Tensor) -> list[Known]:
        return [Known(self._expected.tangent(instruction.label))]

    def _accumulate(self, instruction: Instruction, value: Tensor) -> list[Known]:
        bucket, contribution = instruction.label, self._of(instruction.operands[0])
        added = self._of_rank(instruction).added.setdefault(bucket, [])
        onto = self._of(instruction.operands[1]) if len(instruction.operands) > 1 else None
        if added and onto is None:
            raise CheckError(f"expected to add onto {term_name(added[-1])} and others, got nothing")
        for term in contribution.terms:
            if term[:2] not in set(self._expected.contributions(bucket)):
                raise CheckError(f"expected a gradient of {bucket}, got {term_name(term)}")
            if term in added:
                raise CheckError(f"expected every gradient once, got {term_name(term)} twice")
        added += contribution.terms
        first = contribution.value
        narrow = narrowest(contribution.narrow, None if first is None else _dtype(first))
        made = replace(contribution, terms=tuple(added), bucket=bucket, narrow=narrow)
        if contribution.value is None:
            return [made]
        total, whole = flat_value(contribution.value, value.dtype, value.numel()), made.whole
        if onto is None:
            return [replace(made, value=total)]
        whole = None if whole is None else _plus(whole, onto.whole)
        return [replace(made, value=_plus(total, onto.value), whole=whole)]

    def _reduce(self, instruction: Instruction, value: Tensor) -> list[Known]:
        """Check all_reduce and reduce_scatter."""
        exchanged = self._exchanged(instruction)
        if exchanged is not None:
            return [exchanged]
        assert instruction.message is not None
        spec, known = self._comms[instruction.message.comm.name], self._of(instruction.operands[0])
        known = replace(
            known,
            axes=known.axes.union(spec.axes),
            coordinates=known.coordinates.union(spec.coordinates),
        )
        if known.squares is not None:
            squares = expected_squares(
                known,
                spec,
                value,
                expected=self._expected,
                manifest=self._manifest,
                places=self._places,
                rank=instruction.rank.home.index,
            )
            return [replace(known, value=squares, whole=None)]
        if instruction.kind == "reduce_scatter":
            known = replace(known, cut=(*known.cut, *spec.axes))
        count = self._manifest.mesh.size(known.cut)
        whole = self._total(instruction, known, value.dtype, value.numel() * count)
        if whole is None or not known.cut:
            return [replace(known, value=whole, whole=None)]
        index = self._manifest.mesh.index(instruction.rank.home.index, known.cut)
        part = compute.part(instruction.message.dim, index, count, whole)
        return [replace(known, value=part, whole=whole)]

    def _exchanged(self, instruction: Instruction) -> Known | None:
        """Return what an exchange of a result of a chunk must make, None for other reductions."""
        terms = self._of(instruction.operands[0]).terms
        if len(terms) != 1:
            return None
        [(chunk, index, microbatch)] = terms
        term = (exchange_name(instruction.kind, chunk, index), 0, microbatch)
        value = self._result(instruction, term)
        return None if value is None else Known(value, (term,))

    def _exchange(self, instruction: Instruction, value: Tensor) -> list[Known]:
        """Check all_to_all."""
        return [self._exchanged(instruction) or Known(None)]

    def _host_wait(self, instruction: Instruction, value: Any) -> list[Known]:
        counts = [self._of(handle).value for handle in instruction.operands]
        found = [compute.sizes(one) if isinstance(one, Tensor) else None for one in counts]
        return [Known(None if one is None else torch.tensor(one)) for one in found]

    def _slice(self, instruction: Instruction, value: Tensor) -> list[Known]:
        known, axis = self._of(instruction.operands[0]), instruction.label
        if not isinstance(known.value, Tensor):
            return [replace(known, value=None)]
        index, count = instruction.rank.home.place(axis)
        # Only dim 0: buckets are flat.
        part = compute.part(0, index, count, known.value)
        whole = known.value if known.whole is None else known.whole
        return [replace(known, value=part, whole=whole, cut=(*known.cut, axis))]

    def _convert(self, instruction: Instruction, value: Tensor) -> list[Known]:
        return [self._of(instruction.operands[0]).convert(value.dtype)]

    def _all_gather(self, instruction: Instruction, value: Tensor) -> list[Known]:
        exchanged = self._exchanged(instruction)
        if exchanged is not None:
            return [exchanged]
        assert instruction.message is not None
        known = self._of(instruction.operands[0])
        axes = self._comms[instruction.message.comm.name].axes
        if known.whole is not None and known.cut != axes:
            raise CheckError(f"expected to gather parts over {known.cut}, got over {axes}")
        return [replace(known, value=known.whole, whole=None, cut=())]

    def _require_all(self, instruction: Instruction, bucket: str) -> None:
        """Raise CheckError if a gradient that was made here is not in that of its bucket."""
        done = self._of_rank(instruction)
        for chunk, index in self._expected.contributions(bucket):
            for term in ((chunk, index, mb) for ran, mb in sorted(done.ran) if ran == chunk):
                if term not in done.added.get(bucket, []):
                    text = f"expected the sum of all gradients of {bucket}, got it without "
                    raise CheckError(f"{text}{term_name(term)}")

    def _total(
        self, instruction: Instruction, known: Known, dtype: torch.dtype, numel: int
    ) -> Tensor | None:
        """Return the sum of what is known over its ranks: of a bucket, if all that hold it are
        among them, its gradient; else of chunk results, if the ranks run the same chunks.
        """
        mesh, own = self._manifest.mesh, instruction.rank.home.index
        group = CommSpec("", tuple(known.axes), tuple(known.coordinates))
        ranks = mesh.members(group, own)
        holders = self._holders(known.bucket, own) if known.bucket else ()
        others = sorted(set(ranks) - set(holders)) if known.bucket else []
        if others:
            raise CheckError(
                f"expected to add up the gradient of {known.bucket} over ranks that have terms of "
                f"it, {list(holders)}, got also rank {others[0]}"
            )
        if holders and ranks == holders:
            gradient = self._expected.gradient(known.bucket, place=self._places.of(own))
            return None if gradient is None else flat_value(gradient, dtype, numel)
        if len(known.coordinates) > 1:
            return None
        values = [
            self._expected.result(chunk, index, microbatch=mb, place=self._places.of(rank))
            for rank in ranks
            for chunk, index, mb in known.terms
        ]
        found = [flat_value(one, dtype, numel) for one in values if one is not None]
        return compute.total(*found) if found and len(found) == len(values) else None

    def _holders(self, bucket: str, rank: int) -> tuple[int, ...]:
        """Return the ranks that have a term of the gradient of a bucket, of the local part that a
        rank has.
        """
        [spec] = [spec for spec in self._manifest.buckets if spec.name == bucket]
        axes = [axis for axis in self._manifest.data_axes if axis not in spec.varying_axes]
        return self._manifest.mesh.members(CommSpec("", tuple(axes), spec.holders), rank)

    def _update(self, instruction: Instruction, value: Tensor) -> list[Known]:
        update = instruction.thunk
        assert isinstance(update, compute.Update)
        skips = update.skips(*(operand.get() for operand in instruction.operands[1:]))
        if not skips:
            self._of_rank(instruction).updated.add(instruction.label)
        return [self._state(instruction, "value", updated=not skips)]

    def _write(self, instruction: Instruction, value: None) -> list[Known]:
        updated = instruction.label in self._of_rank(instruction).updated
        known = self._state(instruction, instruction.slot, updated=updated)
        self._compare("operand 0", instruction.operands[0].get(), known, at=instruction)
        return []

    def _output(self, instruction: Instruction, value: None) -> list[Known]:
        expected = self._expected.output(instruction.label)
        if expected is not None:
            got = instruction.rank.outputs[instruction.label]
            narrow = self._of(instruction.operands[0]).narrow
            known = Known(expected.to(got.dtype), narrow=narrow)
            self._compare(f"output {instruction.label!r}", got, known, at=instruction)
        return []


Rule = Callable[[CheckedCall, Instruction, Any], list[Known]]

_RULES: Mapping[str, Rule] = {
    "read": CheckedCall._read,
    "input": CheckedCall._input,
    "run": CheckedCall._run,
    "recv": CheckedCall._recv,
    "send": CheckedCall._send,
    "sum": CheckedCall._sum,
    "sumsq": CheckedCall._sumsq,
    "nonfinite": CheckedCall._nonfinite,
    "tangent": CheckedCall._tangent,
    "accumulate": CheckedCall._accumulate,
    "all_reduce": CheckedCall._reduce,
    "reduce_scatter": CheckedCall._reduce,
    "all_gather": CheckedCall._all_gather,
    "slice": CheckedCall._slice,
    "convert": CheckedCall._convert,
    "update": CheckedCall._update,
    "write": CheckedCall._write,
    "output": CheckedCall._output,
    "free": CheckedCall._nothing,
    "record": CheckedCall._nothing,
    "broadcast": CheckedCall._unknown,
    "all_to_all": CheckedCall._exchange,
    "host_wait": CheckedCall._host_wait,
}


def _like(value: Any, expected: Value) -> Value:
    """Return what is expected in the form of what is there: a flat pack, padding of a bucket."""
    if not isinstance(value, Tensor):
        return expected
    return flat_value(expected, _dtype(expected), value.numel())


def _dtype(value: Value) -> torch.dtype:
    return value[0].dtype if isinstance(value, tuple) else value.dtype


def _plus(total: Tensor, onto: Value | None) -> Tensor | None:
    return total + onto if isinstance(onto, Tensor) else None
