"""The example's model: causal, tied on request, and able to learn."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812
from gpt import GPT, Config

SMALL = Config(layers=2, width=16, heads=2, context=8, vocabulary=11)


def test_logits_do_not_depend_on_later_bytes() -> None:
    torch.manual_seed(0)
    model = GPT(SMALL).double()
    ids = torch.randint(11, (3, 8))
    changed = ids.clone()
    changed[:, 5:] = (ids[:, 5:] + 1) % 11
    before, after = model(ids), model(changed)
    assert before.shape == (3, 8, 11)
    torch.testing.assert_close(before[:, :5], after[:, :5], rtol=0, atol=1e-12)
    assert not torch.allclose(before[:, 5:], after[:, 5:])


def test_examples_shorter_than_the_context_are_accepted() -> None:
    assert GPT(SMALL)(torch.zeros(1, 3, dtype=torch.int64)).shape == (1, 3, 11)


def test_tied_head_is_the_embedding() -> None:
    tied, untied = GPT(Config(tied=True)), GPT(Config())
    assert tied.head.out.weight is tied.embed.token.weight
    assert len(list(untied.parameters())) == len(list(tied.parameters())) + 1


def test_learns_one_batch() -> None:
    torch.manual_seed(0)
    model = GPT(SMALL)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    ids = torch.randint(11, (4, 8))
    losses = []
    for _ in range(30):
        loss = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.3 * losses[0]
