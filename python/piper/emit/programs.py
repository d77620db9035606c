"""Rank programs: the lowered IR as straight-line Python, one line per instruction."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from piper.emit.chunks import emit_chunk
from piper.emit.dump import row_flags
from piper.emit.locations import format_location
from piper.emit.names import Namer, identifier
from piper.emit.symbols import Symbols

__all__ = ["emit_programs"]

Row = Mapping[str, Any]

_HEADER = '''"""{title}

Each line of an entry point enqueues one instruction on the rank `r`: its chunk, microbatch and
operands, then, as a comment, the cell of the schedule, the source line, the module and the
directive behind it. `k` holds the kernels.
"""

from piper_runtime.program import {names}

from . import kernels as k
'''


def emit_programs(symbols: Symbols) -> dict[str, str]:
    """Return the text of every rank program by file name.

    There is one per coordinate of the unrolled axis, ``program_pp0.py`` and so on, with a function
    per chunk that it runs and one per entry point.
    """
    dumped: dict[int, list[dict[str, Any]]] = {}
    for program in symbols.programs:
        dumped.setdefault(program["at"], []).append(program)
    return {
        symbols.program_file(at): _emit_program(at, entries, symbols)
        for at, entries in sorted(dumped.items())
    }


def _emit_program(at: int, entries: Sequence[Mapping[str, Any]], symbols: Symbols) -> str:
    title = f"Rank program of coordinate {at}" if symbols.axis else "Rank program"
    if symbols.axis:
        title += f" of axis {symbols.axis}"
    used = {row["chunk"]: None for entry in entries for row in entry["rows"] if row["op"] == "run"}
    chunks = [emit_chunk(symbols.chunks[name], symbols) for name in used]
    flat = any("flatten(" in text for text in chunks)
    header = _HEADER.format(title=f"{title}.", names="chunk, flatten" if flat else "chunk")
    entry_points = ["\n".join(_EntryPoint(entry, symbols).lines()) for entry in entries]
    return "\n\n".join([header, *chunks, *entry_points]) + "\n"


@dataclass(frozen=True)
class _Call:
    """One instruction as Python: what it assigns, the method, its arguments."""

    method: str
    arguments: Sequence[str]
    targets: Sequence[str] = ()

    def __str__(self) -> str:
        call = f"r.{self.method}({', '.join(self.arguments)})"
        return f"{', '.join(self.targets)} = {call}" if self.targets else call


class _EntryPoint:
    """One function being written from the rows of a dumped program."""

    def __init__(self, program: Mapping[str, Any], symbols: Symbols) -> None:
        self._program, self._symbols = program, symbols
        self._namer = Namer()
        self._names: dict[int, str] = {}
        rows = program["rows"]
        self._scaled = ["scaled=True"] if program["entry"] in symbols.scaled_entries else []
        self._used = {value for row in rows if row["op"] != "free" for value in row["in"]}

    def lines(self) -> Iterator[str]:
        """Yield the lines of the function."""
        yield f"def {self._program['entry']}(r):"
        for row in self._program["rows"]:
            if row["op"] not in _KNOWN:
                where = format_location(*row["loc"])
                raise ValueError(
                    f"{where + ': ' if where else ''}emission expected one of "
                    f"{', '.join(_KNOWN)}, got {row['op']}"
                )
            writer: Callable[[Row], _Call] = getattr(self, f"_{row['op']}")
            yield f"    {writer(row)}  # {self._comment(row)}".rstrip(" #")

    def _comment(self, row: Row) -> str:
        where = format_location(*row["loc"])
        cell = self._symbols.cell(row["chunk"], row["mb"]) if row["op"] == "run" else ""
        flags = row_flags(row)
        marks = f"[{', '.join(flags)}]" if flags else ""
        return " ".join(filter(None, (cell, where, marks)))

    def _bind(self, value: int, wish: str) -> str:
        self._names[value] = self._namer.fresh(wish)
        return self._names[value]

    def _inputs(self, row: Row) -> list[str]:
        return [self._names[value] for value in row["in"]]

    def _after(self, row: Row) -> list[str]:
        events = ", ".join(self._names[event] for event in row["after"])
        return [f"after=[{events}]"] if events else []

    def _event(self, row: Row) -> str:
        return self._bind(row["out"][-1], "e")

    # One method per instruction.

    def _read(self, row: Row) -> _Call:
        name = self._bind(row["out"][0], row["symbol"])
        return _Call("read", [repr(row["symbol"]), f"slot={row['slot']!r}"], [name])

    def _input(self, row: Row) -> _Call:
        name = self._bind(row["out"][0], f"{row['input']}_m{row['mb']}")
        return _Call("input", [repr(row["input"]), f"mb={row['mb']}"], [name])

    def _run(self, row: Row) -> _Call:
        function, microbatch = identifier(row["chunk"]), f"m{row['mb']}"
        several = len(row["out"]) > 1
        targets = [
            self._bind(value, f"{function}{index if several else ''}_{microbatch}")
            for index, value in enumerate(row["out"])
        ]
        arguments = [function, *self._inputs(row), f"mb={row['mb']}", *self._after(row)]
        return _Call("run", arguments, targets)

    def _tangent(self, row: Row) -> _Call:
        count = [f"count={self._names[row['count']]}"] if "count" in row else []
        arguments = [repr(row["loss"]), *count, f"coeff={row['coeff']!r}"]
        arguments += [f"dtype={self._symbols.dtype(row['dtype'])!r}"]
        arguments += [*self._scaled, *self._after(row)]
        return _Call("tangent", arguments, [self._bind(row["out"][0], f"d_{row['loss']}")])

    def _sum(self, row: Row) -> _Call:
        return _Call(
            "sum", [*self._inputs(row), *self._after(row)], [self._bind(row["out"][0], "total")]
        )

    def _sumsq(self, row: Row) -> _Call:
        dtype = self._symbols.dtype(row["dtype"])
        arguments = [*self._inputs(row), f"dtype={dtype!r}", *self._after(row)]
        return _Call("sumsq", arguments, [self._bind(row["out"][0], "squares")])

    def _nonfinite(self, row: Row) -> _Call:
        [operand] = self._inputs(row)
        return _Call("nonfinite", [operand, *self._after(row)], [self._bind(row["out"][0], "skip")])

    def _accumulate(self, row: Row) -> _Call:
        arguments = [repr(row["bucket"]), self._names[row["in"][0]]]
        if "onto" in row:
            arguments.append(f"onto={self._names[row['onto']]}")
            self._names[row["out"][0]] = self._names[row["onto"]]  # the same storage
        name = self._names.get(row["out"][0]) or self._bind(row["out"][0], f"d_{row['bucket']}")
        return _Call("accumulate", [*arguments, *self._after(row)], [name])

    def _update(self, row: Row) -> _Call:
        arguments = [repr(row["bucket"]), self._names[row["in"][0]]]
        if "norm" in row:
            arguments.append(f"norm={self._names[row['norm']]}")
        if "skip" in row:
            arguments.append(f"skip={self._names[row['skip']]}")
        if "clip" in row:
            arguments.append(f"clip={row['clip']!r}")
        arguments += self._scaled
        [value] = row["out"]
        names = [self._bind(value, f"new_{row['bucket']}")] if value in self._used else []
        return _Call("update", [*arguments, *self._after(row)], names)

    def _write(self, row: Row) -> _Call:
        arguments = [repr(row["symbol"]), *self._inputs(row), f"slot={row['slot']!r}"]
        return _Call("write", [*arguments, *self._after(row)])

    def _slice(self, row: Row) -> _Call:
        [operand] = self._inputs(row)
        arguments = [operand, f"axis={row['axis']!r}", f"dim={row['dim']}", *self._after(row)]
        return _Call("slice", arguments, [self._bind(row["out"][0], f"part_{operand}")])

    def _convert(self, row: Row) -> _Call:
        [operand] = self._inputs(row)
        dtype = self._symbols.dtype(row["dtype"])
        arguments = [operand, f"dtype={dtype!r}", *self._after(row)]
        return _Call("convert", arguments, [self._bind(row["out"][0], f"{dtype}_{operand}")])

    def _output(self, row: Row) -> _Call:
        has_scale = "scale" in row
        scale = [f"scale={self._names[row['scale']]}", *self._scaled] if has_scale else []
        arguments = [repr(row["name"]), self._names[row["in"][0]], *scale, *self._after(row)]
        return _Call("output", arguments)

    def _record(self, row: Row) -> _Call:
        return _Call("record", [], [self._event(row)])

    def _free(self, row: Row) -> _Call:
        return _Call("free", [*self._inputs(row), *self._after(row)])

    def _send(self, row: Row) -> _Call:
        arguments = [*self._inputs(row), *self._message(row), *self._after(row)]
        return _Call("send", arguments, [self._event(row)])

    def _recv(self, row: Row) -> _Call:
        shape, dtype = tuple(row["shape"]), self._symbols.dtype(row["dtype"])
        arguments = [*self._message(row), f"shape={shape!r}", f"dtype={dtype!r}", *self._after(row)]
        name = self._bind(row["out"][0], f"from{row['peer']}_m{row['mb']}")
        return _Call("recv", arguments, [name, self._event(row)])

    def _message(self, row: Row) -> list[str]:
        comm = row["stream"]
        where = [f"comm={comm!r}", f"stream={comm!r}", f"peer={row['peer']}", f"mb={row['mb']}"]
        return [*where, f"label={row['label']!r}"] if row.get("label") else where

    def _all_reduce(self, row: Row) -> _Call:
        return self._collective(row, "all")

    def _all_gather(self, row: Row) -> _Call:
        return self._collective(row, "whole", f"dim={row['dim']}")

    def _reduce_scatter(self, row: Row) -> _Call:
        return self._collective(row, "part", f"dim={row['dim']}")

    def _all_to_all(self, row: Row) -> _Call:
        value, *sizes = self._inputs(row)
        comm, label = row["stream"], row.get("label", "")
        arguments = [value, f"comm={comm!r}", f"stream={comm!r}", f"dim={row['dim']}"]
        arguments += [f"sizes=({', '.join(sizes)})"] if sizes else []
        arguments += [f"bound={row['bound']}"] if "bound" in row else []
        arguments += [f"mb={row['mb']}"] if "mb" in row else []
        arguments += [f"label={label!r}"] if label else []
        wish = f"{label}_m{row['mb']}" if label and "mb" in row else f"exchanged_{value}"
        names = [self._bind(row["out"][0], wish), self._event(row)]
        return _Call("all_to_all", [*arguments, *self._after(row)], names)

    def _host_wait(self, row: Row) -> _Call:
        counts = self._inputs(row)
        mb = [f"mb={row['mb']}"] if "mb" in row else []
        names = [
            self._bind(value, f"sizes_{count}")
            for value, count in zip(row["out"], counts, strict=True)
        ]
        return _Call("host_wait", [*counts, *mb, *self._after(row)], names)

    def _collective(self, row: Row, wish: str, *options: str) -> _Call:
        comm, operand = row["stream"], self._names[row["in"][0]]
        where = [f"comm={comm!r}", f"stream={comm!r}", *options]
        where += [f"mb={row['mb']}"] if "mb" in row else []
        names = [self._bind(row["out"][0], f"{wish}_{operand}"), self._event(row)]
        return _Call(row["op"], [operand, *where, *self._after(row)], names)


# A method that makes a call of a row alone writes the instruction that it is named after.
_KNOWN = tuple(
    sorted(
        name.removeprefix("_")
        for name, method in vars(_EntryPoint).items()
        if getattr(method, "__annotations__", {}) == {"row": "Row", "return": "_Call"}
    )
)
