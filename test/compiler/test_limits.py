"""Limits and streams, from what a user writes to what programs are refused for or ask for."""

from __future__ import annotations

import re
from contextlib import nullcontext
from typing import Any

import piper
import pytest
from levels import without_strategy
from piper.strategy import Directive
from piper_runtime import Program
from piper_runtime.manifest import Manifest
from toy import MESH, Toy, batch_of, directives, loss_fn

HERE = r"test_limits\.py:\d+"


def compile_toy(*streams: Directive, **options: Any) -> Program:
    strategy = piper.Strategy(mesh=MESH, directives=[*directives(), *streams])
    return piper.compile(Toy(), loss_fn, strategy, batch_of(), **options)


@pytest.mark.parametrize("name", ["memory", "sms", "communicators"])
def test_limits_are_counts(name: str) -> None:
    values: list[Any] = [0, -1, 1.5, True]
    for value in values:
        with pytest.raises(
            ValueError, match=rf"limit of {name} must be an int of at least 1, got {value}"
        ):
            piper.Limits(**{name: value})
    given: dict[str, Any] = {name: 3}
    assert piper.Limits(**given).options() == f"{{max-{name}=3}}"


def test_limits_as_options() -> None:
    assert piper.Limits().options() == ""
    assert piper.Limits(sms=2, memory=1).options() == "{max-memory=1 max-sms=2}"
    both = piper.Limits(memory=1, single_queue=True)
    assert both.options() == "{max-memory=1 single-queue=true}"


def test_single_queue_is_a_bool() -> None:
    value: Any = 1
    with pytest.raises(TypeError, match="single_queue must be True or False, got 1"):
        piper.Limits(single_queue=value)


def test_memory() -> None:
    with pytest.raises(
        piper.CompileError,
        match=r"toy\.py:\d+: 'piper\.run' op expected @train\$pp0 to hold at most 1000 bytes at "
        r"once, got (\d+) bytes at 'piper\.run' of @layer\.1\$B for microbatch 0\n"
        r"embed\.weight: note: 128 bytes are slot value of @embed\.weight\$b",
    ) as caught:
        compile_toy(limits=piper.Limits(memory=1000))
    peak = re.search(r"got (\d+) bytes", str(caught.value))
    assert peak is not None
    # The same everywhere with more memory: only what is refused changes.
    enough = compile_toy(limits=piper.Limits(memory=2 * int(peak[1])))
    assert enough.texts == compile_toy().texts


def test_communicators() -> None:
    with pytest.raises(
        piper.CompileError,
        match=r"expected at most 4 communicators at coordinate 0, got one more: @reduce\.pp\$0\.1",
    ):
        compile_toy(limits=piper.Limits(communicators=4))
    compile_toy(limits=piper.Limits(communicators=5))


def test_single_queue() -> None:
    """What Piper orders finishes with one queue per rank; what a user's pass orders may not."""
    limits = piper.Limits(single_queue=True)
    assert compile_toy(limits=limits).texts == compile_toy().texts
    late = piper.user_pass("toy_passes:reduce_late", at="cluster")
    compile_toy(late)
    with pytest.raises(
        piper.CompileError,
        match=r"expected number 0 on @reduce\.dp\.pp\$0\.1 to come before 'piper\.all_reduce' on "
        r"@reduce\.pp\$0\.1, as at coordinate 0, which shares both communicators",
    ):
        compile_toy(late, limits=limits)


def test_ranks_compare_their_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[str] = []

    def share(make: Any, store: Any, *, about: str, **others: Any) -> Any:
        compared.append(about)
        return make()

    monkeypatch.setenv("RANK", "1")
    monkeypatch.setattr("piper.compiler.is_shared", lambda: True)
    monkeypatch.setattr("piper.compiler.open_store", lambda **options: nullcontext())
    monkeypatch.setattr("piper.compiler.share", share)
    for limits in (piper.Limits(), piper.Limits(communicators=5)):
        compile_toy(limits=limits)
    first, second = (about.splitlines() for about in compared)
    assert first[:-1] == second[:-1]
    assert (first[-1], second[-1]) == (repr(piper.Limits()), repr(piper.Limits(communicators=5)))


def test_sms_are_the_sum_over_communicators() -> None:
    streams = (piper.stream("pp", sms=2), piper.stream("dp", sms=8))
    with pytest.raises(
        piper.CompileError,
        match=rf"communication of @train\$pp0 to hold at most 21 SMs at once, got 22\n"
        rf".*{HERE}: note: @send\$0\.1 holds 2, the sms of @pp\n"
        rf".*{HERE}: note: @send\$1\.0 holds 2, the sms of @pp\n"
        rf".*{HERE}: note: @reduce\.dp\$0 holds 8, the sms of @dp\n"
        rf".*{HERE}: note: @reduce\.dp\.pp\$0\.1 holds 8, the sms of @dp\n"
        rf".*{HERE}: note: @reduce\.pp\$0\.1 holds 2, the sms of @pp",
    ):
        compile_toy(*streams, limits=piper.Limits(sms=21))
    compile_toy(*streams, limits=piper.Limits(sms=22))


def test_sms_must_be_known() -> None:
    with pytest.raises(piper.CompileError, match="expected @dp to state sms"):
        compile_toy(piper.stream("pp", sms=1), limits=piper.Limits(sms=100))


def test_streams_reach_the_manifest() -> None:
    program = compile_toy(piper.stream("pp", priority=2, sms=4), piper.stream("dp", priority=-1))
    manifest = Manifest.parse(program.texts["manifest.json"])
    assert {comm.name: (comm.priority, comm.sms) for comm in manifest.comms} == {
        "send$0.1": (2, 4),
        "send$1.0": (2, 4),
        "reduce.dp$0": (-1, None),
        "reduce.dp$1": (-1, None),
        "reduce.dp.pp$0.1": (-1, None),
        "reduce.pp$0.1": (2, 4),
    }


def test_order_of_streams_has_no_meaning() -> None:
    streams = [piper.stream("pp", sms=4), piper.stream("dp", sms=8)]
    texts = [compile_toy(*given).texts["ir/programs.mlir"] for given in (streams, streams[::-1])]
    assert without_strategy(texts[0]) == without_strategy(texts[1])


def test_without_streams_nothing_is_asked() -> None:
    manifest = Manifest.parse(compile_toy().texts["manifest.json"])
    assert all((comm.priority, comm.sms) == (None, None) for comm in manifest.comms)


def test_a_trainer_refuses_what_its_transport_cannot_do() -> None:
    with pytest.raises(ValueError, match="transport local expected streams without priority"):
        piper.Trainer(compile_toy(piper.stream("dp", priority=1)), model=Toy())


def test_a_stream_that_nothing_runs_on() -> None:
    given = [*directives(place=None, order=None), piper.stream("pp", priority=1)]
    strategy = piper.Strategy(mesh={"pp": 1, "dp": 2}, directives=given)
    with pytest.raises(
        piper.CompileError,
        match=rf"{HERE}.* expected a stream that communication runs on, one of @dp, got @pp",
    ):
        piper.compile(Toy(), loss_fn, strategy, batch_of())
