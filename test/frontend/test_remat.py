"""torch.utils.checkpoint in a model: which ops are marked to be computed again."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
import torch
from capture_models import (
    LLAMA_TAGS,
    WIDTH,
    hf_loss,
    llama,
    row_batch,
    token_batch,
)
from piper.frontend import Capture, CaptureError, capture, capture_eval
from piper.frontend.data import tag_of
from piper.frontend.importer import import_captures
from piper.frontend.simplify import simplify
from piper.mlir import ir
from piper.mlir.dialects import piper
from piper.strategy.mesh import Mesh
from torch import Tensor, nn
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

Apply = Callable[[nn.Module, Tensor], Tensor]


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(WIDTH, 2 * WIDTH)
        self.down = nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return torch.sigmoid(self.down(torch.relu(self.up(x))))


class Net(nn.Module):
    """Two blocks, each run by ``apply``, in one chunk; between and behind them ops of their own."""

    def __init__(self, apply: Apply) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block(), Block()])
        self.apply_block = apply

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.apply_block(self.blocks[0], x))
        x = self.apply_block(self.blocks[1], x)
        return torch.cos(x)


def plainly(block: nn.Module, x: Tensor) -> Tensor:
    y: Tensor = block(x)
    return y


def checkpointed(block: nn.Module, x: Tensor, **options: Any) -> Tensor:
    y: Tensor = checkpoint(block, x, **{"use_reentrant": False, **options})
    return y


def choosing(policy: CheckpointPolicy, *ops: object) -> Apply:
    """A selective checkpoint with a policy for some ops."""

    def choose(_: object, op: object, *args: object, **kwargs: object) -> CheckpointPolicy:
        return policy if op in ops else CheckpointPolicy.PREFER_RECOMPUTE

    contexts = functools.partial(create_selective_checkpoint_contexts, choose)
    return functools.partial(checkpointed, context_fn=contexts)


def row_loss(model: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
    loss: Tensor = (model(batch["x"]) ** 2).sum()
    return loss


def captured(apply: Apply, take: Callable[..., Capture] = capture) -> Capture:
    taken = take(
        Net(apply).double(),
        row_loss,
        row_batch(),
        annotations={"": "net"},
        microbatches=2,
        data_shards=1,
    )
    return simplify(taken)


def marks(taken: Capture) -> list[str]:
    """The forward ops in order, without views and the loss; those that are marked in capitals."""
    words = []
    for node in taken.ops():
        word = str(node.target).split(".")[1]
        if tag_of(node).pass_ == "F" and word not in ("t", "pow", "sum"):
            words.append(word.upper() if node.meta.get("recompute") else word)
    return words


@pytest.fixture(autouse=True)
def context() -> Iterator[None]:
    with ir.Context():
        yield


def test_nothing_is_marked_without_a_checkpoint() -> None:
    block = ["addmm", "relu", "addmm", "sigmoid"]
    assert marks(captured(plainly)) == [*block, "tanh", *block, "cos"]


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("take", [capture, capture_eval])
def test_a_region_is_marked_up_to_what_leaves_it(
    reentrant: bool, take: Callable[..., Capture]
) -> None:
    """Eager keeps the result of a region for the op that reads it."""
    apply = functools.partial(checkpointed, use_reentrant=reentrant)
    block = ["ADDMM", "RELU", "ADDMM", "sigmoid"]
    assert marks(captured(apply, take)) == [*block, "tanh", *block, "cos"]


def test_what_goes_from_region_to_region_is_not_marked() -> None:
    class Chain(Net):
        def forward(self, x: Tensor) -> Tensor:
            for block in self.blocks:
                x = self.apply_block(block, x).view(-1, WIDTH)
            return x

    taken = capture(
        Chain(checkpointed).double(),
        row_loss,
        row_batch(),
        annotations={"": "net"},
        microbatches=2,
        data_shards=1,
    )
    assert marks(simplify(taken)) == 2 * ["ADDMM", "RELU", "ADDMM", "sigmoid"]


@pytest.mark.parametrize("policy", [CheckpointPolicy.MUST_SAVE, CheckpointPolicy.PREFER_SAVE])
def test_what_a_selective_policy_saves_is_not_marked(policy: CheckpointPolicy) -> None:
    apply = choosing(policy, torch.ops.aten.addmm.default)
    block = ["addmm", "RELU", "addmm", "sigmoid"]
    assert marks(captured(apply)) == [*block, "tanh", *block, "cos"]


def test_offloading_is_refused() -> None:
    apply = choosing(CheckpointPolicy.MUST_CPU_OFFLOAD, torch.ops.aten.relu.default)
    with pytest.raises(
        CaptureError,
        match=r"test_remat.py:\d+ \(blocks.0\): op aten.relu.default expected a checkpoint policy "
        "that saves or recomputes, got MUST_CPU_OFFLOAD, which is not supported",
    ):
        captured(apply)


def test_marks_reach_the_ir() -> None:
    module = import_captures([captured(checkpointed)], mesh=Mesh.of({"pp": 2}))
    step = next(op for op in module.body if isinstance(op, piper.StepOp))
    ops = [op for op in step.body.blocks[0] if isinstance(op, piper.TorchOp)]
    marked = [op.op_name.value for op in ops if op.recompute]
    assert marked == 2 * ["aten.addmm.default", "aten.relu.default", "aten.addmm.default"]


def test_transformers_mark_their_layers() -> None:
    """Checkpointing of an unmodified model: all of a layer but what leaves it.

    transformers adds a hook, for embeddings that are frozen, which capture would refuse.
    """
    model: Any = llama()
    model.activation_checkpointing_enable()
    model.disable_input_require_grads()
    taken = simplify(
        capture(
            model.double().train(),
            hf_loss,
            token_batch(),
            annotations=LLAMA_TAGS,
            microbatches=2,
            data_shards=1,
        )
    )
    for layer in ("layer.0", "layer.1"):
        ops = [node for node in taken.ops() if str(tag_of(node)) == f"{layer}$F"]
        products = [node for node in ops if node.target is torch.ops.aten.mm.default]
        assert len(products) == 7
        assert all(node.meta.get("recompute") for node in products)
    others = [node for node in taken.ops() if not str(tag_of(node)).startswith("layer.")]
    assert not any(node.meta.get("recompute") for node in others)
