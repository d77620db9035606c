"""What stages of a compiled program cost, and an order searched for with that."""

from __future__ import annotations

import re
from pathlib import Path

import piper
import pytest
import torch
from compiled_mlp import Mlp, compiled
from handmade import Rows, chunk, facts
from piper.cli import main
from piper.schedules import Homes, generate
from piper.simulate import (
    Costs,
    Link,
    Network,
    Profile,
    ProgramFacts,
    simulate,
    simulate_program,
    stage_costs,
)
from piper.simulate.traced import Trace, profile_of
from piper_runtime import Program, Trainer

SECONDS = Profile("a machine", {"one": 1.0, "two": 2.0, "five": 5.0, "ten": 10.0}, 1e30)
INSTANT = Network(Link("instant", "", 1e30, 0.0, {}))
BATCH = {"x": torch.linspace(-1, 1, 4 * 4 * 8).reshape(16, 8)}


def test_passes_take_what_their_kernels_take() -> None:
    """Once per microbatch, however many run; two chunks of a stage are added."""
    chunks = [
        chunk("one"),
        chunk("two"),
        chunk("five", pass_="I"),
        chunk("ten", pass_="W"),
        chunk("ten", stage=1),
        chunk("two", stage=1, pass_="W"),
        chunk("one", stage=2),
        chunk("ten", stage=None),
    ]
    first, second = Rows(), Rows()
    first.run("ten.None$F")
    for microbatch in range(2):
        for name in ("one.0$F", "two.0$F", "five.0$I", "ten.0$W"):
            first.run(name, mb=microbatch)
        for name in ("ten.1$F", "two.1$W", "one.2$F"):
            second.run(name, mb=microbatch)
    costs = stage_costs(facts(first, second, chunks=chunks), SECONDS)
    assert costs == Costs.per_stage([3, 10, 1], I=[5, 0, 0], W=[10, 2, 0], B=[15, 2, 0])


def test_whole_backwards_take_what_they_take_where_they_run_too() -> None:
    passes = {"F": "one", "B": "five", "I": "two", "W": "ten"}
    both = Rows()
    for number, (letter, kernel) in enumerate(passes.items()):
        both.run(f"{kernel}.0${letter}", mb=number)
    chunks = [chunk(kernel, pass_=letter) for letter, kernel in passes.items()]
    assert stage_costs(facts(both, chunks=chunks), SECONDS) == Costs.per_stage(
        [1], B=[5], I=[2], W=[10]
    )


def test_halves_of_whole_backwards_are_not_guessed() -> None:
    rows = Rows()
    for name in ("one.0$F", "two.0$I", "one.1$F", "five.1$B"):
        rows.run(name)
    chunks = [
        chunk("one"),
        chunk("two", pass_="I"),
        chunk("one", stage=1),
        chunk("five", stage=1, pass_="B"),
    ]
    with pytest.raises(ValueError, match=r"as order ZBH1 does, got .* only whole ones at stage 1"):
        stage_costs(facts(rows, chunks=chunks), SECONDS)


def test_an_entry_point_must_train() -> None:
    rows = Rows()
    rows.run("one.0$F")
    with pytest.raises(ValueError, match="an entry point with backward passes, got 'train'"):
        stage_costs(facts(rows, chunks=[chunk("one")]), SECONDS)
    with pytest.raises(ValueError, match=r"with backward passes, got 'train'"):
        stage_costs(facts(Rows()), SECONDS)


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("program")
    compiled("ZBH1", pp=2, microbatches=4).save(path)
    return path


@pytest.mark.parametrize(("order", "v"), [("ZBH1", False), ("DualPipeV", True)])
def test_a_table_with_them_takes_what_the_program_takes(order: str, v: bool) -> None:
    """Where messages and memory take no time; the pairs of a table run like its cells."""
    facts = ProgramFacts.read(compiled(order, pp=2, microbatches=4, v=v))
    seconds = {kernel: 1.0 + number for number, kernel in enumerate(sorted(facts.kernels))}
    prices = Profile("", seconds, 1e60)
    table = generate(order, ranks=2, microbatches=4)
    expected = simulate(table, stage_costs(facts, prices))
    simulation = simulate_program(facts, prices, INSTANT)
    assert simulation.busy_per_coordinate == pytest.approx(expected.busy_per_rank)
    assert simulation.makespan == pytest.approx(expected.makespan)


def train(program: Program | Path) -> None:
    """Run a step and compare it with the single process."""
    model = Mlp()
    trainer = Trainer(program, model=model, optimizer=torch.optim.AdamW)
    loss = model(BATCH["x"]).square().sum()
    optimizer = torch.optim.AdamW(model.parameters())
    assert trainer.step(BATCH).loss == pytest.approx(loss.item(), rel=1e-5)
    loss.backward()
    optimizer.step()
    trained = trainer.full_state_dict()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(trained[name], parameter.detach())


def test_an_order_is_searched_for_with_a_measured_profile(
    program: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Compile, measure, write costs, search, compile, train."""
    profile, file = tmp_path / "profile.json", tmp_path / "costs.json"
    options = ["--measure", str(profile), "--link", "loopback", "--write-costs", str(file)]
    assert main(["simulate", str(program), *options]) == 0
    said = re.search(
        r'piper\.order\("auto", costs="(.*)", latency=(.*)\) takes it', capsys.readouterr().out
    )
    assert said is not None
    costs, latency = Costs.read(said[1]), float(said[2])
    assert costs == stage_costs(ProgramFacts.read(program), Profile.read(profile))
    assert all(time > 0 for time in (*costs.passes["F"], *costs.passes["B"], latency))
    order = piper.order("auto", costs=said[1], latency=latency, memory=2, effort=0.1)
    found = order.table(Homes.each(2), 4)
    named = generate("ZBH1", ranks=2, microbatches=4)
    assert (
        simulate(found, costs, latency=latency).makespan
        <= simulate(named, costs, latency=latency).makespan
    )
    train(compiled(order, pp=2, microbatches=4))


def test_an_order_is_searched_for_with_the_profile_of_a_trace(
    program: Path, tmp_path: Path
) -> None:
    trainer = Trainer(program, model=Mlp(), optimizer=torch.optim.AdamW)
    with trainer.trace(tmp_path / "trace.json", steps=[2, 3]):
        for _ in range(3):
            trainer.step(BATCH)
    facts = ProgramFacts.read(program)
    trace = Trace.read(tmp_path / "trace.json", Program.open(program), facts)
    costs = stage_costs(facts, profile_of(trace, machine="this one"))
    train(compiled(piper.order("auto", costs=costs, effort=0.1), pp=2, microbatches=4))
