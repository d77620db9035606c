"""What each cell of a table waits for, and whether the rows ever wait for each other in a circle."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from piper.schedules.cell import Action, Pair, Pass, draw_cell, members
from piper.schedules.table import Table

__all__ = ["Dependences", "check_progress"]

_Key = tuple[int, Pass, int]


class Dependences:
    """The cells of a table by number, row by row, and the cells that each waits for.

    A cell waits for the one before it in its row and for its inputs, which are those of its
    actions as far as the table has them: F needs the F of the stage before, B and I the stage's
    own F and the B or I of the stage after, W its own I.

    Args:
        table: each action once; communication and idle cells have no part in it.

    Raises:
        ValueError: an action that appears twice; the message marks the cell.
    """

    table: Table
    cells: Sequence[Action | Pair]
    """By number."""
    places: Sequence[tuple[int, int]]
    """The row and step of each cell."""
    inputs: Sequence[Sequence[int]]
    """The cells whose results each cell uses; one that waits for itself is among its own."""

    def __init__(self, table: Table) -> None:
        """Number the cells and find their inputs."""
        self.table = table
        found = [
            (row, step, cell)
            for row, cells in enumerate(table.rows)
            for step, cell in enumerate(cells)
            if isinstance(cell, Action | Pair)
        ]
        self.places = [(row, step) for row, step, _ in found]
        self.cells = [cell for _, _, cell in found]
        self._makers: dict[_Key, int] = {}
        for number, cell in enumerate(self.cells):
            for action in members(cell):
                if self._makers.setdefault(_key(action), number) != number:
                    raise table.error(f"{action} is run twice", *self.places[number])
        self.inputs = [
            [
                self._makers[need]
                for action in members(cell)
                for wanted in _needs(action)
                for need in wanted
                if need in self._makers
            ]
            for cell in self.cells
        ]

    def needs(self, number: int) -> Iterator[tuple[Action, int]]:
        """Yield the actions whose results a cell uses, each with its cell."""
        for action in members(self.cells[number]):
            for wanted in _needs(action):
                for key in wanted:
                    if key in self._makers:
                        yield Action(*key), self._makers[key]

    def check_inputs(self) -> None:
        """Check that the table makes all that its cells use; its last stage is the model's.

        Raises:
            ValueError: marks a cell that waits for what never runs.
        """
        last = max(stage for stage, _, _ in self._makers)
        for number, cell in enumerate(self.cells):
            for action in members(cell):
                for wanted in _needs(action):
                    stage = wanted[0][0]
                    if 0 <= stage <= last and self._makers.keys().isdisjoint(wanted):
                        names = " or ".join(str(Action(*key)) for key in wanted)
                        reason = f"{action} waits for {names}, which never runs"
                        raise self.table.error(reason, *self.places[number])

    def order(self) -> list[int]:
        """All cells, each after those that it waits for.

        Raises:
            ValueError: rows that wait for each other in a circle; the message shows all of it.
        """
        queues: list[list[int]] = [[] for _ in self.table.rows]
        for number in reversed(range(len(self.cells))):
            queues[self.places[number][0]].append(number)
        done = bytearray(len(self.cells))
        order: list[int] = []
        waiting: dict[int, list[int]] = {}
        ready = list(range(len(queues)))
        while ready:
            queue = queues[row := ready.pop()]
            while queue and (missing := self._missing(queue[-1], done)) is None:
                number = queue.pop()
                done[number] = True
                order.append(number)
                ready += waiting.pop(number, ())
            if queue and missing is not None:
                waiting.setdefault(missing, []).append(row)
        if len(order) < len(self.cells):
            raise self._deadlock(queues, done)
        return order

    def _missing(self, number: int, done: bytearray) -> int | None:
        """The first input of a cell that is not done."""
        for need in self.inputs[number]:
            if not done[need]:
                return need
        return None

    def _deadlock(self, queues: Sequence[Sequence[int]], done: bytearray) -> ValueError:
        """Follow what the first row waits for until a row comes again; given that none can move."""
        row = next(row for row, queue in enumerate(queues) if queue)
        waits: dict[int, tuple[int, int]] = {}
        while row not in waits:
            head = queues[row][-1]
            need = self._missing(head, done)
            assert need is not None
            waits[row] = head, need
            row = self.places[need][0]
        rows = list(waits)
        circle = [waits[row] for row in rows[rows.index(row) :]]
        first = self.places[circle[0][0]]
        links = list(self._links(circle, done))
        also = [self.places[number] for link in circle for number in link]
        lines = "".join(f"\n  {link}" for link in links)
        return self.table.error(f"these wait for each other in a circle:{lines}", *first, also=also)

    def _links(self, circle: Sequence[tuple[int, int]], done: bytearray) -> Iterator[str]:
        """A line per cell on a circle of (cell at the head of its row, cell that it waits for)."""
        for (head, need), (then, _) in zip(circle, [*circle[1:], circle[0]], strict=True):
            wanted = next(action for action, number in self.needs(head) if number == need)
            yield f"{self._name(head)} waits for {wanted}"
            if need != then:
                yield f"{self._name(need)} comes after {draw_cell(self.cells[then])}"

    def _name(self, number: int) -> str:
        row, step = self.places[number]
        return f"rank {row}, step {step}: {draw_cell(self.cells[number])}"


def check_progress(table: Table) -> None:
    """Check that rows, each run in order, never wait for each other in a circle.

    Raises:
        ValueError: shows the circle, a link per line, and marks its cells in the table; or
            communication, which it marks, too.
    """
    table.check_compute_only()
    Dependences(table).order()


def _key(action: Action) -> _Key:
    return action.stage, action.pass_, action.microbatch


def _needs(action: Action) -> tuple[tuple[_Key, ...], ...]:
    """What an action waits for, each as the keys of which a table has one."""
    stage, microbatch = action.stage, action.microbatch
    match action.pass_:
        case "F":
            return (((stage - 1, "F", microbatch),),)
        case "W":
            return (((stage, "I", microbatch),),)
        case "B" | "I":
            return (
                ((stage, "F", microbatch),),
                ((stage + 1, "B", microbatch), (stage + 1, "I", microbatch)),
            )
