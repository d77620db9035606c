"""A compiler pass of one's own, by name in a strategy, and the same in plain PyTorch.

    python examples/own_pass.py      # trains on four ranks in one process, and compares

The pass is gradient centralization (Yong, Huang, Hua and Zhang, 2020, "Gradient Centralization: A
New Optimization Technique for Deep Neural Networks"): from the gradient of a weight its mean over
all dims but the first is subtracted. Optimizers cannot do this, as theirs are flat buckets.

    grad @2.weight %dw    becomes    %mean = torch "aten.mean.dim"(%dw, [1], true)
                                     %centered = torch "aten.sub.Tensor"(%dw, %mean)
                                     grad @2.weight %centered

A captured step has a `grad` per chunk that uses a state, for one microbatch of one rank. Gradients
are sums of these. So what a pass does to each must be linear, as this is: then it is done to the
sum, whatever the other directives make of it.
"""

from __future__ import annotations

import copy
import sys
from fnmatch import fnmatchcase

import piper
import torch
from piper.frontend.torch_op import torch_op
from piper.mlir import ir
from piper.mlir.dialects import piper as ops
from piper.mlir.rewrite import PatternRewriter, RewritePatternSet, walk_and_apply_patterns
from piper.strategy import Directive
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

Batch = dict[str, Tensor]

BOUND = 1e-10


def centralize(module: ir.Module, *, states: str = "*") -> bool:
    """Center the gradients of the states whose names match a glob and that have two dims or more.

    Returns whether there are any: a directive that does nothing is an error.
    """
    found = []

    def rewrite(grad: ops.GradOp, rewriter: PatternRewriter) -> bool:
        """Return False for a match, as patterns in Python do."""
        rank = ir.RankedTensorType(grad.value.type).rank
        if rank < 2 or not fnmatchcase(grad.state.value, states):
            return True
        with rewriter.ip, grad.location:
            [mean] = torch_op("aten.mean.dim", grad.value, [*range(1, rank)], True, tag=grad.tag)
            [centered] = torch_op("aten.sub.Tensor", grad.value, mean, tag=grad.tag)
        grad.operation.operands[0] = centered
        found.append(grad.state.value)
        return False

    patterns = RewritePatternSet()
    patterns.add(ops.GradOp, rewrite)
    walk_and_apply_patterns(module.operation, patterns.freeze())
    return bool(found)


def make_model() -> nn.Module:
    """A few layers with their first weights, in fp64."""
    torch.manual_seed(0)
    layers = [nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 10)]
    return nn.Sequential(*layers).double()


def make_batch() -> Batch:
    """The examples of all ranks: x is (64, 16) float64, y, which can be learned, (64,) int64."""
    x = torch.randn(64, 16, dtype=torch.float64)
    return {"x": x, "y": x[:, :10].argmax(1)}


def loss_fn(model: nn.Module, batch: Batch) -> Tensor:
    """Mean cross-entropy, a scalar."""
    return cross_entropy(model(batch["x"]), batch["y"])


def make_adamw(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    """AdamW, as on one process."""
    return torch.optim.AdamW(parameters, lr=1e-2)


def make_strategy() -> piper.Strategy:
    """Two stages times two copies, and the pass on all weights but the first."""
    directives: list[Directive] = [
        piper.annotate({"*": "layer"}),
        piper.split(microbatches=4),
        piper.place(stages=2),
        piper.replicate(axis="dp", zero=1),
        piper.order("1F1B"),
        piper.update(make_adamw, clip=1.0),
        piper.user_pass("own_pass:centralize", at="step", states="[24].weight"),
    ]
    return piper.Strategy(mesh={"pp": 2, "dp": 2}, directives=directives)


def center(gradient: Tensor) -> Tensor:
    """What the pass does to the gradient of a matrix."""
    return gradient - gradient.mean(1, keepdim=True)


def plain_losses(model: nn.Module, batches: list[Batch]) -> list[float]:
    """Train with hooks that do what the pass does, and return the loss of each step."""
    for name, parameter in model.named_parameters():
        if name in ("2.weight", "4.weight"):
            parameter.register_hook(center)  # type: ignore[no-untyped-call]
    optimizer, losses = make_adamw(list(model.parameters())), []
    for batch in batches:
        optimizer.zero_grad()
        loss = loss_fn(model, batch)
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


def main() -> int:
    """Train in both ways; the exit status is 1 if losses or weights differ."""
    model = make_model()
    batches = [make_batch() for _ in range(8)]
    plain = copy.deepcopy(model)
    expected = plain_losses(plain, batches)

    strategy = make_strategy()
    print(strategy, end="\n\n")
    program = piper.compile(model, loss_fn, strategy, batches[0])
    trainer = piper.Trainer(program, model=model, transport="local")
    losses = [trainer.step(batch).loss for batch in batches]
    for step, pair in enumerate(zip(losses, expected, strict=True), start=1):
        print("step {}: loss {:.10f}, in plain PyTorch {:.10f}".format(step, *pair))

    gaps = [abs(ours - loss) for ours, loss in zip(losses, expected, strict=True)]
    weights = trainer.full_state_dict()
    gaps += [float((weights[n] - w).abs().max()) for n, w in plain.state_dict().items()]
    print(f"losses and weights differ by {max(gaps):.1e} at most, bound {BOUND}")
    return int(not max(gaps) <= BOUND)


if __name__ == "__main__":
    sys.exit(main())
