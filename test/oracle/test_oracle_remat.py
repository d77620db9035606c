"""Computing again: the same results to the last bit, and fewer bytes from F to B."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial

import hf_models
import piper
import pytest
import small_gpt
import torch
from gpt import GPT, Config
from hf_models import FAMILIES
from ir_facts import kept_bytes, launched_kernels
from oracle import Step, adamw, check_steps, piper_steps, plain_steps, randomize
from piper.strategy import Remat
from piper.strategy.remat import Policy
from piper_runtime import Program
from strategies import Captures, Case
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

CASE = Case("1F1B", 2, 2, 2)
CLIP = 0.1


def with_remat(strategy: piper.Strategy, *directives: Remat) -> piper.Strategy:
    """The strategy with more directives."""
    return piper.Strategy(strategy.mesh, [*strategy.directives, *directives])


class Checkpointed(nn.Module):
    """A layer that keeps its input alone, as far as the model is concerned."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = checkpoint(self.inner, x, use_reentrant=False)
        return y


@cache
def checkpointed_gpt() -> Captures:
    """The small GPT, untied, with all layers in checkpoints."""
    torch.manual_seed(0)
    sizes = {"width": 16, "heads": 2, "context": small_gpt.LENGTH}
    model = GPT(Config(layers=4, tied=False, vocabulary=small_gpt.VOCABULARY, **sizes)).double()
    randomize(model)
    model.layers = nn.ModuleList(map(Checkpointed, model.layers))
    return Captures(model, small_gpt.token_loss)


def gpt_program(*directives: Remat) -> Program:
    """The small GPT of the other tests."""
    (batch,) = small_gpt.batches(CASE, steps=1)
    strategy = CASE.strategy(small_gpt.TAGS, adamw, clip=CLIP)
    return small_gpt.captures(tied=True).compile(with_remat(strategy, *directives), batch)


def hf_program(name: str, *directives: Remat) -> Program:
    """A model of transformers with two layers."""
    strategy = with_remat(CASE.strategy(FAMILIES[name].tags, adamw, clip=CLIP), *directives)
    return hf_models.captures(name, layers=2).compile(strategy, hf_models.make_batch(CASE))


def bytes_of(program: Program, chunk: str) -> int:
    """Bytes that pass B of a chunk takes of what its pass F makes or takes."""
    return sum(kept_bytes(program, chunk).values())


PROGRAMS: Mapping[str, Callable[..., Program]] = {
    "gpt": gpt_program,
    "gpt2": partial(hf_program, "gpt2"),
    "llama": partial(hf_program, "llama"),
}
CHUNKS: Mapping[str, Sequence[str]] = {
    "gpt": ("layer.0", "layer.1", "layer.2", "layer.3", "last.0"),
    "gpt2": ("layer.0", "layer.1", "head.0"),
    "llama": ("layer.0", "layer.1", "head.0"),
}


# The share is that of products and attentions; norms, activations and residuals are made of them.
@pytest.mark.parametrize(("name", "share"), [("gpt", 0.62), ("gpt2", 0.36), ("llama", 0.52)])
def test_layers_keep_a_smaller_share(name: str, share: float) -> None:
    """By default; no chunk keeps more than without computing anything again."""
    before, after = PROGRAMS[name](piper.remat(policy="save")), PROGRAMS[name]()
    kept = {chunk: (bytes_of(before, chunk), bytes_of(after, chunk)) for chunk in CHUNKS[name]}
    assert all(new <= old for old, new in kept.values()), kept
    layers = {chunk: sizes for chunk, sizes in kept.items() if chunk.startswith("layer")}
    assert all(new <= share * old for old, new in layers.values()), layers


@pytest.mark.parametrize("name", PROGRAMS)
def test_full_keeps_what_other_chunks_make(name: str) -> None:
    """Nothing that pass F of a layer makes goes to pass B: only its operands do."""
    program = PROGRAMS[name](piper.remat("layer", policy="full"))
    kept = kept_bytes(program, "layer.1")
    assert kept
    assert all(value.startswith("operand") for value in kept), kept


