"""Host time of a step and of its kernels against eager autograd, for a model too small to compute.

    python benchmarks/kernel_host_time.py [gpt | llama] [--kernels inductor]

Three pairs, each run in random order on one thread: a whole training step of Piper on one rank
beside PyTorch's own (forward, backward, SGD); all kernels of one step, each with the arguments it
had in a real one, beside PyTorch's forward and backward of the same model and batch; and the same
for the kernels as they were captured, op by op. Times are CPU times of this process, which other
ones disturb least. Prints the geometric mean of the ratio of their times with its 95 % interval
(see `paired.py`), and where the time of a whole step goes.

The last line says whether the bound holds: the interval of the whole step's ratio ends at 1.1 at
most. It is of the default sizes, for both models and both kinds of kernels. With ``--check`` the
exit status is 1 if it does not hold.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import piper
import torch
from bound import Bound, add_check, has_defaults, verdict
from paired import VOCABULARY, Batch, Clock, Ratio, Sizes, add_sizes, loss_fn, rounds
from piper.emit.names import identifier
from piper.emit.strides import reshape_where_needed
from piper.frontend.exporter import export_kernel
from piper.mlir import ir
from piper.mlir.dialects import piper as dialect
from piper_runtime import LocalTransport
from piper_runtime.states.state import Bucket
from torch import Tensor, nn

DEFAULT = Sizes(layers=8, width=64, context=16, batch=1)
WARM_UP = 5
MOST = 1.1  # where the interval of the ratio of a whole step ends
Step = Callable[[], object]

ANNOTATIONS = {
    "gpt": {"embed": "embed", "layers.*": "layer", "head": "head"},
    "llama": {
        "model.embed_tokens": "embed",
        "model.layers.*": "layer",
        "model.norm": "head",
        "lm_head": "head",
    },
}


def make_model(name: str, sizes: Sizes) -> nn.Module:
    """A GPT, or a Llama of the package transformers."""
    if name == "gpt":
        return sizes.model()
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=sizes.width,
        intermediate_size=2 * sizes.width,
        num_hidden_layers=sizes.layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=sizes.context,
        use_cache=False,
    )
    return LlamaForCausalLM(config)


def sgd(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    """The optimizer that costs least, of one call for all parameters of a bucket."""
    return torch.optim.SGD(parameters, lr=1e-3, foreach=True)


def make_trainer(name: str, sizes: Sizes, model: nn.Module, kernels: str) -> piper.Trainer:
    """One rank, one microbatch; keeps what eager autograd keeps."""
    strategy = piper.Strategy(
        mesh={},
        directives=[
            piper.annotate(ANNOTATIONS[name]),
            piper.remat(policy="save"),
            piper.update(sgd),
        ],
    )
    program = piper.compile(model, loss_fn, strategy, sizes.data())
    transport = LocalTransport(poison=False)
    return piper.Trainer(program, model=model, transport=transport, kernels=kernels)


# What is timed.


def kernels_of(trainer: piper.Trainer) -> dict[str, Callable[..., Any]]:
    """Return the functions that rank programs launch, by name."""
    module = trainer._loaded.modules[0].k
    return {name: getattr(module, name) for name in captured_kernels(trainer)}


@contextmanager
def replaced(owner: Any, functions: Mapping[str, Callable[..., Any]]) -> Iterator[None]:
    """Set attributes of an object for a while."""
    before = {name: getattr(owner, name) for name in functions}
    for name, function in functions.items():
        setattr(owner, name, function)
    try:
        yield
    finally:
        for name, function in before.items():
            setattr(owner, name, function)


def record(trainer: piper.Trainer, batch: Batch) -> list[tuple[str, tuple[Tensor, ...]]]:
    """Return the kernels of a step in the order of their calls, with copies of arguments."""
    launched: list[tuple[str, tuple[Tensor, ...]]] = []

    def watch(name: str, function: Callable[..., Any], *arguments: Tensor) -> Any:
        launched.append((name, tuple(argument.clone() for argument in arguments)))
        return function(*arguments)

    watched = {name: partial(watch, name, f) for name, f in kernels_of(trainer).items()}
    with replaced(trainer._loaded.modules[0].k, watched):
        trainer.step(batch)
    return launched


def captured_kernels(trainer: piper.Trainer) -> dict[str, Callable[..., Any]]:
    """Return the kernels op by op as they were captured: ``torch.ops.aten``, every view."""
    functions = {}
    with ir.Context():
        module = ir.Module.parse(trainer.program.texts["ir/programs.mlir"])
        for kernel in (op for op in module.body if isinstance(op, dialect.KernelOp)):
            exported = export_kernel(kernel)
            types = [argument.type for argument in kernel.body.blocks[0].arguments]
            reshape_where_needed(exported.graph, types)
            exported.recompile()
            functions[identifier(kernel.sym_name.value)] = exported.forward
    return functions


def replay(
    launched: list[tuple[str, tuple[Tensor, ...]]], functions: dict[str, Callable[..., Any]]
) -> Step:
    """Return a function that calls all kernels of a step."""
    calls = [(functions[name], arguments) for name, arguments in launched]

    def step() -> None:
        with torch.no_grad():
            for function, arguments in calls:
                function(*arguments)

    return step


def autograd(model: nn.Module, batch: Batch) -> Step:
    """Return PyTorch's own forward and backward."""
    parameters = list(model.parameters())

    def step() -> None:
        for parameter in parameters:
            parameter.grad = None
        loss_fn(model, batch).backward()  # type: ignore[no-untyped-call]

    return step


