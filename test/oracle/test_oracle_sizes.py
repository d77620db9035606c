"""How much a program holds, however large the strategy: kernels, ops, and bytes kept for B."""

from __future__ import annotations

from collections.abc import Callable

import hf_models
import piper
import pytest
import small_gpt
import torch
from hf_models import FAMILIES
from ir_facts import count_ops, kept_bytes, launched_kernels
from strategies import Captures, Case
from torch import Tensor, nn

LEVELS = ("step", "chunks", "cluster", "programs")
MOST = 1.1  # times what eager saves, if nothing is computed again
LEAST = 0.7  # and by default


@pytest.mark.parametrize("layers", [4, pytest.param(12, marks=pytest.mark.slow)])
def test_equal_layers_share_kernels(layers: int) -> None:
    """All layers of a GPT run one forward and one backward kernel."""
    case, captures = Case("1F1B", 2, 1, 2), small_gpt.captures(tied=True, layers=layers)
    (batch,) = small_gpt.batches(case, steps=1)
    program = captures.compile(case.strategy(small_gpt.TAGS), batch)
    kernels = launched_kernels(program, "layer.")
    assert {name: len(found) for name, found in kernels.items()} == {"F": 1, "B": 1, "F.eval": 1}


def test_ops_do_not_grow_with_dp() -> None:
    """One op stands for all data-parallel ranks, at every level."""
    captures = small_gpt.captures(tied=True)
    counts = []
    for dp in (2, 4, 8):
        case = Case("1F1B", 2, dp, 2)
        (batch,) = small_gpt.batches(case, steps=1)
        program = captures.compile(case.strategy(small_gpt.TAGS), batch)
        counts.append({level: count_ops(program, level) for level in LEVELS})
    assert counts[0] == counts[1] == counts[2]


def test_gpt_layer_keeps_what_eager_keeps() -> None:
    """A layer's B takes at most 1.1 times the bytes that eager autograd saves, by default 0.7."""
    case, captures = Case("1F1B", 2, 1, 2), small_gpt.captures(tied=True)
    (batch,) = small_gpt.batches(case, steps=1)
    _check_kept(captures, small_gpt.token_loss, case, small_gpt.TAGS, batch, "layers.1")


# In long sequences a T x T mask, which eager does not build, would outweigh the rest.
@pytest.mark.parametrize(("name", "repeats"), [("gpt2", 1), ("llama", 1), ("llama", 32)])
def test_transformers_layer_keeps_what_eager_keeps(name: str, repeats: int) -> None:
    """A layer's B takes at most 1.1 times the bytes that eager autograd saves, by default 0.7."""
    case, captures = Case("1F1B", 2, 2, 2), hf_models.captures(name, layers=2)
    batch = {name: value.repeat(1, repeats) for name, value in hf_models.make_batch(case).items()}
    path = {"gpt2": "transformer.h.1", "llama": "model.layers.1"}[name]
    loss_fn = hf_models.next_token_loss
    _check_kept(captures, loss_fn, case, FAMILIES[name].tags, batch, path)


def _check_kept(
    captures: Captures,
    loss_fn: Callable[[nn.Module, dict[str, Tensor]], Tensor],
    case: Case,
    tags: object,
    batch: dict[str, Tensor],
    path: str,
) -> None:
    assert isinstance(tags, dict)
    one = {name: value.tensor_split(case.parts)[0] for name, value in batch.items()}
    eager = _saved_bytes(captures.model, loss_fn, one, path)
    saved = sum(eager.values())
    plan = case.strategy(tags)
    save = piper.Strategy(plan.mesh, [*plan.directives, piper.remat(policy="save")])
    for strategy, most in ((save, MOST), (plan, LEAST)):
        kept = kept_bytes(captures.compile(strategy, batch), "layer.1")
        total = sum(kept.values())
        assert total <= most * saved, (
            f"B takes {total} bytes: {kept}; eager saves {saved} bytes: {eager}"
        )


def _saved_bytes(
    model: nn.Module,
    loss_fn: Callable[[nn.Module, dict[str, Tensor]], Tensor],
    batch: dict[str, Tensor],
    path: str,
) -> dict[str, int]:
    """Bytes of the distinct storages, not of parameters, that eager saves while a module runs."""
    module = model.get_submodule(path)
    storages: dict[int, tuple[str, Tensor]] = {}
    parameters = {p.untyped_storage().data_ptr() for p in model.parameters()}

    def pack(tensor: Tensor) -> Tensor:
        place = tensor.untyped_storage().data_ptr()
        if place not in parameters:
            storages.setdefault(place, (f"{tuple(tensor.shape)} {tensor.dtype}", tensor))
        return tensor

    hooks = torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor)
    handles = [
        module.register_forward_pre_hook(lambda *_: hooks.__enter__()),
        module.register_forward_hook(lambda *_: hooks.__exit__(None, None, None)),
    ]
    loss_fn(model, batch)
    for handle in handles:
        handle.remove()
    return {
        f"{index}: {what}": tensor.untyped_storage().nbytes()
        for index, (what, tensor) in enumerate(storages.values())
    }
