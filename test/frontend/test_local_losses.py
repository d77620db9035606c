"""Terms of a loss that are declared local: their mean over microbatches, each with its gradient."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import piper
import pytest
import torch
from capture_reference import Step, difference, run_capture
from piper.frontend import CaptureError, capture, capture_eval
from torch import Tensor, nn

PARTS, ROWS, WIDTH, CHOICES = 4, 3, 5, 3
FLOOR = 1e-12
Batch = Mapping[str, Tensor]
Terms = Callable[[Tensor], Tensor]


class Model(nn.Module):
    """Rows of scores, by two layers; and a scalar."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, CHOICES)
        self.factor = nn.Parameter(torch.tensor(0.5))

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.head(self.body(x).tanh())
        return scores


def make() -> tuple[Model, dict[str, Tensor]]:
    torch.manual_seed(0)
    return Model().double(), {"x": torch.randn(PARTS * ROWS, WIDTH, dtype=torch.float64)}


def main(scores: Tensor) -> Tensor:
    return scores.square().mean()


def balance(scores: Tensor) -> Tensor:
    """What couples the rows of a batch."""
    return scores.softmax(-1).mean(0).square().sum()


def contrast(scores: Tensor) -> Tensor:
    return (scores @ scores.t()).log_softmax(-1).diagonal().sum()


def local(value: Tensor, name: str = "local") -> Tensor:
    return piper.local_loss(value, name=name)


# The loss; what of it is of the whole batch; what is of a microbatch.
Case = tuple[Terms, Terms | None, Terms]
CASES: dict[str, Case] = {
    "added": (lambda s: main(s) + 0.3 * local(balance(s)), main, lambda s: 0.3 * balance(s)),
    "first": (lambda s: local(balance(s)) + main(s), main, balance),
    "subtracted": (lambda s: main(s) - local(balance(s)) / 4, main, lambda s: -balance(s) / 4),
    "subtracted from": (lambda s: local(balance(s)) - main(s), lambda s: -main(s), balance),
    "alpha": (
        lambda s: torch.add(main(s), local(balance(s)), alpha=3),
        main,
        lambda s: 3 * balance(s),
    ),
    "alpha of the other": (
        lambda s: torch.sub(local(balance(s)), main(s), alpha=3),
        lambda s: -3 * main(s),
        balance,
    ),
    "scaled together": (
        lambda s: -(main(s) + 0.3 * local(balance(s))) / 2,
        lambda s: -main(s) / 2,
        lambda s: -0.15 * balance(s),
    ),
    "two": (
        lambda s: main(s) + (0.3 * local(balance(s), "a") + local(contrast(s), "b")) / 5,
        main,
        lambda s: 0.06 * balance(s) + contrast(s) / 5,
    ),
    "narrow": (
        lambda s: main(s) + 0.5 * local(balance(s).float()),
        main,
        lambda s: 0.5 * balance(s).float(),
    ),
    "wide": (
        lambda s: main(s).float() + local(balance(s)),
        lambda s: main(s).float().double(),
        balance,
    ),
    "alone": (lambda s: 2 * local(balance(s)), None, lambda s: 2 * balance(s)),
    "bare": (lambda s: local(contrast(s)), None, contrast),
    "two alone": (
        lambda s: local(balance(s), "a") - 2 * local(contrast(s), "b"),
        None,
        lambda s: balance(s) - 2 * contrast(s),
    ),
}


def expected(model: Model, batch: Batch, case: Case) -> Step:
    """The declared meaning, in plain PyTorch."""
    _, whole, of_part = case
    parts = [of_part(model(part)) for part in batch["x"].chunk(PARTS)]
    loss = torch.stack([part.double() for part in parts]).mean()
    if whole is not None:
        loss = loss + whole(model(batch["x"]))
    named = dict(model.named_parameters())
    made = torch.autograd.grad(loss, list(named.values()), allow_unused=True)
    gradients = {n: g for n, g in zip(named, made, strict=True) if g is not None}
    return loss.detach(), gradients


