"""Ops of Piper's own, ``torch.ops.piper``: the same on every device, and each gradient an op.

Read first: ``routing`` (tokens and rows), ``exchange`` (rows and ranks), ``grouped`` (products),
then ``experts`` (a layer of them); ``attention``; ``partition``, ``softmax`` and ``vocabulary``, of
parts of what ranks share out. Importing the package registers the ops.
"""

from piper_runtime.ops.attention import attention, attention_with_lse
from piper_runtime.ops.exchange import (
    moe_collect,
    moe_dispatch,
    moe_exchange_counts,
    moe_group,
    moe_ungroup,
)
from piper_runtime.ops.experts import moe_experts
from piper_runtime.ops.grouped import moe_linear, moe_linear_input, moe_linear_weight
from piper_runtime.ops.local_loss import local_loss
from piper_runtime.ops.partition import (
    attention_part,
    attention_part_backward,
    clear_padding,
    part,
)
from piper_runtime.ops.routing import (
    moe_permute,
    moe_permute_backward,
    moe_sort,
    moe_unpermute,
    moe_unpermute_rows,
    moe_unpermute_weights,
)
from piper_runtime.ops.softmax import (
    log_softmax_backward_part,
    log_softmax_part,
    log_sum_exp_part,
    softmax_backward_part,
    softmax_backward_sum_part,
    softmax_part,
    sum_part,
)
from piper_runtime.ops.vocabulary import (
    embedding_backward_part,
    embedding_part,
    nll_loss_backward_part,
    nll_loss_part,
)

__all__ = [
    "attention",
    "attention_part",
    "attention_part_backward",
    "attention_with_lse",
    "clear_padding",
    "embedding_backward_part",
    "embedding_part",
    "local_loss",
    "log_softmax_backward_part",
    "log_softmax_part",
    "log_sum_exp_part",
    "moe_collect",
    "moe_dispatch",
    "moe_exchange_counts",
    "moe_experts",
    "moe_group",
    "moe_linear",
    "moe_linear_input",
    "moe_linear_weight",
    "moe_permute",
    "moe_permute_backward",
    "moe_sort",
    "moe_ungroup",
    "moe_unpermute",
    "moe_unpermute_rows",
    "moe_unpermute_weights",
    "nll_loss_backward_part",
    "nll_loss_part",
    "part",
    "softmax_backward_part",
    "softmax_backward_sum_part",
    "softmax_part",
    "sum_part",
]
