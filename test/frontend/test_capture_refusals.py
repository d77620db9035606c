"""What capture refuses, each with the name of the culprit and its source line."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any, cast

import pytest
import torch
from capture_models import WIDTH, Mlp, row_batch
from piper.frontend import Capture, CaptureError, capture
from torch import Tensor, nn
from torch.nn import functional

Loss = Callable[[nn.Module, Any], Tensor]


def sum_loss(model: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
    total: Tensor = model(batch["x"]).sum()
    return total


def refused(message: str, model: nn.Module, loss_fn: Loss = sum_loss, **options: Any) -> None:
    """Check that capture raises ``message`` (a regular expression)."""
    with pytest.raises(CaptureError, match=message):
        captured(model, loss_fn, **options)


def captured(model: nn.Module, loss_fn: Loss = sum_loss, **options: Any) -> Capture:
    settings: dict[str, Any] = {"annotations": {}, "microbatches": 2, "data_shards": 1, **options}
    batch = settings.pop("batch", None)
    return capture(model.double(), loss_fn, row_batch() if batch is None else batch, **settings)


class Wrapped(nn.Module):
    """A linear layer, then ``function`` of the module and its result."""

    def __init__(self, function: Callable[[Wrapped, Tensor], Tensor]) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self, self.linear(x))


def test_module_hook() -> None:
    model = Mlp()
    model.first.register_forward_hook(lambda module, args, result: result * 2)
    refused(r"module 'first' has a hook.*test_capture_refusals\.py:\d+", model)


def test_parameter_hook() -> None:
    model = Mlp().double()
    model.first.weight.register_hook(lambda gradient: gradient * 2)  # type: ignore[no-untyped-call]
    refused(r"parameter 'first\.weight' has a hook.*test_capture_refusals\.py:\d+", model)


def test_attribute_that_cannot_be_copied() -> None:
    class Locked(Mlp):
        def __init__(self) -> None:
            super().__init__()
            self.lock = threading.Lock()

    refused(r"^model Locked cannot be copied: cannot pickle '_thread\.lock' object", Locked())


def test_graph_break() -> None:
    def break_graph(_: Wrapped, x: Tensor) -> Tensor:
        print(x)
        return x

    refused(r"test_capture_refusals\.py:\d+: cannot capture: (?s:.*)print", Wrapped(break_graph))


def test_python_counter() -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(WIDTH, WIDTH)
            self.steps = 0

        def forward(self, x: Tensor) -> Tensor:
            self.steps += 1
            y: Tensor = self.linear(x)
            return y

    refused(
        r"Python state.*module '1' \(attribute 'steps' at .*test_capture_refusals\.py:\d+\)",
        nn.Sequential(Mlp(), Counting()),
    )


def test_python_list_outside_the_model() -> None:
    seen: list[int] = []

    def remember(_: Wrapped, x: Tensor) -> Tensor:
        seen.append(x.shape[0])
        return x

    refused(r"Python state.*model\.function", Wrapped(remember))


def test_buffer_mutation() -> None:
    refused(
        r"test_capture_refusals\.py:\d+.*buffer '1\.running_mean' in place",
        nn.Sequential(Mlp(), nn.BatchNorm1d(WIDTH)),
    )


def test_dropout() -> None:
    refused(
        r"test_capture_refusals\.py:\d+ \(1\): op aten.*draws random.* p=0\.5",
        nn.Sequential(Mlp(), nn.Dropout(0.5)),
    )


def test_dropout_with_probability_zero_is_accepted() -> None:
    captured(nn.Sequential(Mlp(), nn.Dropout(0.0)))


def test_random_numbers() -> None:
    refused(r"rand.*draws random", Wrapped(lambda _, x: x + torch.rand(WIDTH)))


def test_strides() -> None:
    refused(
        r"test_capture_refusals\.py:\d+.*as_strided.*strides",
        Wrapped(lambda _, x: x.as_strided((2, 2), (1, 2))),
    )


def test_higher_order_op() -> None:
    def branch(_: Wrapped, x: Tensor) -> Tensor:
        y: Tensor = torch.cond(x.sum() > 0, lambda y: y * 2, lambda y: y * 3, (x,))
        return y

    refused(r"test_capture_refusals\.py:\d+.*higher-order|cannot capture", Wrapped(branch))


def test_data_dependent_shape() -> None:
    refused(r"test_capture_refusals\.py:\d+", Wrapped(lambda _, x: x[x > 0]))


def test_indivisible_batch() -> None:
    refused(
        r"must divide the batch size, got 3 and 8 \(input 'label', dim 0\)|input 'x', dim 0",
        Mlp(),
        microbatches=3,
    )


def test_inputs_of_different_sizes() -> None:
    refused(
        r"one common batch size, got .*declare dims",
        Mlp(),
        batch={**row_batch(), "mask": torch.ones(3)},
    )


def test_scalar_input() -> None:
    refused(r"input 'scale' is a scalar", Mlp(), batch={**row_batch(), "scale": torch.ones(())})


def test_unknown_name_in_dims() -> None:
    refused(r"dims expected names of tensor inputs .*, got 'z'", Mlp(), dims={"z": None})


def test_dim_out_of_range() -> None:
    refused(r"dims of input 'x' expected a dim below 2, got 2", Mlp(), dims={"x": 2})


def test_batch_without_tensors() -> None:
    refused(r"batch expected at least one tensor", Mlp(), batch={"n": 3})


def test_uncovered_parameters() -> None:
    refused(
        r"uncovered.*module 'second' owns second\.weight "
        r"\(read at .*capture_models\.py:\d+ \(second\)\)",
        Mlp(),
        annotations={"first": "layer"},
    )


def test_uncovered_parameters_of_the_model_itself() -> None:
    class Rooted(Mlp):
        def __init__(self) -> None:
            super().__init__()
            self.bias = nn.Parameter(torch.zeros(WIDTH))

        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x + self.bias)

    refused(
        r"uncovered.*the model itself \(path ''\) owns bias \(read at .*\): mark what reads "
        r"parameters of the model itself by `with piper\.annotate\('first'\):` in its forward, or "
        r"make the whole model one chunk by piper\.annotate\(\{'': 'model'\}\)$",
        Rooted(),
        annotations={"*": "layer"},
    )


def test_annotation_that_matches_nothing() -> None:
    refused(r"'third' matches no module.*first, second", Mlp(), annotations={"third": "layer"})


def test_module_with_two_tags() -> None:
    refused(
        r"module 'first' expected one tag, got 'a' from '\*' and 'b' from 'first'",
        Mlp(),
        annotations={"*": "a", "first": "b"},
    )


def test_parameter_without_gradient() -> None:
    refused(
        r"'0\.linear\.weight' is read by the loss but gets no gradient",
        nn.Sequential(Wrapped(lambda _, x: x.detach()), Mlp()),
    )


def test_loss_that_reads_a_foreign_parameter() -> None:
    other = nn.Linear(WIDTH, WIDTH).double()
    refused(
        r"test_capture_refusals\.py:\d+: the loss reads a trainable tensor that is no parameter",
        Mlp(),
        lambda model, batch: other(model(batch["x"])).sum(),
    )


LOSSES: dict[str, tuple[Loss, str]] = {
    "several terms": (
        lambda model, batch: (
            functional.cross_entropy(model(batch["x"]), batch["label"]) + model(batch["x"]).mean()
        ),
        r"test_capture_refusals\.py:\d+.*got several terms \(aten\.add",
    ),
    "loss plus a constant": (
        lambda model, batch: sum_loss(model, batch) + 1.0,
        r"a loss plus a constant",
    ),
    "class weights": (
        lambda model, batch: functional.cross_entropy(
            model(batch["x"]), batch["label"], weight=torch.ones(WIDTH, dtype=torch.float64)
        ),
        r"class weights",
    ),
    "label smoothing": (
        lambda model, batch: functional.cross_entropy(
            model(batch["x"]), batch["label"], label_smoothing=0.1
        ),
        r"a cross-entropy with label_smoothing",
    ),
    "own masked mean": (
        lambda model, batch: sum_loss(model, batch) / (batch["label"] > 0).sum(),
        r"a scale that is a tensor",
    ),
    "nonlinear": (lambda model, batch: sum_loss(model, batch).exp(), r"got aten\.exp"),
    "maximum": (lambda model, batch: model(batch["x"]).max(), r"got aten\.max"),
    "not a scalar": (lambda model, batch: model(batch["x"]), r"expected to return a scalar"),
    "not a tensor": (
        lambda model, batch: cast(Tensor, {"loss": sum_loss(model, batch)}),
        r"expected to return a tensor, got dict",
    ),
    "a target that is trained, too": (
        lambda model, batch: functional.mse_loss(model(batch["x"]), 2 * model(batch["x"])),
        r"test_capture_refusals\.py:\d+.*got a loss with 2 backward ops",
    ),
    "a target of a decomposed loss that is trained, too": (
        lambda model, batch: functional.binary_cross_entropy_with_logits(
            model(batch["x"]), model(batch["x"]).sigmoid()
        ),
        r"test_capture_refusals\.py:\d+.*got a mean whose backward divides 2 times",
    ),
    "labels made from parameters": (
        lambda model, batch: functional.cross_entropy(
            model(batch["x"]), model(batch["x"]).argmax(-1)
        ),
        r"count must depend on inputs only",
    ),
    "no parameter": (lambda model, batch: batch["x"].sum(), r"depends on no trainable parameter"),
}


@pytest.mark.parametrize(
    "loss_fn",
    [lambda model, batch: model.scale, lambda model, batch: model.scale * 2],
    ids=["as it is", "scaled"],
)
def test_loss_that_is_a_parameter(loss_fn: Loss) -> None:
    model = Mlp()
    model.scale = nn.Parameter(torch.ones(()))
    message = (
        "^loss expected one sum or mean over examples times a constant, got state 'scale' itself$"
    )
    refused(message, model, loss_fn)


@pytest.mark.parametrize("case", LOSSES)
def test_loss(case: str) -> None:
    loss_fn, message = LOSSES[case]
    refused(message, Mlp(), loss_fn)