@pytest.mark.parametrize("name", CASES)
def test_local_terms_are_means_over_microbatches(name: str) -> None:
    model, batch = make()
    case = CASES[name]
    captured = capture(
        model,
        lambda model, batch: case[0](model(batch["x"])),
        batch,
        annotations={"": "all"},
        microbatches=2,
        data_shards=2,
    )
    bound = FLOOR if name not in ("narrow", "wide") else 1e-7
    assert difference(run_capture(captured, model, batch), expected(model, batch, case)) < bound
    assert not [node for node in captured.ops() if "local_term" in str(node.target)]
    tangents = [role.name for role in captured.placeholders() if role.kind == "tangent"]
    assert sorted(tangents) == sorted(spec.name for spec in captured.losses)
    assert [spec.local for spec in captured.losses] == [
        spec.name != "loss" for spec in captured.losses
    ]


def test_evaluation_reports_them() -> None:
    model, batch = make()
    captured = capture_eval(
        model,
        lambda model, batch: CASES["two"][0](model(batch["x"])),
        batch,
        annotations={"": "all"},
        microbatches=2,
        data_shards=2,
    )
    found, gradients = run_capture(captured, model, batch)
    assert [spec.name for spec in captured.losses] == ["loss", "a", "b"]
    assert not gradients
    assert float(found - expected(model, batch, CASES["two"])[0]) == pytest.approx(0, abs=FLOOR)


def test_a_parameter_itself_may_be_a_term() -> None:
    model, batch = make()
    captured = capture(
        model,
        lambda model, batch: main(model(batch["x"])) + 0.1 * local(model.factor),
        batch,
        annotations={"": "all"},
        microbatches=2,
        data_shards=2,
    )
    _, gradients = run_capture(captured, model, batch)
    assert float(gradients["factor"]) == pytest.approx(0.1, abs=FLOOR)


def test_plain_pytorch_goes_on_with_the_value() -> None:
    value = torch.tensor(2.0, dtype=torch.float64, requires_grad=True)
    found = 3 * piper.local_loss(value, name="x")
    assert float(found.detach()) == 6
    assert torch.autograd.gradcheck(lambda x: 3 * piper.local_loss(x, name="x"), (value,))
    checks = ("test_schema", "test_autograd_registration", "test_faketensor")
    torch.library.opcheck(torch.ops.piper.local_term.default, (value, "x"), test_utils=checks)


def shared(scores: Tensor) -> Tensor:
    mean = main(scores)
    return mean + local(mean.square())


def leaking(scores: Tensor) -> Tensor:
    """What couples rows is not in the local term alone."""
    chances = scores.softmax(-1).mean(0)
    return (scores * chances).square().mean() + local(chances.square().sum())


def used_twice(scores: Tensor) -> Tensor:
    value = local(balance(scores))
    return main(scores) + value + 2 * value


REFUSED: dict[str, tuple[Terms, str]] = {
    "not declared": (
        lambda s: main(s) + balance(s),
        r"several terms \(aten.add.Tensor\); return one, and .* by piper.local_loss",
    ),
    "not declared, alone": (balance, r"sums over .*declare by piper.local_loss that this is meant"),
    "leaking": (leaking, "sums over the examples of a batch"),
    "shared": (shared, "'local' expected to be made of other values than the sum or mean .* twice"),
    "squared": (
        lambda s: main(s) + local(balance(s)).square(),
        "'local' expected to be a term of the loss, .* that scale it, got aten.pow",
    ),
    "weighted by a tensor": (
        lambda s: main(s) + local(balance(s)) * s.sum(),
        "'local' expected to be a term of the loss, .* that scale it, got aten.mul",
    ),
    "used twice": (used_twice, "'local' expected to be used once, got 2 uses"),
    "one name": (
        lambda s: main(s) + local(balance(s)) + local(contrast(s)),
        r"'local' expected a name of its own, got one of \['loss', 'grad_norm', 'local'\]",
    ),
    "taken name": (
        lambda s: main(s) + local(balance(s), "grad_norm"),
        r"'grad_norm' expected a name of its own, got one of \['loss', 'grad_norm'\]",
    ),
    "no scalar": (
        lambda s: main(s) + local(s.softmax(-1).mean(0)).sum(),
        r"local loss 'local' expected a floating scalar, got torch.float64 of shape \[3\]",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(name: str) -> None:
    loss, message = REFUSED[name]
    model, batch = make()
    with pytest.raises(CaptureError, match=rf"(?s)test_local_losses.py:\d+.*{message}"):
        capture(
            model,
            lambda model, batch: loss(model(batch["x"])),
            batch,
            annotations={"": "all"},
            microbatches=2,
            data_shards=2,
        )
