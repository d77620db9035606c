"""A problem as a constraint program; see `exact`."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import Final, NamedTuple

from ortools.sat.python import cp_model

from piper.search.bounds import Rooms
from piper.search.letters import B, F, I, W
from piper.search.scale import Scale
from piper.search.words import Rows, Words

__all__ = ["Model"]

_Key = tuple[int, int]
"""A lane, and the number of a microbatch in it."""

_PARTS: Final = 10**6  # of a limit, where what chunks hold are not integers


class _Form(NamedTuple):
    """A letter that actions may run as, the literal that says they do, and where it starts."""

    letter: int
    literal: cp_model.IntVar
    start: cp_model.IntVar


class _Backward(NamedTuple):
    """When a backward has its result, and when its chunk is released."""

    end: cp_model.LinearExprT
    release: cp_model.LinearExprT


class Model:
    """Variables for when each action starts and as which letter, and what every order satisfies.

    Microbatches that run at the same places take each pass in order; see `words`. Times are in
    units of the scale.
    """

    def __init__(self, words: Words, scale: Scale, *, least: float, most: float) -> None:
        """Collect everything; the makespan lies between `least` and `most`."""
        self.program = cp_model.CpModel()
        self._words, self._problem, self._scale = words, words.problem, scale
        self._most = math.floor(most * scale.factor * (1 + 1e-9))
        self._keys = [
            (n, k)
            for n, lane in enumerate(self._problem.lanes)
            for k in range(len(lane.microbatches))
        ]
        self._starts = {
            (4 * n + pass_, k): self._time() for n, k in self._keys for pass_ in (F, I, W)
        }
        self._blocks: list[list[cp_model.IntervalVar]] = [[] for _ in range(self._problem.ranks)]
        self._forms: dict[tuple[int, ...], _Form] = {}  # by letter and the numbers of microbatches
        self._pairs_f: dict[_Key, list[_Form]] = defaultdict(list)
        self._pairs_b: dict[_Key, list[_Form]] = defaultdict(list)
        self._add_pairs()
        self._forwards = {key: self._add_forward(key) for key in self._keys}
        self._backwards = {key: self._add_backward(key) for key in self._keys}
        for blocks in self._blocks:
            self.program.add_no_overlap(blocks)
        self._add_order()
        for rank in range(self._problem.ranks):
            self._add_memory(rank)
        self._add_makespan(least)

    def hint(self, rows: Rows) -> None:
        """Let the search start from an order."""
        ends = self._words.ends(rows)
        assert ends is not None
        taken: set[tuple[int, ...]] = set()
        for row, times in zip(rows, ends, strict=True):
            for parts, letter, end in zip(self._words.numbered(row), row, times, strict=True):
                start = self._scale.units(end - self._words.letters[letter].time)
                taken.add((letter, *(number for _, _, number in parts)))
                for pass_, lane, number in parts:
                    first = 4 * lane + {"F": F, "W": W}.get(pass_, I)
                    self.program.add_hint(self._starts[first, number], start)
        for name, form in self._forms.items():
            self.program.add_hint(form.literal, name in taken)

    def rows(self, solver: cp_model.CpSolver) -> Rows:
        """The order of a solution."""
        keyed: list[list[tuple[int, int, int, int, int]]] = [[] for _ in self._blocks]
        for (number, microbatch, *_), form in self._forms.items():
            if solver.boolean_value(form.literal):
                letter = self._words.letters[number]
                pass_, lane = letter.what[0]
                home = self._problem.lanes[lane]
                start = solver.value(form.start)
                end = start + self._scale.units(letter.time)
                # What takes no time comes first, and among such what the others may wait for.
                turn = home.stage if pass_ == "F" else 2 * self._problem.stages - home.stage
                if pass_ == "W":
                    turn += 2 * self._problem.stages
                keyed[home.rank].append((start, end, microbatch, turn, number))
        return [[key[-1] for key in sorted(row)] for row in keyed]

    def _time(self) -> cp_model.IntVar:
        return self.program.new_int_var(0, self._most, "")

    def _add_form(self, letter: int, numbers: Sequence[int], start: cp_model.IntVar) -> _Form:
        """Let actions run as a letter."""
        literal = self.program.new_bool_var("")
        form = self._forms[(letter, *numbers)] = _Form(letter, literal, start)
        time = self._scale.units(self._words.letters[letter].time)
        rank = self._problem.lanes[self._words.letters[letter].what[0][1]].rank
        self._blocks[rank].append(
            self.program.new_optional_fixed_size_interval_var(start, time, literal, "")
        )
        return form

    def _add_pairs(self) -> None:
        for (f, b), letter in self._words.pairs.items():
            is_same = self._problem.lanes[f].microbatches == self._problem.lanes[b].microbatches
            for kf in range(len(self._problem.lanes[f].microbatches)):
                for kb in range(len(self._problem.lanes[b].microbatches)):
                    if is_same and kb >= kf:
                        continue  # its own F, in order, is not behind that of kf
                    start = self._starts[4 * f + F, kf]
                    form = self._add_form(letter, (kf, kb), start)
                    self.program.add(self._starts[4 * b + I, kb] == start).only_enforce_if(
                        form.literal
                    )
                    self._pairs_f[f, kf].append(form)
                    self._pairs_b[b, kb].append(form)

    def _add_forward(self, key: _Key) -> cp_model.LinearExprT:
        """Run an F alone or in a pair; return when it ends."""
        lane, number = key
        alone = self._add_form(4 * lane + F, (number,), self._starts[4 * lane + F, number])
        return self._end([alone, *self._pairs_f[key]])

    def _add_backward(self, key: _Key) -> _Backward:
        """Run a backward as I and W, as B where that may help, or in a pair."""
        lane, number = key
        start, weight = (self._starts[4 * lane + pass_, number] for pass_ in (I, W))
        forms = [self._add_form(4 * lane + I, (number,), start), *self._pairs_b[key]]
        if self._words.passes(lane)[1] == 4 * lane + B:
            forms.append(self._add_form(4 * lane + B, (number,), start))
        end = self._end(forms)
        cut = forms[0].literal
        late = self._add_form(4 * lane + W, (number,), weight)
        self.program.add(late.literal == cut)
        self.program.add(weight >= end).only_enforce_if(cut)
        if len(forms) == 1:
            return _Backward(end, weight + self._units(late.letter))
        release = self._time()
        self.program.add(release == weight + self._units(late.letter)).only_enforce_if(cut)
        self.program.add(release == end).only_enforce_if(~cut)
        self.program.add(weight == start).only_enforce_if(~cut)
        return _Backward(end, release)

    def _end(self, forms: Sequence[_Form]) -> cp_model.LinearExprT:
        """When the one form ends that is taken."""
        self.program.add_exactly_one(form.literal for form in forms)
        if len(forms) == 1:
            return forms[0].start + self._units(forms[0].letter)
        end = self._time()
        for form in forms:
            self.program.add(end == form.start + self._units(form.letter)).only_enforce_if(
                form.literal
            )
        return end

    def _units(self, letter: int) -> int:
        return self._scale.units(self._words.letters[letter].time)

    def _add_order(self) -> None:
        """Let letters wait for their inputs, and microbatches of a lane for those before them."""
        for lane, number in self._keys:
            for pass_ in (F, I):
                start = self._starts[4 * lane + pass_, number]
                for _, source, delay in self._words.letters[4 * lane + pass_].inputs:
                    made = (source // 4, number)
                    end = self._forwards[made] if source % 4 == F else self._backwards[made].end
                    self.program.add(start >= end + self._scale.units(delay))
                if number > 0:
                    before = (lane, number - 1)
                    end = self._forwards[before] if pass_ == F else self._backwards[before].end
                    self.program.add(start >= end)
            if number > 0 and self._is_cut(lane):
                released = self._backwards[lane, number - 1].release
                self.program.add(self._starts[4 * lane + W, number] >= released)

    def _is_cut(self, lane: int) -> bool:
        """Whether all backwards of a lane are I and W."""
        is_paired = any(backward == lane for _, backward in self._words.pairs)
        return not is_paired and self._words.passes(lane)[1] == 4 * lane + I

    def _add_memory(self, rank: int) -> None:
        lanes = [n for n, lane in enumerate(self._problem.lanes) if lane.rank == rank]
        held = [self._problem.held[self._problem.lanes[lane].stage] for lane in lanes]
        counts = [len(self._problem.lanes[lane].microbatches) for lane in lanes]
        limit = self._problem.limits[rank]
        if limit >= math.fsum(size * count for size, count in zip(held, counts, strict=True)):
            return
        for lane in lanes:
            self._add_rooms(lane)
        if len(lanes) == 1 and self._is_cut(lanes[0]):
            return  # releases come in order, so that its rooms say it all
        if not all(float(size).is_integer() for size in (limit, *held)):
            held = [math.floor(size / limit * _PARTS) for size in held]
            limit = _PARTS
        chunks, sizes = [], []
        for lane, size in zip(lanes, held, strict=True):
            for number in range(len(self._problem.lanes[lane].microbatches)):
                start, end = (
                    self._starts[4 * lane + F, number],
                    self._backwards[lane, number].release,
                )
                chunks.append(self.program.new_interval_var(start, self._time(), end, ""))
                sizes.append(int(size))
        self.program.add_cumulative(chunks, sizes, int(limit))

    def _add_rooms(self, lane: int) -> None:
        """What memory says of a single lane; see `Rooms`."""
        home = self._problem.lanes[lane]
        room = Rooms.of(self._problem, home)
        last = self._words.lane(room.last, home.microbatches)
        for number in range(len(home.microbatches)):
            start = self._starts[4 * lane + F, number]
            if number >= room.own and self._is_cut(lane):
                self.program.add(start >= self._backwards[lane, number - room.own].release)
            if number >= room.turn and last != lane:
                self.program.add(start >= self._forwards[last, number - room.turn])

    def _add_makespan(self, least: float) -> None:
        # Times that were rounded down may add up to less than the bound.
        lowest = self._scale.units(least) if self._scale.is_exact else 0
        makespan = self.program.new_int_var(lowest, self._most, "")
        for backward in self._backwards.values():
            self.program.add(makespan >= backward.release)
            self.program.add(makespan >= backward.end)
        self.program.minimize(makespan)
