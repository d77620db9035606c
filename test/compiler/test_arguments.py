"""Arguments in another order, and a batch or a model that the strategy does not fit."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import piper
import pytest
import torch
from piper.strategy import Annotate, Directive, Strategy
from piper.strategy.batch import check_batch
from torch import Tensor, nn
from torch.nn import functional
from toy import MESH, Toy, batch_of, directives, loss_fn

HERE = r"test_arguments\.py:\d+:\d+"


def strategy_of(**changes: Directive | None) -> Strategy:
    return Strategy(mesh=MESH, directives=directives(**changes))


def test_model_and_loss_in_each_others_place() -> None:
    given: Any = (loss_fn, Toy(), strategy_of(), batch_of())
    with pytest.raises(
        TypeError,
        match=r"compile\(model, loss_fn, strategy, batch\) expected a torch.nn.Module as model, "
        r"which stands in the place of loss_fn, got function <function loss_fn",
    ):
        piper.compile(*given)


REFUSED: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "model": ({"model": 3}, TypeError, "expected a torch.nn.Module as model, got int 3"),
    "loss": (
        {"loss_fn": "mse"},
        TypeError,
        r"a loss_fn to call as loss_fn\(model, batch\), got str 'mse'",
    ),
    "mesh for a strategy": (
        {"strategy": {"pp": 2}},
        TypeError,
        r"expected a piper.Strategy\(mesh=..., directives=\[...\]\) as strategy, got dict {'pp': 2",
    ),
    "limits": ({"limits": 100}, TypeError, r"a piper.Limits\(...\) as limits, got int 100"),
    "shards": (
        {"data_shards": 0},
        ValueError,
        "compile data_shards must be an int of at least 1, got 0",
    ),
}


@pytest.mark.parametrize(("changes", "kind", "message"), REFUSED.values(), ids=REFUSED)
def test_other_types(changes: dict[str, Any], kind: type[Exception], message: str) -> None:
    model: Any = Toy()
    given = {"loss_fn": loss_fn, "strategy": strategy_of(), "batch": batch_of(), **changes}
    with pytest.raises(kind, match=message):
        piper.compile(given.pop("model", model), **given)


# Batches.


def test_batch_that_ranks_cannot_share_out_equally() -> None:
    message = (
        rf"^.*{HERE}: split must cut the batch into equal parts: expected a positive multiple of "
        r"6 \(3 microbatches x 2 ranks along 'dp'\), got 8 \(input 'ids', dim 0\)$"
    )
    with pytest.raises(piper.CaptureError, match=message):
        piper.compile(Toy(), loss_fn, strategy_of(split=piper.split(microbatches=3)), batch_of())


def test_data_shards_that_the_user_gives() -> None:
    given = strategy_of(split=piper.split(microbatches=1))
    message = r"multiple of 3 \(1 microbatches x data_shards=3\), got 8"
    with pytest.raises(piper.CaptureError, match=message):
        piper.compile(Toy(), loss_fn, given, batch_of(), data_shards=3)


def refusal(given: Sequence[Directive], batch: dict[str, Tensor], held: int) -> str:
    """What is said of a batch on a mesh of two axes of 2 and 3 ranks."""
    mesh = {"dp_replicate": 2, "dp_shard": 3}
    with pytest.raises(ValueError, match="must cut the batch") as error:
        check_batch(Strategy(mesh=mesh, directives=given), batch, held=held)
    return str(error.value)


def test_batch_without_a_split() -> None:
    """The directive that is to blame is the one that shares it out, along both axes."""
    said = refusal(
        [piper.replicate(axis=("dp_shard", "dp_replicate"), zero=1)], {"x": torch.ones(8)}, 6
    )
    assert re.fullmatch(
        rf".*{HERE}: replicate must cut the batch .* multiple of 6 \(6 ranks along 'dp_replicate' "
        r"and 'dp_shard'\), got 8 \(input 'x', dim 0\)",
        said,
    )


def test_batch_without_examples() -> None:
    """Under torchrun a process has a part of its own, of which ranks say nothing."""
    both = [piper.replicate(axis=("dp_replicate", "dp_shard"))]
    said = refusal(both, {"x": torch.ones(0, 2)}, 1)
    assert re.search(r"multiple of 1 \(one part\), got 0 \(input 'x', dim 0\)$", said)


def test_dims_are_those_of_the_split() -> None:
    axes = ("dp_replicate", "dp_shard")
    cut = [piper.replicate(axis=axes), piper.split(microbatches=2, dims={"x": 1, "w": None})]
    batch = {"x": torch.ones(5, 16), "w": torch.ones(())}
    said = refusal(cut, batch, 6)
    assert "(2 microbatches x 6 ranks along" in said
    assert said.endswith("got 16 (input 'x', dim 1)")
    check_batch(Strategy(mesh=dict.fromkeys(axes, 1), directives=cut), batch, held=1)


def test_sizes_that_differ_are_for_the_capture_to_tell() -> None:
    batch = {"x": torch.ones(5), "y": torch.ones(3)}
    check_batch(Strategy(mesh={}, directives=[piper.split(microbatches=2)]), batch, held=1)


def weighted(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    return functional.cross_entropy(model(batch["ids"]), batch["labels"], reduction="none").mean()


def test_scalar_input() -> None:
    batch = batch_of() | {"w": torch.tensor(0.5)}
    given = strategy_of(split=piper.split(microbatches=2, dims={"ids": 0}))
    wanted = r"piper\.split\(microbatches=2, dims=\{'ids': 0, 'w': None\}\)"
    with pytest.raises(
        piper.CaptureError,
        match=rf"{HERE}: split has no dim of input 'w' to cut, a scalar: expected {wanted}$",
    ):
        piper.compile(Toy(), weighted, given, batch)


def test_the_split_that_is_told_takes_the_scalar() -> None:
    dims: dict[str, int | None] = {"ids": 0, "w": None}
    given = strategy_of(split=piper.split(microbatches=2, dims=dims))
    batch = batch_of() | {"w": torch.tensor(0.5)}
    program = piper.compile(Toy(), weighted, given, batch)
    assert piper.Trainer(program).step(batch).loss > 0


# Annotations without a chunk.


class Wide(Toy):
    """Has modules that no step calls, lists, and one that reads no parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
        self.pieces = nn.ParameterList([nn.Parameter(torch.zeros(4))])
        self.flip = Flip()
        self.unused = nn.Linear(4, 4)

    def forward(self, ids: Tensor) -> Tensor:
        logits: Tensor = super().forward(self.flip(ids))
        with piper.annotate("shift"):
            x = logits @ self.head.weight + self.pieces[0]
        scores: Tensor = self.head(self.inner(x))
        return scores


