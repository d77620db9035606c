"""Train an unmodified model with experts of transformers, by pipeline, expert and data parallelism.

    python examples/train_moe.py                              # all ranks of the mesh in one process
    python examples/train_moe.py --model deepseek_v3 --zero 2 --mesh pp=2,edp=2,ep=2
    torchrun --nproc-per-node 4 examples/train_moe.py

Prints the schedule, a line per step, the validation loss next to what counting bytes could reach,
and how far one fp64 step is from the same step in a single process without Piper. Exits with 1 if
that is too far.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping
from typing import Any

import piper
import torch
import torch.nn.functional as F  # noqa: N812
from piper.schedules import SCHEDULES, schedule_name
from piper.strategy import Directive
from torch import Tensor, nn
from training import Batch, adamw, make_parser, run

VOCABULARY = 256  # bytes
EXPERTS, CHOICES = 8, 2
# Routers and norms compute in float32, also where the model is in float64.
TOLERANCE = 1e-6


def qwen3_moe(sizes: Mapping[str, Any], width: int) -> nn.Module:
    """Experts in every layer, chosen by a softmax."""
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    heads: dict[str, Any] = {"num_key_value_heads": 2, "head_dim": width // 4}
    model: nn.Module = Qwen3MoeForCausalLM(
        Qwen3MoeConfig(**sizes, **heads, num_experts=EXPERTS, num_experts_per_tok=CHOICES)
    )
    return model


def deepseek_v3(sizes: Mapping[str, Any], width: int) -> nn.Module:
    """A dense layer first; experts in two groups, of which a token chooses one; one for all."""
    from transformers import DeepseekV3Config, DeepseekV3ForCausalLM

    head = width // 8
    heads: dict[str, Any] = {"num_key_value_heads": 4, "v_head_dim": width // 4}
    heads |= {"qk_rope_head_dim": head, "qk_nope_head_dim": head}
    heads |= {"q_lora_rank": width // 2, "kv_lora_rank": width // 4}
    routed: dict[str, Any] = {"n_routed_experts": EXPERTS, "num_experts_per_tok": CHOICES}
    routed |= {"n_group": 2, "topk_group": 1, "first_k_dense_replace": 1}
    model: nn.Module = DeepseekV3ForCausalLM(DeepseekV3Config(**sizes, **heads, **routed))
    return model


MODELS: Mapping[str, Callable[[Mapping[str, Any], int], nn.Module]] = {
    "qwen3_moe": qwen3_moe,
    "deepseek_v3": deepseek_v3,
}


def make_model(options: argparse.Namespace) -> nn.Module:
    """The model with its first weights, the same in every process."""
    sizes = {
        "vocab_size": VOCABULARY,
        "hidden_size": options.width,
        "intermediate_size": 4 * options.width,
        "moe_intermediate_size": options.width,
        "num_hidden_layers": options.layers,
        "num_attention_heads": 4,
        "max_position_embeddings": options.context,
        "experts_implementation": "eager",  # of the single process, which has no other in float64
    }
    torch.manual_seed(options.seed)
    return MODELS[options.model](sizes, options.width)


def loss_fn(model: nn.Module, batch: Batch) -> Tensor:
    """Mean cross-entropy per byte in nats: a scalar in the model's dtype."""
    logits = model(input_ids=batch["ids"], use_cache=False).logits
    return F.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten())


def make_strategy(options: argparse.Namespace, *, update: bool = True) -> piper.Strategy:
    """Stages along pp; batches along edp and ep, along which experts are shared out."""
    mesh: dict[str, int] = options.mesh
    schedule = SCHEDULES[schedule_name(options.schedule)]
    tags = {"model.embed_tokens": "first", "model.layers.*": "layer"}
    directives: list[Directive] = [
        piper.annotate(tags | {"model.norm": "last", "lm_head": "last"}),
        piper.split(microbatches=options.microbatches),
        piper.place(stages=schedule.stages(mesh["pp"], schedule.chunks or 2), axis="pp"),
        piper.replicate(axis=("edp", "ep") if "edp" in mesh else "ep", zero=options.zero),
        piper.shard("*.mlp.experts.*", axis="ep", capacity=options.capacity),
        piper.order(options.schedule),
    ]
    if update:
        directives.append(piper.update(adamw(options.lr), clip=1.0))
    return piper.Strategy(mesh=mesh, directives=directives)


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = make_parser(
        __doc__, "The mesh has pp, ep and maybe edp; the width is a multiple of 16."
    )
    option = parser.add_argument
    option("--model", choices=MODELS, default="qwen3_moe", help="which model of transformers")
    option("--capacity", type=float, help="room for rows, as a multiple of those that a rank sends")
    parser.set_defaults(mesh="pp=2,ep=2", schedule="DualPipeV", zero=1, steps=40)
    parser.set_defaults(layers=2, width=64, context=32, batch=16)
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    """Train, then check; the exit status is 1 if the check fails."""
    return run(parse(arguments), make_model, make_strategy, loss_fn, bound=TOLERANCE)


if __name__ == "__main__":
    sys.exit(main())
