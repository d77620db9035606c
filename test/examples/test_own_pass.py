"""The recipe of a user's own pass: equal to hooks in plain PyTorch, whatever else a strategy says."""

from __future__ import annotations

import copy
from typing import Any

import own_pass
import piper
import pytest
import torch
from own_pass import center, loss_fn, make_adamw, make_batch, make_model
from piper.strategy import Directive
from piper_runtime import CheckError
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

BOUND = 1e-10


def test_run_passes_its_check(capsys: pytest.CaptureFixture[str]) -> None:
    assert own_pass.main() == 0
    out = capsys.readouterr().out
    assert 'user_pass "own_pass:centralize" at "step" options {"states" = "[24].weight"}' in out
    assert "step 8: loss " in out


def test_failed_check_is_the_exit_status(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_pass, "BOUND", -1.0)
    assert own_pass.main() == 1


class Tied(nn.Module):
    """A weight with contributions of two chunks, on two stages."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(12, 8)
        self.layer = nn.Linear(8, 8)
        self.head = nn.Linear(8, 12, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids: Tensor) -> Tensor:
        logits: Tensor = self.head(self.layer(self.embed(ids)).tanh())
        return logits


def tied_loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    return cross_entropy(model(batch["ids"]), batch["labels"])


def distance(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).abs().max() / max(1.0, float(expected.abs().max())))


def check(
    model: nn.Module, loss: Any, batch: Any, mesh: dict[str, int], directives: list[Directive]
) -> None:
    """Compare loss, gradients and weights of two steps with plain PyTorch, and with no pass."""
    plain, bare = copy.deepcopy(model), copy.deepcopy(model)
    for parameter in plain.parameters():
        if parameter.dim() == 2:
            parameter.register_hook(center)  # type: ignore[no-untyped-call]
    optimizer = make_adamw(list(plain.parameters()))
    program = piper.compile(model, loss, piper.Strategy(mesh=mesh, directives=directives), batch)
    trainer = piper.Trainer(program, model=model, transport="local")
    for _ in range(2):
        optimizer.zero_grad()
        expected = loss(plain, batch)
        expected.backward()
        assert abs(trainer.step(batch).loss - float(expected.detach())) < BOUND
        gradients = trainer.gradients()
        for name, parameter in plain.named_parameters():
            assert parameter.grad is not None
            assert distance(gradients[name], parameter.grad) < BOUND, name
        nn.utils.clip_grad_norm_(plain.parameters(), 1.0)
        optimizer.step()
    weights = trainer.full_state_dict()
    for name, weight in plain.state_dict().items():
        assert distance(weights[name], weight) < BOUND, name
    loss(bare, batch).backward()
    [first, *_] = (p for p in bare.parameters() if p.dim() == 2)
    assert first.grad is not None
    assert distance(center(first.grad), first.grad) > 1e-4  # the pass has something to do


STRATEGIES: dict[str, tuple[dict[str, int], list[Directive]]] = {
    "one rank": ({}, []),
    "ZeRO 3": ({"dp": 2}, [piper.replicate(axis="dp", zero=3, bucket_size=1)]),
    "input and weight gradients apart": ({"pp": 2}, [piper.place(stages=2), piper.order("ZBH1")]),
    "all computed again": (
        {"pp": 2, "dp": 2},
        [
            piper.place(stages=2),
            piper.order("GPipe"),
            piper.replicate(axis="dp", zero=2, reduce="each"),
            piper.remat(policy="full"),
        ],
    ),
}


def own(**options: Any) -> list[Directive]:
    return [
        piper.split(microbatches=4),
        piper.update(make_adamw, clip=1.0),
        piper.user_pass("own_pass:centralize", at="step", **options),
    ]


@pytest.mark.parametrize("name", STRATEGIES)
def test_equal_to_hooks(name: str) -> None:
    mesh, directives = STRATEGIES[name]
    given = [*own(), *directives, piper.annotate({"*": "layer"})]
    check(make_model(), loss_fn, make_batch(), mesh, given)


@pytest.mark.parametrize("name", STRATEGIES)
def test_equal_to_hooks_on_a_tied_weight(name: str) -> None:
    mesh, directives = STRATEGIES[name]
    torch.manual_seed(0)
    batch = {"ids": torch.randint(12, (16,)), "labels": torch.randint(12, (16,))}
    tags = {"embed": "first", "layer": "layer", "head": "last"}
    given = [*own(), *directives, piper.annotate(tags)]
    check(Tied().double(), tied_loss, batch, mesh, given)


def test_no_state_of_the_name() -> None:
    given = [*own(states="absent.*"), piper.annotate({"*": "layer"})]
    strategy = piper.Strategy(mesh={}, directives=given)
    with pytest.raises(
        piper.CompileError,
        match=r"test_own_pass\.py:\d+: user_pass 'own_pass:centralize' at 'step' found nothing to do",
    ):
        piper.compile(make_model(), loss_fn, strategy, make_batch())


def test_check_mode_tells_that_a_pass_changed_the_step() -> None:
    strategy = piper.Strategy(mesh={}, directives=[*own(), piper.annotate({"*": "layer"})])
    program = piper.compile(make_model(), loss_fn, strategy, make_batch())
    with pytest.raises(CheckError, match="comes from a pass on the captured step"):
        piper.check(program, loss_fn, make_batch())