def test_ops_restrict_what_is_computed_again() -> None:
    """With GELU alone a layer keeps less than with nothing and more than with all light ops."""
    programs = [
        gpt_program(piper.remat(policy="save")),
        gpt_program(piper.remat(ops=["aten.gelu.*"])),
        gpt_program(),
    ]
    none, gelu, all_light = (bytes_of(program, "layer.1") for program in programs)
    activation = max(kept_bytes(programs[0], "layer.1").values())
    assert gelu == none - activation
    assert all_light < gelu


def test_policies_hold_for_their_chunks() -> None:
    """The layers keep what they keep under `full`, the head what it keeps under `save`."""
    full, save = gpt_program(piper.remat(policy="full")), gpt_program(piper.remat(policy="save"))
    mixed = gpt_program(piper.remat("l?yer", policy="full"), piper.remat("last", policy="save"))
    assert bytes_of(full, "last.0") < bytes_of(save, "last.0")
    assert kept_bytes(mixed, "layer.2") == kept_bytes(full, "layer.2")
    assert kept_bytes(mixed, "last.0") == kept_bytes(save, "last.0")


@pytest.mark.parametrize("directives", [(), (piper.remat("layer", policy="full"),)])
def test_equal_layers_still_share_kernels(directives: tuple[Remat, ...]) -> None:
    kernels = launched_kernels(gpt_program(*directives), "layer.")
    assert {name: len(found) for name, found in kernels.items()} == {"F": 1, "B": 1, "F.eval": 1}


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("policy", ["min_cut", "full"])
def test_results_are_equal_to_the_last_bit(name: str, policy: Policy) -> None:
    """Two steps, with and without computing again."""
    if name == "gpt":
        model, batches = small_gpt.captures(tied=True).model, small_gpt.batches(CASE, steps=2)
    else:
        model, batches = hf_models.captures(name, layers=2).model, 2 * [hf_models.make_batch(CASE)]
    again = PROGRAMS[name](piper.remat(policy=policy))
    saved = PROGRAMS[name](piper.remat(policy="save"))
    check_equal(piper_steps(again, model, batches), piper_steps(saved, model, batches))


def check_equal(found: Sequence[Step], expected: Sequence[Step]) -> None:
    """Assert that all values of all steps are the same bits."""
    pairs = zip(found, expected, strict=True)
    differing = [
        f"step {index}: {name}"
        for index, (ours, theirs) in enumerate(pairs, start=1)
        for (name, value), (_, other) in zip(ours.values(), theirs.values(), strict=True)
        if not torch.equal(value, other)
    ]
    assert not differing


@pytest.mark.parametrize("directives", [(), (piper.remat(policy="save"),)], ids=["default", "save"])
def test_checkpoints_of_the_model_are_honoured(directives: tuple[Remat, ...]) -> None:
    """Each layer keeps its input alone, and trains as plain PyTorch does."""
    captures, batches = checkpointed_gpt(), small_gpt.batches(CASE, steps=2)
    strategy = with_remat(CASE.strategy(small_gpt.TAGS, adamw, clip=CLIP), *directives)
    program = captures.compile(strategy, batches[0])
    size = small_gpt.ROWS * small_gpt.LENGTH * 16 * 8
    assert list(kept_bytes(program, "layer.1").values()) == [size]
    expected = plain_steps(captures.model, small_gpt.token_loss, batches, adamw, clip=CLIP)
    check_steps(piper_steps(program, captures.model, batches), expected)


def test_unknown_tag_is_refused_with_its_line() -> None:
    with pytest.raises(
        piper.CompileError,
        match=r"test_oracle_remat.py:\d+: .*selects no chunk that has a backward pass: expected a "
        r'tag of first, layer, last, got .*"head"',
    ):
        gpt_program(piper.remat("head", policy="full"))


def test_conflict_between_globs_is_refused_with_both_lines() -> None:
    with pytest.raises(
        piper.CompileError,
        match=r'test_oracle_remat.py:\d+: .*sets the policy of chunk "layer.0" to "save", which '
        r'another directive sets to "full"\n.*test_oracle_remat.py:\d+: note: the other',
    ):
        gpt_program(piper.remat("lay*", policy="full"), piper.remat("layer", policy="save"))


def test_op_that_is_nowhere_is_refused_with_what_there_is() -> None:
    with pytest.raises(
        piper.CompileError, match=r'expected one of .*aten.gelu.default.*, got "aten.silu.\*"'
    ):
        gpt_program(piper.remat("layer", ops=["aten.silu.*"]))