class Flip(nn.Module):
    def forward(self, ids: Tensor) -> Tensor:
        return (ids + 1) % 8


NO_CHUNK: dict[str, tuple[dict[str, str], str]] = {
    "list": (
        {"layers": "layer"},
        (
            r"'layers' names no chunk: module 'layers', a ModuleList, only holds others and is never "
            r"called: annotate what it holds, such as 'layers\.\*'"
        ),
    ),
    "list with the tag of another": (
        {"layers": "first"},
        r"'layers' names no chunk: module 'layers', a ModuleList",
    ),
    "parameters": (
        {"pieces": "piece"},
        (
            "'pieces' names no chunk: module 'pieces', a ParameterList, only holds others and is never "
            "called: annotate the module that uses it, or that use by `with piper.annotate"
        ),
    ),
    "inside another": (
        {"inner.*": "part"},
        (
            r"'inner\.\*' names no chunk: module 'inner\.0' \(and 1 more\) runs inside what is "
            "annotated as 'inner', and the outermost annotation wins: leave out one of the two"
        ),
    ),
    "without parameters": (
        {"flip": "flip"},
        (
            "'flip' names no chunk: module 'flip' reads no parameter, so that it runs before all "
            "chunks: leave this out"
        ),
    ),
    "not called": (
        {"unused": "last_of_all"},
        (
            "'unused' names no chunk: module 'unused' computes nothing that the loss needs, or is "
            "never called: leave this out"
        ),
    ),
}


def test_list_that_was_given_a_forward() -> None:
    """It can be called, though its class has none."""
    model = Toy()
    layers: Any = model.layers
    layers.forward = layers[0].forward
    Annotate({"layers": "layer"}).check_calls(model)


@pytest.mark.parametrize(("tags", "message"), NO_CHUNK.values(), ids=NO_CHUNK)
def test_annotation_without_a_chunk(tags: dict[str, str], message: str) -> None:
    usual = {"embed": "first", "layers.*": "layer", "inner": "inner", "head": "last"}
    given = strategy_of(annotate=piper.annotate(usual | tags))
    with pytest.raises(ValueError, match=rf"{HERE}: annotate {message}"):
        piper.compile(Wide(), loss_fn, given, batch_of())