def eager_step(model: nn.Module, batch: Batch) -> Step:
    """Return PyTorch's own training step, which reports its loss as Piper's does."""
    optimizer = sgd(list(model.parameters()))

    def step() -> float:
        optimizer.zero_grad(set_to_none=True)
        loss = loss_fn(model, batch)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        return loss.item()

    return step


# Reports.


def compare(name: str, step: Step, other: Step, pairs: int) -> Ratio:
    """Run pairs, print and return the ratio."""
    measures = {"ours": partial(cpu_time, step), "theirs": partial(cpu_time, other)}
    found = {side: times[WARM_UP:] for side, times in rounds(measures, pairs + WARM_UP).items()}
    ours, theirs = (1e3 * statistics.median(times) for times in found.values())
    ratio = Ratio.of(found["ours"], found["theirs"])
    print(f"{name:30} {ours:6.2f} ms, eager {theirs:6.2f} ms, ratio {ratio}, {pairs} pairs")
    return ratio


def cpu_time(step: Step) -> float:
    """Seconds that this process computes in a step."""
    start = time.process_time()
    step()
    return time.process_time() - start


def split(trainer: piper.Trainer, batch: Batch, steps: int) -> None:
    """Print where the time of a step goes."""
    module = trainer._loaded.modules[0]
    clock, whole = Clock(time.process_time), Clock(time.process_time)
    kernels = {name: clock.wrap(f"kernel {name}", f) for name, f in kernels_of(trainer).items()}
    methods = {name: clock.wrap(name, getattr(Bucket, name)) for name in ("accumulate", "update")}
    chunks = {
        name: clock.wrap("chunk", function)
        for name, function in vars(module).items()
        if hasattr(function, "results")
    }
    for name, function in chunks.items():
        function.results = getattr(module, name).results  # type: ignore[attr-defined]
        function.__name__ = name
    step = whole.wrap("step", trainer.step)
    with replaced(module.k, kernels), replaced(Bucket, methods), replaced(module, chunks):
        for _ in range(WARM_UP):
            step(batch)
        clock.clear()
        whole.clear()
        for _ in range(steps):
            step(batch)
    spent = {name: 1e3 * seconds / steps for name, seconds in clock.seconds.items()}
    total = 1e3 * whole.seconds["step"] / steps
    in_kernels = sum(ms for name, ms in spent.items() if name.startswith("kernel "))
    named = spent["chunk"] + spent["accumulate"] + spent["update"]
    print(
        f"a step of the transport local, mean of {steps}, with clocks around all parts: {total:.2f} ms"
    )
    print(f"  {in_kernels:6.2f} ms  kernels")
    for name in sorted(spent, key=lambda name: -spent[name]):
        if name.startswith("kernel "):
            calls = clock.calls[name] // steps
            print(f"    {spent[name]:6.2f} ms  {calls:3} x {name.removeprefix('kernel ')}")
    print(f"  {spent['chunk'] - in_kernels:6.2f} ms  chunks around them: views of states")
    print(f"  {spent['accumulate']:6.2f} ms  gradients into buckets")
    print(f"  {spent['update']:6.2f} ms  optimizer")
    print(f"  {total - named:6.2f} ms  the rest: instructions, batch, outputs")


def measure(name: str, sizes: Sizes, kernels: str, pairs: int) -> Ratio:
    """Compare one model and print where the time goes; returns the ratio of the whole step."""
    model, batch = make_model(name, sizes), sizes.data()
    trainer = make_trainer(name, sizes, model, kernels)
    launched = record(trainer, batch)
    whole, eager = eager_step(make_model(name, sizes), batch), autograd(model, batch)
    print(f"{name} of {sizes}, torch {torch.__version__}")
    ratio = compare(f"whole step, {kernels}", partial(trainer.step, batch), whole, pairs)
    compare(f"kernels, {kernels}", replay(launched, kernels_of(trainer)), eager, pairs)
    compare("kernels, as captured", replay(launched, captured_kernels(trainer)), eager, pairs)
    split(trainer, batch, pairs)
    return ratio


def bounds(name: str, kernels: str, ratio: Ratio) -> list[Bound]:
    """What the ratio of a whole step may be at most."""
    return [ratio.bound(f"whole step of {name}, {kernels} kernels", MOST)]


def main() -> int:
    """Measure one model; returns the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", nargs="?", choices=sorted(ANNOTATIONS), default="gpt")
    parser.add_argument("--kernels", choices=("eager", "inductor"), default="eager")
    parser.add_argument("--pairs", type=int, default=200)
    add_sizes(parser, DEFAULT, leave_out=("microbatches",))
    add_check(parser, f"the interval of the whole step's ratio ends at {MOST:g} at most")
    options = vars(parser.parse_args())
    chosen = ("model", "kernels", "pairs", "check")
    bounded = has_defaults(parser, options, [size for size in vars(DEFAULT) if size in options])
    name, kernels, pairs, check = (options.pop(option) for option in chosen)
    sizes = replace(DEFAULT, **options)
    torch.set_num_threads(1)
    ratio = measure(name, sizes, kernels, pairs)
    return verdict(bounds(name, kernels, ratio) if bounded else (), check=check)


if __name__ == "__main__":
    sys.exit(main())
